"""A rollout run again from the record of its model's calls: to its end, to a node, and where it goes another way."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.agent_world import Seen, run_tasks, write_step
from support.made_once import made_once
from support.model_world import Call, asked_of, calls_of, policy, runs, says, write_model_task
from typer.testing import CliRunner

from benchflow.cli.chosen import choose
from benchflow.cli.command_line import app
from benchflow.cli.resume import plan_replay
from benchflow.contracts.gateway import ReplayStatus
from benchflow.jobs import open_job, submit
from benchflow.paths import JobPaths
from benchflow.results.summary import read_results
from benchflow.testing.scripted_model import ModelRequest, ScriptedModel
from benchflow.testing.scripted_model import ReceivedCall as ModelCall

pytestmark = pytest.mark.local

OTHER_KEY = "another-k3y-zz71"
STEPS = "".join(f'[[steps]]\nname = "{name}"\n' for name in ("one", "two"))
TIME = "date +%s%N > /logs/artifacts/time; echo 42 > answer; echo written by {step}"


def answer(request: ModelRequest) -> dict[str, Any]:
    if request.turn == 0:
        return runs(TIME.format(step="one" if asked_of(request, "one") else "two"))
    return says()


@dataclass(frozen=True)
class Replay:
    """A replay that is over, and what the model was asked for it."""

    seen: Seen
    asked: list[ModelCall]


@dataclass(frozen=True)
class Replays:
    """A rollout that was recorded, and its replays by their name. status: of the command that asked for `whole`."""

    jobs_dir: Path
    recorded: Seen
    status: int
    again: dict[str, Replay]


# By the name of the replay: whether the task is another one by now, and how it is asked for.
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "until": ("same", {"until": "n1", "strict": False}),
    "nowhere": ("same", {"until": "n9", "strict": False}),
    "astray": ("changed", {"until": None, "strict": False}),
    "strictly": ("changed", {"until": None, "strict": True}),
}


@made_once()
def replays(root: Path) -> Replays:
    """Record rollouts of two tasks, change the second step of one of them, and replay them in all ways at once."""
    jobs_dir = root / "jobs"
    tasks = [write_model_task(root, name, config=STEPS) for name in ("same", "changed")]
    for task in tasks:
        for step in ("one", "two"):
            write_step(task, step)
    with ScriptedModel(answer) as model:
        recorded = run_tasks(tasks, jobs_dir, agents=[policy(model)], job_name="recorded")
        for seen in recorded.values():
            assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
        (root / "changed" / "steps" / "two" / "instruction.md").write_text("Do two, and this time by heart.\n")

        async def wait() -> None:
            for name in ASKED:
                await (await open_job(name, jobs_dir)).wait()

        with pytest.MonkeyPatch.context() as patch:
            # The key of the recorded job went with it. Each replay has its own, by which its calls are told.
            for name, (task, how) in ASKED.items():
                patch.setenv("POLICY_API_KEY", f"{OTHER_KEY}-{name}")
                asyncio.run(submit(plan_replay(choose(f"recorded/{task}", jobs_dir), job_name=name, **how)))
            patch.setenv("POLICY_API_KEY", f"{OTHER_KEY}-whole")
            arguments = ["rollout", "replay", "recorded/same", "--job-name", "whole", "--jobs-dir", str(jobs_dir)]
            ran = CliRunner().invoke(app, [*arguments, "--strict"], prog_name="bench")
            asyncio.run(wait())
        again = {}
        for name in (*ASKED, "whole"):
            (result,) = read_results(JobPaths(jobs_dir / name))
            asked = [call for call in model.calls if call.headers["authorization"] == f"Bearer {OTHER_KEY}-{name}"]
            again[name] = Replay(Seen(result), asked)
        assert len(model.calls) == 8 + sum(len(replay.asked) for replay in again.values())
    return Replays(jobs_dir, recorded["same"], ran.exit_code, again)


def sources(calls: list[Call]) -> list[str]:
    return [call.request["source"] for call in calls]


def states(seen: Seen) -> list[ReplayStatus]:
    found = [outcome.turn.replay for outcome in seen.result.steps]
    return [status for status in found if status is not None]


def told(seen: Seen) -> list[dict[str, Any]]:
    """The trajectory without what is new in every run."""
    return [{key: value for key, value in line.items() if key != "ts"} for line in seen.lines]


def test_a_replay_asks_no_model_and_comes_to_the_same(replays: Replays) -> None:
    whole, recorded = replays.again["whole"], replays.recorded
    seen = whole.seen
    assert (replays.status, seen.result.error, seen.result.rewards) == (0, None, {"reward": 1.0})
    assert whole.asked == []
    calls, before = calls_of(seen), calls_of(recorded)
    assert sources(calls) == ["replay"] * 4
    assert [call.response["response"] for call in calls] == [call.response["response"] for call in before]
    assert [call.where for call in calls] == [call.where for call in before]
    assert told(seen) == told(recorded)
    last = states(seen)[-1]
    assert (last.state, last.answered, last.left) == ("replaying", 4, 0)


def test_a_replay_costs_nothing(replays: Replays) -> None:
    for outcome in replays.again["whole"].seen.result.steps:
        assert outcome.turn.usage is not None
        assert (outcome.turn.usage.calls, outcome.turn.usage.input_tokens) == (0, 0)


def test_a_replay_goes_live_after_the_node_that_was_named(replays: Replays) -> None:
    seen = replays.again["until"].seen
    # With the key that it was given itself.
    assert (seen.result.rewards, len(replays.again["until"].asked)) == ({"reward": 1.0}, 2)
    calls = calls_of(seen)
    assert sources(calls) == ["replay", "replay", "live", "live"]
    assert [call.where[0] for call in calls] == ["n1", "n1", "n2", "n2"]
    assert [found.state for found in states(seen)] == ["replaying", "live"]
    assert seen.result.steps[1].turn.usage is not None and seen.result.steps[1].turn.usage.calls == 2


def test_a_node_that_is_not_on_record_is_refused(replays: Replays) -> None:
    seen = replays.again["nowhere"].seen
    assert (seen.error.type, replays.again["nowhere"].asked) == ("ConfigError", [])
    assert "n9" in seen.error.message


def test_a_replay_that_goes_another_way_goes_live_and_says_where(replays: Replays) -> None:
    seen = replays.again["astray"].seen
    assert (seen.result.rewards, len(replays.again["astray"].asked)) == ({"reward": 1.0}, 2)
    assert sources(calls_of(seen)) == ["replay", "replay", "live", "live"]
    divergence = states(seen)[-1].divergence
    assert states(seen)[-1].state == "diverged" and divergence is not None
    assert (divergence.seq, divergence.recorded) == (2, 2)
    assert "-" in divergence.diff and "+" in divergence.diff and "by heart" in divergence.diff
    written = json.loads(seen.paths.result.read_text())["steps"][1]["turn"]["replay"]
    assert written["divergence"]["diff"] == divergence.diff


def test_a_strict_replay_that_goes_another_way_ends_with_an_error(replays: Replays) -> None:
    seen = replays.again["strictly"].seen
    assert replays.again["strictly"].asked == []
    assert seen.error.type == "ReplayDivergedError"
    assert seen.error.category == "replay_diverged"
    assert "by heart" in (seen.error.log_tail or "")
    assert [line["diff"] for line in seen.of("replay_diverged")] == [seen.error.log_tail]
    assert seen.result.rewards is None
    calls = calls_of(seen)
    assert sources(calls)[:2] == ["replay", "replay"]
    assert calls[2].response["error"]["kind"] == "replay_diverged"


def test_a_rollout_without_a_record_cannot_be_replayed(replays: Replays, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    shutil.copytree(replays.jobs_dir / "recorded", jobs / "recorded")
    for record in jobs.rglob("llm_trajectory.jsonl"):
        record.unlink()
    arguments = ["rollout", "replay", "recorded/same", "--jobs-dir", str(jobs)]
    ran = CliRunner().invoke(app, arguments, prog_name="bench")
    assert ran.exit_code == 2
    assert "no record of its model's calls" in ran.stderr
