"""Compare a replayed turn, and the state that it leads to, with the parent's turn."""

from __future__ import annotations

from benchflow.checkpoints import describe_difference, digest_world
from benchflow.contracts.activities import StepInput, TakenBefore
from benchflow.contracts.failures import failure_of
from benchflow.contracts.gateway import ReplayStatus
from benchflow.contracts.rollout_records import TurnResult
from benchflow.errors import ACPError
from benchflow.hosting.hosted import Hosted

TAKEN_AGAIN = "session_before.trajectory.jsonl"
"""File beside a child's trajectory: events of the parent's turns that the child replayed."""


async def compare_turn(rollout: Hosted, work: StepInput, turn: TurnResult) -> TurnResult:
    """Return the result of a turn; if it replays a turn of the parent and differs from it, with a failure.

    Args:
        rollout: The child, attached to its sandbox.
        work: The step, with the parent's turn; without one, and if the turn asks a question, nothing is compared.
        turn: Result of the child's turn.
    """
    if work.before is None or turn.question is not None:
        return turn
    why = turn.failure.message if turn.failure is not None else _compare_results(work.before, turn)
    if why is None and work.before.is_last:
        why = await _compare_states(rollout, work.before, turn.replay)
    if why is None:
        return turn
    error = ACPError(f"turn {work.step.index + 1} was not as it was in the parent: {why}")
    return turn.model_copy(update={"failure": failure_of(error)})


def _compare_results(before: TakenBefore, turn: TurnResult) -> str | None:
    """Return how the turn itself differs from the parent's, as a phrase; None if it does not."""
    if turn.replay is not None and turn.replay.divergence is not None:
        return turn.replay.divergence.message
    if turn.stop_reason != before.stop_reason:
        return f"it ended with {turn.stop_reason}, not with {before.stop_reason}"
    return None


async def _compare_states(rollout: Hosted, before: TakenBefore, replay: ReplayStatus | None) -> str | None:
    """Return how the state after the turn differs from the parent's, as a phrase; None if it does not."""
    if replay is not None:
        left = replay.left - rollout.model.parent_calls.count_calls_left()
        if left > 0:
            return f"{left} recorded calls of the model were not made again"
    if before.digests is None:
        return None
    return describe_difference(before.digests, await digest_world(rollout.sandbox, await rollout.open_world()))
