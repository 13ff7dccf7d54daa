import os


def test_job():
    text = open("/etc/cron.d/cleanup").read()
    assert text.endswith("\n")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert "PATH=/usr/bin:/bin" in lines
    [job] = [line.split(None, 6) for line in lines if "=" not in line.split()[0]]
    assert job == ["*/10", "*", "*", "*", "*", "nobody", "find /var/tmp/uploads -type f -mmin +60 -delete"]


def test_mode():
    assert os.stat("/etc/cron.d/cleanup").st_mode & 0o777 == 0o644
