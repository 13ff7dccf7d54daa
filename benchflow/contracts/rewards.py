"""Rules that combine the results of a rollout's steps into its rewards and decide whether the next step is run.

Live scoring and rescoring of stored rollouts share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from benchflow.contracts.failures import failure_of
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollout_records import Failure, Status, StepOutcome
from benchflow.errors import RewardFuncError

_OF_THE_AGENT = frozenset(
    {
        "agent",
        "agent_connection",
        "agent_exit",
        "agent_output",
        "agent_protocol",
        "agent_timeout",
        "budget_exhausted",
    }
)
"""Categories of errors that the agent itself causes."""


_NOT_WORTH_SCORING = frozenset({"gateway", "model_endpoint", "sandbox_memory", "service"})
"""Categories of errors after which the state says nothing of the agent."""


def is_worth_scoring(error: Failure | None) -> bool:
    """Return whether a verifier is run on the state to which a turn led.

    It is not run if the environment failed, the model was unavailable or the agent was killed for memory: the state
    would not be the agent's work.

    Args:
        error: Error with which the turn ended; None if it ended well.
    """
    return error is None or error.category not in _NOT_WORTH_SCORING


def is_measured(error: Failure | None) -> bool:
    """Return whether the rewards of a rollout's steps count as its rewards.

    They do after an error of the agent's own. After any other, the rollout was ended by the engine, the environment or
    a cancellation, and the rewards of its first steps would not measure the agent.

    Args:
        error: Error with which the rollout ended; None if it ended well.
    """
    return error is None or error.category in _OF_THE_AGENT


def scalar_of(rewards: Mapping[str, float] | None) -> float | None:
    """Return the scalar reward of a rollout; None if its rewards have no scalar, or nothing was measured.

    Args:
        rewards: Rewards by key, the scalar as `reward`; None if nothing was measured.
    """
    return None if rewards is None else rewards.get("reward")


def status_of(rewards: Mapping[str, float] | None) -> Status:
    """Return the status of a rollout that was not cancelled: a scalar reward of 1 or more has passed.

    Args:
        rewards: Rewards by key, the scalar as `reward`; None if nothing was measured.
    """
    if rewards is None:
        return "errored"
    scalar = scalar_of(rewards)
    if scalar is None:
        return "scored"
    return "passed" if scalar >= 1.0 else "failed"


def shown_keys(rewards: Mapping[str, float] | None) -> str:
    """Format rewards of several keys for a table, as `a 0.5, b 1`; a dash if nothing was measured."""
    return ", ".join(f"{name} {value:.3g}" for name, value in (rewards or {}).items()) or "–"


def combine_steps(
    steps: Sequence[StepOutcome], strategy: Literal["mean", "final"], error: Failure | None
) -> tuple[dict[str, float] | None, Failure | None]:
    """Combine the rewards of a rollout's steps.

    Args:
        steps: Outcomes of the steps that were run, in order.
        strategy: `mean` for the mean of each key over the scored steps, `final` for the rewards of the last scored one.
        error: Error with which the rollout ended; None if it ended well.

    Returns:
        The rollout's rewards and None; or None and the failure of the first step that could not be scored. Both are
        None if no step was scored, or the error is one after which rewards do not count (`is_measured`).
    """
    for outcome in steps:
        failure = outcome.verifier_error or _unscored(outcome.verify)
        if failure is not None:
            return None, failure
    scored = [outcome.verify for outcome in steps if outcome.verify is not None]
    if not scored or not is_measured(error):
        return None, None
    if strategy == "final":
        return scored[-1].rewards, None
    return _means(scored), None


def _means(scored: Sequence[VerifyResult]) -> dict[str, float]:
    """Return the mean of each reported key over the steps, and a scalar if all steps reported the same only key.

    A key that a step did not report counts as 0 there. It has no mean if a reward function of that step failed.
    """
    means = {
        key: sum(verify.reported.get(key, 0.0) for verify in scored) / len(scored)
        for key in dict.fromkeys(key for verify in scored for key in verify.reported)
        if not any(verify.errors and key not in verify.reported for verify in scored)
    }
    if len(only := {verify.only_key for verify in scored}) == 1 and only.pop() is not None:
        # If a step's scalar was replaced because of tampering, it is not the value of the key any more.
        scalar = sum(verify.rewards["reward"] for verify in scored) / len(scored)
        return {"reward": scalar} | {name: mean for name, mean in means.items() if name != "reward"}
    return means


def _unscored(verify: VerifyResult | None) -> Failure | None:
    """Return the failure of a verifier that gave a result without rewards; None if it gave rewards or no result."""
    if verify is None or verify.is_scored:
        return None
    message = verify.error or "the reward could not be made of what was measured"
    return failure_of(RewardFuncError(message), "verify")


def first_failure(steps: Sequence[StepOutcome]) -> Failure | None:
    """Return the agent's first failure in these steps; None if it has not failed."""
    return next((step.turn.failure for step in steps if step.turn.failure is not None), None)


def leads_on(outcome: StepOutcome) -> bool:
    """Return whether the step after this one may be run.

    After a verified step it may if that step is scored and its rewards reach its `min_reward`. After a step without
    verification it may if that step is not to be scored and nothing failed.
    """
    step = outcome.step
    if outcome.verify is not None:
        return step.scored and reaches(outcome.verify, step.min_reward)
    return not step.scored and outcome.turn.failure is None and outcome.verifier_error is None


def reaches(verify: VerifyResult, minimum: float | dict[str, float] | None) -> bool:
    """Return whether the rewards of a step are high enough for the next step to be run.

    Args:
        verify: Result of the step's verifier.
        minimum: Least value of the scalar reward, or of each named key, all of which the verifier must have reported;
            None if any rewards will do.
    """
    if minimum is None:
        return True
    wanted = minimum if isinstance(minimum, dict) else {"reward": minimum}
    rewards = verify.reported
    return all(key in rewards and rewards[key] >= value for key, value in wanted.items())
