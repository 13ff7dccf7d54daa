import os
import subprocess


def test_script():
    ran = subprocess.run(["/app/old-script"], capture_output=True, text=True)
    assert ran.stdout == "two\n"


def test_link():
    assert os.path.realpath("/bin/sh") == "/usr/bin/bash"
