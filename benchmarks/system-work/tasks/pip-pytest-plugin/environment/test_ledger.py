def test_a_ledger_begins_empty(ledger):
    assert ledger == []
