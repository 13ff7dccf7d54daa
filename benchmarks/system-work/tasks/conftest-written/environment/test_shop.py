def test_customer(customer):
    assert customer["name"] == "Ada"


def test_inbox(inbox):
    assert list(inbox.iterdir()) == []
