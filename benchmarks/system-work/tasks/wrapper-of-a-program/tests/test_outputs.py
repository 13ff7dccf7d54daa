import subprocess


def run(program):
    return subprocess.run([program, "7"], capture_output=True, text=True).stdout


def test_commands():
    assert (run("report"), run("/usr/local/bin/report")) == ("7 EUR\n", "7\n")
