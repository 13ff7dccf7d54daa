"""A rollout run again from the record of its model's calls: to its end, to a node, and where it goes another way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.agent_world import Seen, run_tasks, write_step
from support.model_world import Call, asked_of, calls_of, policy, runs, says, write_model_task
from typer.testing import CliRunner

from benchflow.cli.app import app
from benchflow.contracts.gateway import ReplayStatus
from benchflow.paths import JobPaths
from benchflow.results.summary import read_results
from benchflow.testing.scripted_model import ModelRequest, ScriptedModel

pytestmark = pytest.mark.local

OTHER_KEY = "another-k3y-zz71"
STEPS = "".join(f'[[steps]]\nname = "{name}"\n' for name in ("one", "two"))
TIME = "date +%s%N > /logs/artifacts/time; echo 42 > answer; echo written by {step}"


def answer(request: ModelRequest) -> dict[str, Any]:
    if request.turn == 0:
        return runs(TIME.format(step="one" if asked_of(request, "one") else "two"))
    return says()


@dataclass(frozen=True)
class House:
    """A rollout that was recorded, and the model that it may ask, which counts on."""

    model: ScriptedModel
    jobs: Path
    task: Path
    recorded: Seen

    def replay(self, name: str, *options: str) -> tuple[int, Seen, int]:
        """The exit status, the rollout, and how often the model was asked meanwhile."""
        before = len(self.model.calls)
        arguments = ["rollout", "replay", "recorded/steps", "--job-name", name, "--jobs-dir", str(self.jobs), *options]
        ran = CliRunner().invoke(app, arguments, prog_name="bench")
        (result,) = read_results(JobPaths(self.jobs / name))
        return ran.exit_code, Seen(result), len(self.model.calls) - before


@pytest.fixture(scope="module")
def house(module_jobs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    task = write_model_task(tmp_path_factory.mktemp("replay"), "steps", config=STEPS)
    for step in ("one", "two"):
        write_step(task, step)
    with ScriptedModel(answer) as model, pytest.MonkeyPatch.context() as patch:
        recorded = run_tasks([task], module_jobs, agents=[policy(model)], job_name="recorded")["steps"]
        # The one that the recorded job was given went with it.
        patch.setenv("POLICY_API_KEY", OTHER_KEY)
        assert (recorded.result.error, recorded.result.rewards) == (None, {"reward": 1.0})
        yield House(model, module_jobs, task, recorded)


def sources(calls: list[Call]) -> list[str]:
    return [call.request["source"] for call in calls]


def states(seen: Seen) -> list[ReplayStatus]:
    found = [outcome.turn.replay for outcome in seen.result.steps]
    return [status for status in found if status is not None]


def told(seen: Seen) -> list[dict[str, Any]]:
    """The trajectory without what is new in every run."""
    return [{key: value for key, value in line.items() if key != "ts"} for line in seen.lines]


@pytest.fixture(scope="module")
def whole(house: House) -> tuple[int, Seen, int]:
    return house.replay("whole", "--strict")


def test_a_replay_asks_no_model_and_comes_to_the_same(house: House, whole: tuple[int, Seen, int]) -> None:
    status, seen, asked = whole
    assert (status, seen.result.error, seen.result.rewards) == (0, None, {"reward": 1.0})
    assert asked == 0
    calls, recorded = calls_of(seen), calls_of(house.recorded)
    assert sources(calls) == ["replay"] * 4
    assert [call.response["response"] for call in calls] == [call.response["response"] for call in recorded]
    assert [call.where for call in calls] == [call.where for call in recorded]
    assert told(seen) == told(house.recorded)
    last = states(seen)[-1]
    assert (last.state, last.answered, last.left) == ("replaying", 4, 0)


def test_a_replay_costs_nothing(whole: tuple[int, Seen, int]) -> None:
    _, seen, _ = whole
    for outcome in seen.result.steps:
        assert outcome.turn.usage is not None
        assert (outcome.turn.usage.calls, outcome.turn.usage.input_tokens) == (0, 0)


def test_a_replay_goes_live_after_the_node_that_was_named(house: House) -> None:
    status, seen, asked = house.replay("until", "--until", "n1")
    assert (status, seen.result.rewards, asked) == (0, {"reward": 1.0}, 2)
    calls = calls_of(seen)
    assert sources(calls) == ["replay", "replay", "live", "live"]
    assert [call.where[0] for call in calls] == ["n1", "n1", "n2", "n2"]
    assert {call.headers["authorization"] for call in house.model.calls[-2:]} == {f"Bearer {OTHER_KEY}"}
    assert [found.state for found in states(seen)] == ["replaying", "live"]
    assert seen.result.steps[1].turn.usage is not None and seen.result.steps[1].turn.usage.calls == 2


def test_a_node_that_is_not_on_record_is_refused(house: House) -> None:
    status, seen, asked = house.replay("nowhere", "--until", "n9")
    assert (status, asked) == (2, 0) or (seen.error.type, asked) == ("ConfigError", 0)
    assert "n9" in seen.error.message


@pytest.fixture
def changed(house: House) -> Iterator[House]:
    """The second step is another one than at the time of the record."""
    file = house.task / "steps" / "two" / "instruction.md"
    before = file.read_text()
    file.write_text("Do two, and this time by heart.\n")
    yield house
    file.write_text(before)


def test_a_replay_that_goes_another_way_goes_live_and_says_where(changed: House) -> None:
    status, seen, asked = changed.replay("astray")
    assert (status, seen.result.rewards, asked) == (0, {"reward": 1.0}, 2)
    assert sources(calls_of(seen)) == ["replay", "replay", "live", "live"]
    divergence = states(seen)[-1].divergence
    assert states(seen)[-1].state == "diverged" and divergence is not None
    assert (divergence.seq, divergence.recorded) == (2, 2)
    assert "-" in divergence.diff and "+" in divergence.diff and "by heart" in divergence.diff
    written = json.loads(seen.paths.result.read_text())["steps"][1]["turn"]["replay"]
    assert written["divergence"]["diff"] == divergence.diff


def test_a_strict_replay_that_goes_another_way_ends_with_an_error(changed: House) -> None:
    status, seen, asked = changed.replay("strictly", "--strict")
    assert (status, asked) == (1, 0)
    assert seen.error.type == "ReplayDivergedError"
    assert seen.error.category == "replay_diverged"
    assert "by heart" in (seen.error.log_tail or "")
    assert [line["diff"] for line in seen.of("replay_diverged")] == [seen.error.log_tail]
    assert seen.result.rewards is None
    calls = calls_of(seen)
    assert sources(calls)[:2] == ["replay", "replay"]
    assert calls[2].response["error"]["kind"] == "replay_diverged"


def test_a_rollout_without_a_record_cannot_be_replayed(house: House, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    shutil.copytree(house.jobs / "recorded", jobs / "recorded")
    for record in jobs.rglob("llm_trajectory.jsonl"):
        record.unlink()
    arguments = ["rollout", "replay", "recorded/steps", "--jobs-dir", str(jobs)]
    ran = CliRunner().invoke(app, arguments, prog_name="bench")
    assert ran.exit_code == 2
    assert "no record of its model's calls" in ran.stderr
