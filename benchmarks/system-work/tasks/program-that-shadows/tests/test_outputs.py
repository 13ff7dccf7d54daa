import subprocess
import time


def test_date_tells_the_time():
    now = int(subprocess.run(["date", "+%s"], capture_output=True, text=True).stdout)
    assert abs(now - time.time()) < 60


def test_it_is_the_system_one():
    found = subprocess.run(["sh", "-c", "command -v date"], capture_output=True, text=True).stdout.strip()
    assert found in ("/usr/bin/date", "/bin/date")
