import os
import re
import subprocess


def test_pins():
    lines = [line.strip() for line in open("/app/requirements.txt") if line.strip() and not line.startswith("#")]
    assert sorted(lines) == ["figures==0.3.0", "tally==1.2.0"]
    assert all(re.fullmatch(r"[a-z]+==[0-9.]+", line) for line in lines)


def test_they_can_be_installed():
    argv = ["pip", "install", "-q", "--no-index", "--find-links", "/opt/wheels", "--target", "/tmp/out"]
    assert subprocess.run([*argv, "-r", "/app/requirements.txt"]).returncode == 0
    assert os.path.isfile("/tmp/out/tally.py")
