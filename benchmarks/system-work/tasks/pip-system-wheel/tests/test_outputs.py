import subprocess


def run(*argv):
    return subprocess.run(argv, capture_output=True, text=True, cwd="/").stdout


def test_program():
    assert run("tally", "1", "2", "3") == "6\n"


def test_library():
    assert run("python3", "-c", "import tally; print(tally.total('4 5'))") == "9\n"


def test_versions():
    code = "from importlib.metadata import version as v; print(v('tally'), v('figures'))"
    assert run("python3", "-c", code) == "1.2.0 0.3.0\n"
