import os
import subprocess


def test_zone():
    environment = {name: value for name, value in os.environ.items() if name != "TZ"}
    argv = ["date", "-d", "2026-07-01T12:00:00Z", "+%H:%M"]
    assert subprocess.run(argv, capture_output=True, text=True, env=environment).stdout == "13:00\n"


def test_files():
    assert os.path.realpath("/etc/localtime") == "/usr/share/zoneinfo/Europe/Lisbon"
    assert open("/etc/timezone").read().strip() == "Europe/Lisbon"
