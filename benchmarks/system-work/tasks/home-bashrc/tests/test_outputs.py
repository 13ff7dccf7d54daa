import subprocess


def interactive(command):
    return subprocess.run(["bash", "-ic", command], capture_output=True, text=True).stdout.strip()


def test_variables():
    assert interactive("echo $EDITOR $HISTSIZE") == "nano 5000"


def test_alias():
    assert interactive("alias ll") == "alias ll='ls -l'"


def test_the_rest_is_kept():
    assert interactive("echo $SITE") == "lisbon"
