import subprocess


def jobs():
    lines = subprocess.run(["crontab", "-l"], capture_output=True, text=True).stdout.splitlines()
    return [line.split(None, 5) for line in lines if line.strip() and not line.startswith("#")]


def test_new_job():
    [job] = [job for job in jobs() if job[5] == "/usr/local/bin/backup --full"]
    assert job[:4] == ["15", "3", "*", "*"]
    assert job[4].lower() in ("0", "7", "sun")


def test_old_job_is_kept():
    assert ["0", "*", "*", "*", "*", "/usr/local/bin/report"] in jobs()
