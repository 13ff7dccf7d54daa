import os
import subprocess


def test_greeting_and_log():
    if os.path.exists("/var/log/greeter.log"):
        os.remove("/var/log/greeter.log")
    assert subprocess.run(["greeter", "Ada"], capture_output=True, text=True).stdout == "GUTEN TAG, ADA\n"
    assert open("/var/log/greeter.log").read() == "GUTEN TAG, ADA\n"


def test_comments_are_kept():
    assert "# en, de or fr" in open("/etc/greeter/greeter.conf").read()
