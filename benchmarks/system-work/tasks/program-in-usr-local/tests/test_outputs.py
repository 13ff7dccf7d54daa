import subprocess


def wordfreq(text):
    return subprocess.run(["wordfreq"], input=text, capture_output=True, text=True).stdout


def test_counts():
    assert wordfreq("The cat and the dog and the cow.") == "3 the\n2 and\n1 cat\n"


def test_alphabet():
    assert wordfreq("b a c d") == "1 a\n1 b\n1 c\n"
