def test_withdrawal(account):
    account["balance"] -= 30
    assert account["balance"] == 70
