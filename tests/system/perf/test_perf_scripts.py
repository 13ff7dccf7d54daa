"""The measurements measure: tiny ones here, for their options and for the one object that they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from support.paths import BENCHMARKS

pytestmark = pytest.mark.long

PERF = BENCHMARKS / "perf"


def run_script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PERF / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def measured(name: str, *arguments: str) -> dict[str, Any]:
    """What a script prints on its standard output, which has to be one JSON object and nothing else."""
    done = run_script(name, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def scale() -> dict[str, Any]:
    return measured("scale.py", "--rollouts", "4", "--concurrency", "2")


def test_scale_finishes_every_rollout_without_an_error(scale: dict[str, Any]) -> None:
    assert (scale["rollouts"], scale["concurrency"]) == (4, 2)
    assert scale["statuses"] == {"passed": 4}
    assert (scale["errors"], scale["error_categories"], scale["restarts"]) == (0, {}, 0)
    assert scale["rollouts_per_s"] > 0


def test_scale_finds_every_run_of_the_job_below_the_limit_of_events(scale: dict[str, Any]) -> None:
    assert scale["job_runs"] == 1
    assert 0 < scale["rollout_events_median"] <= scale["rollout_events_max"] < scale["job_events_limit"]
    assert 0 < scale["job_events_max"] < scale["job_events_limit"] == 4096


def test_scale_reports_memory_of_every_process_from_start_to_end(scale: dict[str, Any]) -> None:
    assert scale["rss_mb"].keys() == {"supervisor", "server", "worker", "enclosure"}
    for row in scale["rss_mb"].values():
        assert 10 < row["start"] <= row["max"]
        assert 10 < row["end"] <= row["max"]
    assert scale["database_mb"] > 0


@pytest.fixture(scope="module")
def overhead(base_image: str) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHFLOW_PERF_IMAGE", base_image)
        return measured("overhead.py", "--runs", "1", "--warm-up", "0", "--rollouts", "1", "--concurrency", "1")


@pytest.mark.docker
def test_overhead_measures_the_floor_and_the_engine(overhead: dict[str, Any]) -> None:
    found = overhead
    for name in ("floor_s", "one_s", "one_api_s", "eight_at_four_s", "cpu_s_per_rollout", "worker_rss_mb"):
        assert found[name] > 0, name
    assert found["range"]["one_s"] == [found["one_s"]] * 2
    assert found["by_phase"]["one"].keys() >= {"plan", "provision", "execute", "verify"}
    assert found["cpu_by_process"]["one"].keys() == {"command", "supervisor", "server", "worker", "enclosure"}
    # The limits are for eight rollouts, four at a time, and say nothing about another job.
    assert found["targets"] == {}


@pytest.mark.docker
@pytest.mark.local
def test_overhead_measures_local_sandboxes_and_their_steps(overhead: dict[str, Any]) -> None:
    found = overhead["local"]
    figures = {"one_s", "eight_at_four_s", "start_ms", "exec_ms", "fork_ms_per_child", "stop_ms"}
    assert found.keys() == {*figures, "range", "by_phase", "targets"}
    assert found["range"] == {name: [found[name]] * 2 for name in figures}
    assert all(found[name] > 0 for name in figures)
    assert found["by_phase"].keys() == {"one", "eight_at_four"}
    assert found["targets"] == overhead["left_out"] == {}


@pytest.mark.docker
def test_overhead_says_what_it_leaves_out(overhead: dict[str, Any]) -> None:
    if os.geteuid():
        assert "root" in overhead["left_out"]["local"]
    assert ("local" in overhead) != ("local" in overhead["left_out"])


@pytest.mark.local
def test_session_measures_how_late_how_fast_and_how_large_and_the_change_of_workers() -> None:
    found = measured("session.py", "--runs", "1", "--messages", "400", "--paced", "100", "--journal-mb", "3")
    figures = {"updates_per_s", "updates_per_s_16", "cpu_us_per_update", "reattach_s", "reattach_kill_s"}
    assert all(found[name] > 0 for name in figures)
    assert found["range"].keys() == figures | {"latency_ms_p50", "latency_ms_p99"}
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["p99"]
    memory = found["worker_rss_mb"]
    assert 10 < memory["start"] <= memory["peak"] >= memory["end"]
    assert memory["said_mb"] >= 3
    # The limits are for as much as is measured by default.
    assert found["targets"] == {}
    assert (found["runs"], found["sandbox"]) == (1, "local")


def test_gateway_measures_what_it_adds_what_it_carries_and_its_memory() -> None:
    found = measured("gateway.py", "--pairs", "20", "--calls", "1280")
    assert found["added_ms"]["p50"] < found["added_ms"]["p99"]
    assert found["calls_per_s"] > 0 < found["cpu_ms"]
    assert (found["pairs"], found["calls"]) == (20, 1280)
    memory = found["memory_mb"]
    assert memory.keys() == {"start", "quarter", "end"}
    assert all(value > 10 for value in memory.values())
    assert found["memory_growth_mb"] == pytest.approx(memory["end"] - memory["quarter"], abs=0.11)
    # The limits are for as much as is measured by default.
    assert found["targets"] == {}
