"""Results directories of rollouts that nobody had to run, written by what writes those of real ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollout_records import RolloutResult, Step, StepOutcome, TurnResult
from benchflow.paths import RolloutPaths
from benchflow.results.write import write_rollout
from benchflow.trajectories.journal import append_node, read_journal
from benchflow.trajectories.rollout_tree import build_tree, make_step_node_id

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def said(text: str) -> dict[str, Any]:
    return {"type": "agent_message", "text": text}


def called(title: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_call", "tool_call_id": title, "kind": "other", "title": title, "status": "completed", **more}


def store_rollout(
    directory: Path, turns: Sequence[Sequence[dict[str, Any]]], *, names: Sequence[str | None] = (None,)
) -> Path:
    """The results of a rollout with a turn for each of `names`, of which each was asked `Do <name>.`; all got 1.0."""
    paths = RolloutPaths(directory)
    for index, lines in enumerate(turns):
        append_node(paths.trajectory, make_step_node_id(index), "agent", list(lines))
    steps = [
        StepOutcome(
            step=Step(index=index, name=name, agent="nop"),
            turn=TurnResult(stop_reason="end_turn", events=len(turns[index])),
            verify=VerifyResult(reward=1.0),
        )
        for index, name in enumerate(names)
    ]
    result = RolloutResult(
        rollout_name=directory.name,
        task_name="small-task",
        job_name="job",
        workflow_id="job/r/small-task/nop/0",
        task_digest="0" * 64,
        agent="nop",
        status="passed",
        rewards={"reward": 1.0},
        steps=steps,
        started_at=NOW,
        finished_at=NOW,
        sandbox={"provider": "noop", "workdir": "/work"},
    )
    tree = build_tree("job/r/small-task/nop/0", steps, read_journal(paths.trajectory))
    prompts = [{"step": name, "role": "agent", "text": f"Do {name}."} for name in names]
    write_rollout(paths, result, tree, prompts)
    return directory
