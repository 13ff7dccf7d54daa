"""Compare a turn that is taken again with the parent's, and the state that it leads to."""

from __future__ import annotations

from benchflow.checkpoints import difference, world_digests
from benchflow.contracts.activities import StepInput, TakenBefore
from benchflow.contracts.failures import failure_of
from benchflow.contracts.gateway import ReplayStatus
from benchflow.contracts.rollout import TurnResult
from benchflow.errors import SessionNotReplayedError
from benchflow.hosting.hosted import Hosted

TAKEN_AGAIN = "session_before.trajectory.jsonl"
"""File beside a child's trajectory: events of the turns that were its parent's."""


async def compared(rollout: Hosted, work: StepInput, turn: TurnResult) -> TurnResult:
    """Return the result of a turn that was taken again: a failure where it differs from the parent's."""
    if work.before is None or turn.question is not None:
        return turn
    why = turn.failure.message if turn.failure is not None else _turn_difference(work.before, turn)
    if why is None and work.before.is_last:
        why = await _state_difference(rollout, work.before, turn.replay)
    if why is None:
        return turn
    error = SessionNotReplayedError(f"turn {work.step.index + 1} was not as it was in the parent: {why}")
    return turn.model_copy(update={"failure": failure_of(error)})


def _turn_difference(before: TakenBefore, turn: TurnResult) -> str | None:
    if turn.replay is not None and turn.replay.divergence is not None:
        return turn.replay.divergence.message
    if turn.stop_reason != before.stop_reason:
        return f"it ended with {turn.stop_reason}, not with {before.stop_reason}"
    return None


async def _state_difference(rollout: Hosted, before: TakenBefore, replay: ReplayStatus | None) -> str | None:
    """Return why this is not the state that the parent had reached; None when it is."""
    if replay is not None:
        left = replay.left - rollout.model.parent_calls.left_when_there()
        if left > 0:
            return f"{left} recorded calls of the model were not made again"
    if before.digests is None:
        return None
    return difference(before.digests, await world_digests(rollout.sandbox, await rollout.world()))
