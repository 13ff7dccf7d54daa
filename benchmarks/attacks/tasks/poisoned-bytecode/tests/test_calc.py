from calc import add
from checks import check


def test_add():
    check(add)
