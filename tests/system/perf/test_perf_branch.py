"""The measurement of branches measures: a tiny one here, for its options and for the one object that it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from support.paths import BENCHMARKS

pytestmark = pytest.mark.long

PERF = BENCHMARKS / "perf"


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PERF / "branch.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def measured(*arguments: str) -> dict[str, Any]:
    done = run_script("--quick", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "sandbox",
    [
        pytest.param("local", marks=pytest.mark.local),
        pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.soak]),
    ],
)
def test_checkpoints_and_children_are_measured_by_size_and_by_depth(sandbox: str) -> None:
    found = measured("--sandbox", sandbox, "--only", "capture,fork,depth")
    assert found.keys() == {sandbox, "machine"}
    told = found[sandbox]
    assert all(told[name] > 0 for name in ("capture_0mb_ms", "capture_10mb_ms", "fork_ms_per_child"))
    assert told["by_layer"].keys() == {"quiesce", "state", "files"}
    assert told["by_depth"].keys() == {"1", "2"}
    assert all(value > 0 for depth in told["by_depth"].values() for value in depth.values())
    assert (told["children"], told["runs"]) == (16, 1)
    assert told["targets"]["fork_ms_per_child"]["met"] == (
        told["fork_ms_per_child"] <= told["targets"]["fork_ms_per_child"]["limit"]
    )


@pytest.mark.local
@pytest.mark.agents
@pytest.mark.parametrize(
    "agent", ["policy", *(pytest.param(name, marks=pytest.mark.soak) for name in ("claude-agent-acp", "codex-acp"))]
)
def test_a_tree_has_fewer_model_tokens_than_rollouts_of_their_own(agent: str) -> None:
    found = measured("--sandbox", "local", "--only", "group", "--agents", agent)
    told = found["local"]["group8"][agent]["1"]
    assert told["tree_s"] > 0 < told["independent_s"]
    # Eight of the second turn either way; one of the first, and not eight.
    assert 0 < told["tree_model_tokens"] < told["independent_model_tokens"]
    assert found["group8"] == {"call_s": 0.0, "at_a_time": 4, "runs": 1}
    assert found["local"]["targets"] == {}
