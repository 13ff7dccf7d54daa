from calc import add


def test_small_numbers():
    assert add(2, 3) == 5


def test_negative_numbers():
    assert add(-7, 3) == -4
