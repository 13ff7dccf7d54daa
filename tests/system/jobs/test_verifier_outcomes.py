"""What a verifier does, and how the agent before it ended, decides a rollout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.system_job import Results, SystemTasks
from support.task_writer import BASE_IMAGE, write_step, write_task

from benchflow.contracts.rollout_records import RolloutResult
from benchflow.paths import JobPaths
from benchflow.results.summary import read_results, summarize

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
RELATIVE = f"pwd; [ -e answer.txt ] && echo 1 > {TEXT} || echo 0 > {TEXT}\n"
TWO_KEYS = f'echo \'{{"correctness": 0.5, "style": 1, "winner": "a"}}\' > {JSON}\n'
HANGS = "sleep 600 & echo $! > /tmp/child; wait"
SHORT = "[verifier]\ntimeout_sec = 2\n"


def keyed_steps(root: Path, task_name: str, minimum: str) -> Path:
    """Three steps of two keys each, of which the third needs more than the second has of one of them."""
    steps = "".join(
        f'[[steps]]\nname = "{name}"\nmin_reward = {minimum.format(least=least)}\n'
        for name, least in (("one", 0.5), ("two", 0.9), ("three", 0))
    )
    task = write_task(root, task_name, config=steps, dockerfile=DOCKERFILE)
    for name in ("one", "two", "three"):
        write_step(task, name, solve="true\n", test=TWO_KEYS)
    return task


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
        task("relative", RELATIVE, solve="pwd; echo done > answer.txt\n"),
        task("details", f'echo \'{{"reward": 1, "details": [{{"test": "a"}}]}}\' > {JSON}\n'),
        task("two-keys", TWO_KEYS),
        task("named-key", TWO_KEYS, config='[verifier]\nreward_key = "style"\n'),
        task("weighed-keys", TWO_KEYS, config='[reward.aggregate]\nmethod = "mean"\n'),
        keyed_steps(root, "keyed-steps", "{{ correctness = {least} }}"),
        keyed_steps(root, "keyed-minimum", "{least}"),
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


def test_without_a_workdir_both_scripts_of_the_split_layout_start_in_the_root(local_results: Results) -> None:
    result = local_results["relative"]
    assert result.reward == 1.0
    directory = Path(str(result.directory))
    assert (directory / "verifier" / "test-stdout.txt").read_text() == "/\n"
    assert '"stdout": "/\\n"' in (directory / "trajectory" / "acp_trajectory.jsonl").read_text()


def test_details_of_a_reward_are_metadata(local_results: Results) -> None:
    result = local_results["details"]
    assert result.rewards == {"reward": 1.0}
    assert result.steps[0].verify is not None
    assert result.steps[0].verify.metadata["details"] == [{"test": "a"}]


def test_several_keys_are_kept_per_key_and_are_no_number_that_counts(local_results: Results, local_job: Path) -> None:
    result = local_results["two-keys"]
    assert (result.status, result.rewards, result.reward) == ("scored", {"correctness": 0.5, "style": 1.0}, None)
    assert (result.error, result.verifier_error, result.error_category) == (None, None, None)
    lines = (Path(str(result.directory)) / "rewards.jsonl").read_text().splitlines()
    assert [(line["tag"], line["value"]) for line in map(json.loads, lines)] == [("correctness", 0.5), ("style", 1.0)]
    rows = [json.loads(line) for line in (local_job / "results.jsonl").read_text().splitlines()]
    [row] = [row for row in rows if row["task_name"] == "two-keys"]
    assert (row["reward"], row["status"], row["rewards"]) == (None, "scored", {"correctness": 0.5, "style": 1.0})


def test_a_summary_counts_several_keys_by_key_alone(local_job: Path) -> None:
    results = {result.task_name: result for result in read_results(JobPaths(local_job))}
    keyed = [results["two-keys"], results["details"]]
    summary = summarize("job", 2, keyed)
    assert (summary.scored, summary.passed, summary.failed, summary.errored) == (1, 1, 0, 0)
    (about,) = summary.agents.values()
    assert (summary.mean_reward, about.reward.n, summary.pass_at_k) == (1.0, 1, {"1": 1.0})
    assert {key: value.mean for key, value in about.by_key.items()} == {"correctness": 0.5, "style": 1.0}


@pytest.mark.parametrize(("name", "reward"), [("named-key", 1.0), ("weighed-keys", 0.75)])
def test_a_task_says_what_the_scalar_of_several_keys_is(local_results: Results, name: str, reward: float) -> None:
    rewards = {"correctness": 0.5, "style": 1.0, "reward": reward}
    assert local_results[name].rewards == rewards


def test_steps_go_on_and_are_combined_per_key(local_results: Results) -> None:
    result = local_results["keyed-steps"]
    assert [outcome.step.name for outcome in result.steps] == ["one", "two"]
    assert (result.status, result.rewards) == ("scored", {"correctness": 0.5, "style": 1.0})


def test_a_minimum_that_is_one_number_refuses_several_keys(local_results: Results) -> None:
    result = local_results["keyed-minimum"]
    assert (result.status, result.rewards, result.error_category) == ("errored", None, "reward_scalar")
    assert result.verifier_error is not None and "min_reward" in result.verifier_error.message
    assert [outcome.step.name for outcome in result.steps] == ["one"]


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
