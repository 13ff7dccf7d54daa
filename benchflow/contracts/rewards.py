"""What a rollout's steps add up to: its rewards, and whether a step was good enough for the next to be run.

Live scoring and scoring again use the same rules, which is why they are here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.rollout import Failure, Status, StepOutcome

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


_NOT_WORTH_SCORING = frozenset({"gateway", "model_endpoint", "sandbox_memory", "service"})


def is_worth_scoring(error: Failure | None) -> bool:
    """Return whether a verifier is run on the state that a turn led to which ended with an error.

    It is not where the world broke, the model was away or the agent was killed: what it would find is not what the
    agent did.
    """
    return error is None or error.category not in _NOT_WORTH_SCORING


def is_measured(error: Failure | None) -> bool:
    """Return whether the rewards of earlier steps count for a rollout that ended with an error.

    They do after an error of the agent's own. After any other they would be the rewards of a rollout that went on no
    longer because the engine, the world or somebody's wish ended it: a number that nobody measured.
    """
    return error is None or error.category in _OF_THE_AGENT


def scalar_of(rewards: Mapping[str, float] | None) -> float | None:
    """Return the scalar of a rollout's rewards; None where there is none, or nothing was measured."""
    return None if rewards is None else rewards.get("reward")


def status_of(rewards: Mapping[str, float] | None) -> Status:
    """Return how a rollout with these rewards has ended, which was not cancelled."""
    if rewards is None:
        return "errored"
    scalar = scalar_of(rewards)
    if scalar is None:
        return "scored"
    return "passed" if scalar >= 1.0 else "failed"


def shown_keys(rewards: Mapping[str, float] | None) -> str:
    """Return rewards of several keys as a table shows them, `a 0.5, b 1`; a dash where nothing was measured."""
    return ", ".join(f"{name} {value:.3g}" for name, value in (rewards or {}).items()) or "–"


def combine_steps(
    steps: Sequence[StepOutcome], strategy: Literal["mean", "final"], error: Failure | None
) -> tuple[dict[str, float] | None, Failure | None]:
    """The rewards of a rollout, or how a verifier failed; None as soon as one step that was run could not be scored."""
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
    """Return the mean of each key that a verifier reported, and the scalar of them if a single key is left.

    A key that a step did not report counts as 0 there, unless one of its functions failed: then it has no mean.
    """
    means = {
        key: sum(verify.reported.get(key, 0.0) for verify in scored) / len(scored)
        for key in dict.fromkeys(key for verify in scored for key in verify.reported)
        if not any(verify.errors and key not in verify.reported for verify in scored)
    }
    if len(only := {verify.only_key for verify in scored}) == 1 and only.pop() is not None:
        # Of a step whose scalar was replaced because of tampering, the key is not the scalar any more.
        scalar = sum(verify.rewards["reward"] for verify in scored) / len(scored)
        return {"reward": scalar} | {name: mean for name, mean in means.items() if name != "reward"}
    return means


def _unscored(verify: VerifyResult | None) -> Failure | None:
    """Why a result that the verifier did give has no rewards."""
    if verify is None or verify.is_scored:
        return None
    message = verify.error or "the reward could not be made of what was measured"
    return Failure(type="RewardFuncError", category="reward_func", message=message, phase="verify")


def first_failure(steps: Sequence[StepOutcome]) -> Failure | None:
    """Return how an agent failed first in these steps; None if it has not."""
    return next((step.turn.failure for step in steps if step.turn.failure is not None), None)


def leads_on(outcome: StepOutcome) -> bool:
    """Return whether the step after this one may be run."""
    step = outcome.step
    if outcome.verify is not None:
        return step.scored and reaches(outcome.verify, step.min_reward)
    return not step.scored and outcome.turn.failure is None and outcome.verifier_error is None


def reaches(verify: VerifyResult, minimum: float | dict[str, float] | None) -> bool:
    """Return whether a step's rewards are enough for the next step. A key that the verifier did not report is not."""
    if minimum is None:
        return True
    wanted = minimum if isinstance(minimum, dict) else {"reward": minimum}
    rewards = verify.reported
    return all(key in rewards and rewards[key] >= value for key, value in wanted.items())
