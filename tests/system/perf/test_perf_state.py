"""The measurement of state measures: a tiny one here, for the one object that it prints."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.paths import BENCHMARKS

pytestmark = pytest.mark.long

SCRIPT = BENCHMARKS / "perf" / "state.py"


@pytest.mark.parametrize(
    "sandbox",
    [
        pytest.param("local", marks=pytest.mark.local),
        pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.soak]),
    ],
)
def test_each_measurement_is_printed_in_one_object(sandbox: str) -> None:
    command = [sys.executable, str(SCRIPT), "--sizes", "1,2", "--runs", "1", "--warm-up", "0", "--sandbox", sandbox]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["sandbox"], found["runs"]) == (sandbox, 1)
    for name in ("snapshot_ms", "restore_ms", "restore_live_ms"):
        assert found[name].keys() == {"1", "2"}
        assert all(value > 0 for value in found[name].values())
    assert found["reset_ms"] > 0 and found["fresh_ms"] > 0
    assert found["provision_to_ready_s"] > 0 and found["slowest_service_s"] > 0 and found["provision_ratio"] > 0
