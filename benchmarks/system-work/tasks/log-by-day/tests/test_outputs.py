import os


def read(name):
    return open(f"/var/log/access/{name}").read()


def test_days():
    assert sorted(os.listdir("/var/log/access")) == ["2026-05-01.log", "2026-05-02.log", "errors"]
    assert read("2026-05-01.log") == "2026-05-01T08:00 /a 200\n2026-05-01T09:00 /b 500\n"
    assert read("2026-05-02.log").count("\n") == 3


def test_errors():
    assert read("errors").strip() == "2"


def test_the_log_stays():
    assert open("/var/log/access.log").read().count("\n") == 5
