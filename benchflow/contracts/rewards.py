"""What a rollout's steps add up to: its rewards, and whether a step was good enough for the next to be run.

Live scoring and scoring again use the same rules, which is why they are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollout import Failure, StepOutcome

UNMEASURED = frozenset({"sandbox_lost", "service", "cancelled", "deadline", "replay_diverged", "usage"})
"""Errors after which no reward counts, even where an earlier step was scored."""


def combine_steps(
    steps: Sequence[StepOutcome], strategy: Literal["mean", "final"], error: Failure | None
) -> tuple[dict[str, float] | None, Failure | None]:
    """The rewards of a rollout, or how a verifier failed; None as soon as one step that was run could not be scored."""
    for outcome in steps:
        failure = outcome.verifier_error or _unscored(outcome.verify)
        if failure is not None:
            return None, failure
    scored = [outcome.verify for outcome in steps if outcome.verify is not None]
    if not scored or (error is not None and error.category in UNMEASURED):
        return None, None
    if strategy == "final":
        return scored[-1].rewards, None
    keys = {key: None for verify in scored for key in verify.rewards}
    means = {key: _mean(scored, key) for key in keys}
    return {key: value for key, value in means.items() if value is not None}, None


def _mean(scored: Sequence[VerifyResult], key: str) -> float | None:
    """A metric that a step does not have counts as 0 there; None where a function may have failed to measure it."""
    if any(key not in verify.rewards and verify.errors for verify in scored):
        return None
    return sum(verify.rewards.get(key, 0.0) for verify in scored) / len(scored)


def _unscored(verify: VerifyResult | None) -> Failure | None:
    """Why a result that the verifier did give has no reward."""
    if verify is None or verify.reward is not None:
        return None
    message = verify.error or "the reward could not be made of what was measured"
    return Failure(type="RewardFuncError", category="reward_func", message=message, phase="verify")


def reaches(verify: VerifyResult, minimum: float | dict[str, float] | None) -> bool:
    """Whether a step's rewards are enough for the next step."""
    if minimum is None:
        return True
    wanted = minimum if isinstance(minimum, dict) else {"reward": minimum}
    rewards = verify.rewards
    return all(rewards.get(key, 0.0) >= value for key, value in wanted.items())
