"""Whether a session that is driven through the turns of another one does what that did, and leads where that led."""

from __future__ import annotations

from benchflow.activities.agents import model_of
from benchflow.activities.context import WorkerContext
from benchflow.activities.environments import world_of
from benchflow.checkpoints import difference, world_digests
from benchflow.contracts.activities import StepInput, TakenBefore
from benchflow.contracts.failures import failure_of
from benchflow.contracts.gateway import ReplayStatus
from benchflow.contracts.rollout import TurnResult
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import Task
from benchflow.errors import SessionNotReplayedError

TAKEN_AGAIN = "session_before.trajectory.jsonl"
"""Beside a child's trajectory: what its agent told in the turns that were its parent's."""


async def compared(
    context: WorkerContext, work: StepInput, task: Task, sandbox: Sandbox, turn: TurnResult
) -> TurnResult:
    """A turn that was taken again: it failed where it was not what it was before."""
    if work.before is None or turn.question is not None:
        return turn
    why = turn.failure.message if turn.failure is not None else _otherwise(work.before, turn)
    if why is None and work.before.is_last:
        why = await _not_there(context, work, task, sandbox, turn.replay)
    if why is None:
        return turn
    error = SessionNotReplayedError(f"turn {work.step.index + 1} was not as it was in the parent: {why}")
    return turn.model_copy(update={"failure": failure_of(error)})


def _otherwise(before: TakenBefore, turn: TurnResult) -> str | None:
    if turn.replay is not None and turn.replay.divergence is not None:
        return turn.replay.divergence.message
    if turn.stop_reason != before.stop_reason:
        return f"it ended with {turn.stop_reason}, not with {before.stop_reason}"
    return None


async def _not_there(
    context: WorkerContext, work: StepInput, task: Task, sandbox: Sandbox, replay: ReplayStatus | None
) -> str | None:
    """Why this is not the state that the parent had come to; None when it is."""
    if replay is not None:
        left = replay.left - model_of(context, work.spec, sandbox).left_when_there()
        if left > 0:
            return f"{left} recorded calls of the model were not made again"
    assert work.before is not None
    if work.before.digests is None:
        return None
    world = await world_of(context, work.spec, task, work.sandbox)
    return difference(work.before.digests, await world_digests(sandbox, world))
