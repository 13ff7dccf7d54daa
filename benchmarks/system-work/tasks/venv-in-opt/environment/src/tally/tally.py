import sys

import figures


def total(text):
    """Return the sum of the numbers of a text."""
    return sum(figures.read(text))


def main():
    print(total(" ".join(sys.argv[1:]) or sys.stdin.read()))
