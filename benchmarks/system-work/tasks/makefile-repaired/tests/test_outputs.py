import os
import subprocess


def make(*argv):
    return subprocess.run(["make", "-C", "/app", *argv], capture_output=True, text=True)


def test_report_is_made():
    make("clean")
    assert not os.path.exists("/app/build")
    assert make("report").returncode == 0
    assert open("/app/build/report.txt").read() == "ALL IS WELL\n"


def test_only_when_it_is_older():
    make("report")
    os.utime("/app/build/report.txt", (2_000_000_000, 2_000_000_000))
    make("report")
    assert os.stat("/app/build/report.txt").st_mtime == 2_000_000_000
