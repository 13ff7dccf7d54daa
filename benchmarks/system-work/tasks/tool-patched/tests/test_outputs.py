import subprocess


def hexcount(text):
    return subprocess.run(["/usr/local/bin/hexcount"], input=text, capture_output=True, text=True).stdout


def test_capital_letters():
    assert hexcount("FACE") == "4\n"


def test_the_rest():
    assert hexcount("face 0xg") == "5\n"


def test_source():
    assert "isxdigit" in open("/usr/local/src/hexcount/hexcount.c").read()
