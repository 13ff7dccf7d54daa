"""What a rollout's steps add up to: its rewards, and whether a step was good enough for the next to be run."""

from __future__ import annotations

from collections.abc import Sequence

from benchflow.contracts.activities import RolloutPlan
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollout import TRUNCATING, Failure, StepOutcome

__all__ = ["TRUNCATING", "UNMEASURED", "reaches", "rewards_of"]

UNMEASURED = frozenset({"sandbox_lost", "service", "cancelled", "deadline", "replay_diverged"})
"""Errors after which no reward counts, even where an earlier step was scored."""


def rewards_of(
    steps: Sequence[StepOutcome], plan: RolloutPlan | None, error: Failure | None
) -> tuple[dict[str, float] | None, Failure | None]:
    """The rewards of a rollout, or how a verifier failed; None as soon as one step that was run could not be scored."""
    for outcome in steps:
        if outcome.verifier_error is not None:
            return None, outcome.verifier_error
    scored = [outcome.verify.rewards for outcome in steps if outcome.verify is not None]
    unfinished = error is not None and error.category in UNMEASURED
    if not scored or plan is None or unfinished:
        return None, None
    if plan.strategy == "final":
        return scored[-1], None
    keys = {key: None for rewards in scored for key in rewards}
    return {key: sum(r.get(key, 0.0) for r in scored) / len(scored) for key in keys}, None


def reaches(verify: VerifyResult, minimum: float | dict[str, float] | None) -> bool:
    """Whether a step's rewards are enough for the next step."""
    if minimum is None:
        return True
    wanted = minimum if isinstance(minimum, dict) else {"reward": minimum}
    rewards = verify.rewards
    return all(rewards.get(key, 0.0) >= value for key, value in wanted.items())
