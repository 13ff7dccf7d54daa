import subprocess


def working_days(first, last):
    argv = ["python3", "/app/calendar.py", first, last]
    return subprocess.run(argv, capture_output=True, text=True).stdout


def test_two_weeks():
    assert working_days("2026-05-01", "2026-05-15") == "11\n"


def test_a_weekend():
    assert working_days("2026-05-02", "2026-05-03") == "0\n"
