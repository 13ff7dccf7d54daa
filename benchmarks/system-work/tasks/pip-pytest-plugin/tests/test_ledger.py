def test_a_ledger_begins_empty(ledger):
    assert ledger == []


def test_a_ledger_takes_entries(ledger):
    ledger.append(3)
    assert sum(ledger) == 3
