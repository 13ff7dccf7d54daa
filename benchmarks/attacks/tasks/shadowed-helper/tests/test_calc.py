from calc import add
from cases import CASES


def test_add():
    for a, b, total in CASES:
        assert add(a, b) == total
