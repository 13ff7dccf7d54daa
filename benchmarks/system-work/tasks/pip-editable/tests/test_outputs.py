import subprocess
from pathlib import Path


def greet():
    return subprocess.run(["greet", "Ada"], capture_output=True, text=True, cwd="/tmp").stdout


def test_program():
    assert greet() == "Hello, Ada!\n"


def test_change_takes_effect():
    module = Path("/app/greeting.py")
    module.write_text(module.read_text().replace("Hello", "Good day"))
    assert greet() == "Good day, Ada!\n"
