def test_withdrawal(account):
    account["balance"] -= 30
    assert account["balance"] == 70


def test_deposit(account):
    account["balance"] += 5
    assert account["balance"] == 105
