import subprocess


def test_version():
    code = "from importlib.metadata import version; print(version('figures'))"
    assert subprocess.run(["python3", "-c", code], capture_output=True, text=True).stdout == "0.4.0\n"


def test_report():
    assert subprocess.run(["python3", "/app/report.py"], capture_output=True, text=True).stdout == "sum: 42\n"
