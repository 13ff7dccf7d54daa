import subprocess


def run(*argv):
    return subprocess.run(argv, capture_output=True, text=True, cwd="/").stdout


def test_program():
    assert run("/opt/venvs/report/bin/tally", "20", "22") == "42\n"


def test_it_is_a_virtual_environment():
    code = "import sys, tally; print(sys.prefix != sys.base_prefix, tally.__file__.startswith('/opt/venvs/report/'))"
    assert run("/opt/venvs/report/bin/python", "-c", code) == "True True\n"


def test_the_system_has_no_such_package():
    assert subprocess.run(["/usr/bin/python3", "-c", "import tally"], capture_output=True).returncode != 0
