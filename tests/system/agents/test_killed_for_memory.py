"""An agent that the kernel kills for want of memory has measured the limit: it is an error, and no score.

Where something that it had started was killed, and it went on, it is scored as usual, with a warning.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.agent_world import SOLVE, Seen, write_task
from support.system_job import Results, SystemTasks
from support.task_writer import BASE_IMAGE
from support.task_writer import write_task as write_oracle_task

from benchflow.hosting.out_of_memory import POLL_INTERVAL_SEC

LIMIT_MB = 160
MEMORY = f"memory_mb = {LIMIT_MB}"
HOG = """python3 -c "x = b'x' * 400_000_000" """
TOOL = {"run": HOG}
"""A tool call whose process is killed. The kernel chooses the largest process, which is not the agent."""

BEHIND_A_WRAPPER = [TOOL, {"error": "the model's process was terminated by signal SIGKILL"}]
"""What a wrapper does whose inner agent is killed."""

GOES_ON = [TOOL, {"wait": 3 * POLL_INTERVAL_SEC}, {"run": "true"}, {"error": "no such model"}]

KILLED = {
    "hog": [{"say": "so far"}, SOLVE, {"hog": 400}],
    "hog-behind-a-wrapper": [SOLVE, *BEHIND_A_WRAPPER],
    "hog-that-hangs": [SOLVE, TOOL, {"hang": True}],
}
"""Agents that have solved their task, so that a verifier would score them, by what they do."""

WALL_SEC = 5

VERIFIER = f"echo 1 > /logs/verifier/reward.txt\n{HOG}\nexit $?\n"
VERIFIER_THAT_GOES_ON = f"{HOG}\necho 1 > /logs/verifier/reward.txt\n"


def killed_task(root: Path, name: str, suffix: str = "") -> Path:
    limit = f"[agent]\ntimeout_sec = {WALL_SEC}\n" if name == "hog-that-hangs" else ""
    return write_task(root, name + suffix, KILLED[name], environment=MEMORY, config=limit)


def oracle_task(root: Path, name: str, **scripts: str) -> Path:
    return write_oracle_task(root, name, environment=MEMORY, dockerfile=f"FROM {BASE_IMAGE}\n", **scripts)


def system_tasks(root: Path) -> SystemTasks:
    tool = [SOLVE, TOOL, {"say": "went on"}]
    oracle = "touch /root/answer\n" + HOG
    return {
        "turns": [
            write_task(root, "tool-then-another-error", [SOLVE, *GOES_ON], environment=MEMORY),
            *(killed_task(root, name) for name in KILLED),
            write_task(root, "hungry-tool", tool, environment=MEMORY),
        ],
        "turns_in_docker": [
            killed_task(root, "hog", "-in-docker"),
            write_task(root, "hungry-tool-in-docker", tool, environment=MEMORY),
        ],
        "local": [
            oracle_task(root, "hungry-oracle", solve=oracle),
            oracle_task(root, "hungry-oracle-that-goes-on", solve=f"{oracle}\ntrue\n"),
            oracle_task(root, "hungry-verifier", test=VERIFIER),
            oracle_task(root, "hungry-verifier-that-goes-on", test=VERIFIER_THAT_GOES_ON),
        ],
        "docker": [oracle_task(root, "hungry-oracle-in-docker", solve=oracle)],
    }


def assert_killed(seen: Seen) -> None:
    error = seen.error
    assert (error.type, error.category, error.phase) == ("SandboxMemoryError", "sandbox_memory", "execute")
    assert f"at its memory limit (limit {LIMIT_MB} MiB, peak 1" in error.message
    assert (error.key, error.retryable) == ("environment.memory_mb", False)
    assert "raise environment.memory_mb" in str(error.remedy)
    result = seen.result
    assert (result.status, result.rewards, result.attempt) == ("errored", None, 1)
    assert result.error_category == "sandbox_memory"
    assert all(outcome.verify is None for outcome in result.steps)
    assert not (seen.paths.verifier / "test-stdout.txt").exists()


def assert_went_on(seen: Seen) -> None:
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    (warning,) = [text for text in seen.result.warnings if "killed" in text]
    assert warning.startswith("the kernel killed 1 process of the sandbox at its memory limit")
    assert f"limit {LIMIT_MB} MiB" in warning and warning.endswith("during a turn; the agent went on")


@pytest.mark.local
@pytest.mark.parametrize("name", KILLED)
def test_an_agent_that_is_killed_for_memory_is_an_error_and_no_score(turns_results: Results, name: str) -> None:
    assert_killed(Seen(turns_results[name]))


@pytest.mark.docker
def test_an_agent_that_is_killed_in_docker_is_an_error_and_no_score(turns_in_docker_results: Results) -> None:
    assert_killed(Seen(turns_in_docker_results["hog-in-docker"]))


@pytest.mark.local
def test_the_trajectory_says_how_the_agent_ended_and_why(turns_results: Results) -> None:
    seen = Seen(turns_results["hog"])
    ended, why = seen.of("agent_error")
    assert ended["category"] == "agent_exit" and "SIGKILL" in ended["message"]
    assert (why["category"], why["message"]) == ("sandbox_memory", seen.error.message)
    assert ended["message"] in why["message"]
    assert json.loads(seen.journal("exit.json")) == {"code": None, "signal": "SIGKILL"}


@pytest.mark.local
def test_an_agent_whose_tool_is_killed_goes_on_and_is_scored(turns_results: Results) -> None:
    assert_went_on(Seen(turns_results["hungry-tool"]))


@pytest.mark.docker
def test_an_agent_whose_tool_is_killed_in_docker_is_scored(turns_in_docker_results: Results) -> None:
    assert_went_on(Seen(turns_in_docker_results["hungry-tool-in-docker"]))


@pytest.mark.local
def test_what_goes_wrong_after_the_agent_went_on_is_no_want_of_memory(turns_results: Results) -> None:
    seen = Seen(turns_results["tool-then-another-error"])
    assert seen.error.category == "agent_protocol" and "no such model" in seen.error.message
    assert seen.result.rewards == {"reward": 1.0}
    assert any("went on" in warning for warning in seen.result.warnings)


# --- the engine's own agent, and verifiers --------------------------------------------------------------


@pytest.mark.local
def test_an_oracle_that_is_killed_is_an_error_and_no_score(local_results: Results) -> None:
    assert_killed(Seen(local_results["hungry-oracle"]))
    assert_went_on(Seen(local_results["hungry-oracle-that-goes-on"]))


@pytest.mark.docker
def test_an_oracle_that_is_killed_in_docker_is_an_error_and_no_score(docker_results: Results) -> None:
    assert_killed(Seen(docker_results["hungry-oracle-in-docker"]))


@pytest.mark.local
def test_a_verifier_that_is_killed_for_memory_scores_nothing(local_results: Results) -> None:
    result = local_results["hungry-verifier"]
    assert (result.status, result.rewards, result.attempt) == ("errored", None, 1)
    error = result.verifier_error
    assert error is not None and (error.type, error.category) == ("VerifierMemoryError", "verifier_memory")
    assert f"limit {LIMIT_MB} MiB" in error.message and "raise memory_mb" in str(error.remedy)
    assert result.error_category == "verifier_memory"


@pytest.mark.local
def test_a_verifier_that_goes_on_scores_with_a_warning(local_results: Results) -> None:
    result = local_results["hungry-verifier-that-goes-on"]
    assert result.rewards == {"reward": 1.0}
    assert any("while the verifier ran; it went on" in warning for warning in result.warnings)
