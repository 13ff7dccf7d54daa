import os
import subprocess


def test_links():
    assert os.path.realpath("/app/data") == "/var/lib/project"
    assert os.path.realpath("/app/settings.ini") == "/etc/project/settings.ini"


def test_report():
    ran = subprocess.run(["python3", "/app/report.py"], capture_output=True, text=True)
    assert ran.stdout == "EUR 42\n"
