import sys

import tally


def test_total():
    assert tally.total("4 5 6") == 15


def test_environment():
    assert sys.prefix == "/app/.venv"
