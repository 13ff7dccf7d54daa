"""What a verifier does, and how the agent before it ended, decides a rollout."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.system_job import Results, SystemTasks
from support.task_writer import BASE_IMAGE, write_task

from benchflow.contracts.rollout import RolloutResult

pytestmark = pytest.mark.local

TEXT, JSON = "/logs/verifier/reward.txt", "/logs/verifier/reward.json"

# Name, what the verifier does, the error it leads to, and what its message says. All that can be in a reward file is in
# tests/unit/planes/reward/test_script.py.
BROKEN = [
    ("nan", f"echo NaN > {TEXT}", "RewardFileError", "NaN"),
    ("out-of-range", f"echo 1.5 > {TEXT}", "RewardFileError", "outside the reward range"),
    ("a-link", f"ln -s /etc/hostname {TEXT}", "RewardMissingError", "wrote no reward"),
    ("never", "echo I forgot; exit 3", "RewardMissingError", "exit status 3"),
    ("planted-reward", "true", "RewardMissingError", "wrote no reward"),
]

DOCKERFILE = f"FROM {BASE_IMAGE}\n"
HANGS = "sleep 600 & echo $! > /tmp/child; wait"
SHORT = "[verifier]\ntimeout_sec = 2\n"


def system_tasks(root: Path) -> SystemTasks:
    wins = f"echo 1 > {TEXT}\n"

    def task(name: str, test: str, **more: str) -> Path:
        return write_task(root, name, test=test, dockerfile=DOCKERFILE, **more)

    tasks = [task(name, f"{script}\n") for name, script, _, _ in BROKEN if name != "planted-reward"]
    tasks += [
        task("planted-reward", "true\n", solve=f"mkdir -p /logs/verifier; echo 1 > {TEXT}\n"),
        task("hangs-after-reward", f"echo 1 > {TEXT}; {HANGS}\n", config=SHORT),
        task("agree", f'echo 0.5 > {TEXT}; echo \'{{"reward": 0.5, "speed": 3}}\' > {JSON}\n'),
        task("wider", f"echo -2 > {TEXT}\n", config="[verifier]\nreward_range = [-5, 1]\n"),
        task("exits-nonzero", f"echo 0.25 > {TEXT}; exit 4\n"),
        task("oracle-late", wins, solve=f"echo 1 > /root/half; {HANGS}\n", config="[solution]\ntimeout_sec = 1\n"),
        task("oracle-fails", f"echo 0.5 > {TEXT}\n", solve="echo no luck; exit 7\n"),
    ]
    return {"local": tasks}


def long_system_tasks(root: Path) -> SystemTasks:
    return {"local": [write_task(root, "hangs", test=f"{HANGS}\n", dockerfile=DOCKERFILE, config=SHORT)]}


@pytest.mark.parametrize(("name", "error", "says"), [(name, error, says) for name, _, error, says in BROKEN])
def test_a_reward_that_cannot_be_read_is_an_error_and_no_reward(
    local_results: Results, name: str, error: str, says: str
) -> None:
    result = local_results[name]
    assert (result.status, result.rewards, result.error) == ("errored", None, None)
    assert result.verifier_error is not None
    assert result.verifier_error.type == error
    assert result.verifier_error.phase == "verify"
    assert says in result.verifier_error.message
    assert result.verifier_error.remedy
    assert result.error_category == result.verifier_error.category


def test_a_verifier_that_writes_nothing_shows_the_end_of_its_output(local_results: Results) -> None:
    error = local_results["never"].verifier_error
    assert error is not None and "I forgot" in str(error.log_tail)


@pytest.mark.parametrize("name", ["hangs-after-reward", pytest.param("hangs", marks=pytest.mark.long)])
def test_a_verifier_that_hangs_is_ended_and_measures_nothing(local_results: Results, name: str) -> None:
    result = local_results[name]
    assert (result.status, result.rewards) == ("errored", None)
    assert result.verifier_error is not None
    assert result.verifier_error.type == "VerifierTimeoutError"
    assert result.verifier_error.key == "verifier.timeout_sec"
    # What it waits for would take much longer.
    assert result.timing["verify"] < 300


def test_two_reward_files_that_agree_are_one_reward(local_results: Results) -> None:
    assert local_results["agree"].rewards == {"reward": 0.5, "speed": 3.0}
    assert local_results["agree"].status == "failed"


def test_a_wider_reward_range_is_kept(local_results: Results) -> None:
    assert local_results["wider"].rewards == {"reward": -2.0}


def test_a_verifier_that_ends_badly_after_writing_counts_with_a_warning(
    local_results: Results,
) -> None:
    result = local_results["exits-nonzero"]
    assert result.rewards == {"reward": 0.25}
    assert any("exit status 4" in warning for warning in result.warnings)


def test_an_agent_that_ran_out_of_time_is_still_verified(local_results: Results) -> None:
    result = local_results["oracle-late"]
    assert result.rewards == {"reward": 1.0}
    assert result.error is not None and result.error.type == "AgentTimeoutError"
    assert result.error_category == "agent_timeout"
    assert result.is_truncated
    assert result.timing["execute"] < 300
    journal = Path(str(result.directory)) / "trajectory" / "acp_trajectory.jsonl"
    assert '"agent_timeout"' in journal.read_text()


def test_an_agent_that_failed_is_still_verified(local_results: Results) -> None:
    result = local_results["oracle-fails"]
    assert result.rewards == {"reward": 0.5}
    assert result.error is not None and result.error.type == "AgentExitError"
    assert "no luck" in str(result.error.log_tail)
    assert not result.is_truncated


def test_the_typed_error_is_in_the_file_that_readers_open(local_results: Results) -> None:
    text = (Path(str(local_results["nan"].directory)) / "result.json").read_text()
    read = RolloutResult.model_validate_json(text)
    assert read.verifier_error == local_results["nan"].verifier_error
    assert '"rewards": null' in text
