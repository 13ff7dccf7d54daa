"""What several processes of one host agree on: its id, and who of them is alive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchflow.host import read_host_id
from benchflow.paths import StatePaths
from benchflow.process_identity import is_alive, read_start_time


def test_a_hosts_id_is_made_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from benchflow.host import *; print(host_id(StatePaths.default()))"]
    env = os.environ | {"BENCHFLOW_STATE_DIR": str(tmp_path)}
    first = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate(timeout=180)[0].strip() for process in first}
    assert said == {read_host_id(StatePaths(tmp_path))}
    assert read_host_id(StatePaths(tmp_path / "other")) not in said
    # As a power cut may have left it.
    StatePaths(tmp_path).host_id.write_text("")
    assert len(read_host_id(StatePaths(tmp_path))) == 12


def test_a_process_is_known_by_when_it_started() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    started = read_start_time(sleeper.pid)
    assert started is not None
    assert is_alive(sleeper.pid, started)
    assert not is_alive(sleeper.pid, started - 1)
    sleeper.kill()
    # A zombie, until it is waited for, is not alive.
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(sleeper.pid, started)
    sleeper.wait()
    assert read_start_time(sleeper.pid) is None
