import os
import subprocess
from pathlib import Path


def test_command():
    assert subprocess.run(["planner"], capture_output=True, text=True).stdout == "planner 1.4\n"
    assert os.path.realpath("/usr/local/bin/planner") == "/opt/planner/bin/planner"


def test_owner():
    assert {os.lstat(path).st_uid for path in Path("/opt/planner").rglob("*")} == {0}
