def test_customer(customer):
    assert customer == {"name": "Ada", "orders": []}
    customer["orders"].append(1)


def test_every_test_has_a_new_customer(customer):
    assert customer["orders"] == []


def test_inbox(inbox):
    assert list(inbox.iterdir()) == []
    (inbox / "message").write_text("hello")
