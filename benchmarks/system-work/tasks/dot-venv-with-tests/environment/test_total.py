import tally


def test_total():
    assert tally.total("4 5") == 9
