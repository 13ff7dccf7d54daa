"""Named metrics to one reward, by an `AggregatePolicy`. Where they come from is not known here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from benchflow.contracts.reward import AggregatePolicy, VerifyResult
from benchflow.errors import RewardScalarError, VerifierError


def aggregate_metrics(metrics: Mapping[str, float], policy: AggregatePolicy) -> float:
    """The reward that the policy makes of the metrics.

    Raises `VerifierError` when the metrics cannot be combined: none at all, a weighted one that is missing,
    weights that sum to nothing.
    """
    weights = policy.weights or dict.fromkeys(metrics, 1.0)
    if not weights:
        raise VerifierError("there is no metric to aggregate", remedy="write at least one metric")
    if missing := sorted(weights.keys() - metrics.keys()):
        raise VerifierError(
            f"the aggregate policy weighs {', '.join(missing)}, which the verifier did not report",
            remedy="report every metric that aggregate_policy.weights names",
        )
    counted = {name: metrics[name] for name in weights}
    match policy.method:
        case "all_pass":
            return float(all(value >= policy.threshold for value in counted.values()))
        case "any_pass":
            return float(any(value >= policy.threshold for value in counted.values()))
        case "mean":
            return sum(counted.values()) / len(counted)
        case "weighted_sum":
            return sum(weights[name] * value for name, value in counted.items())
        case "weighted_mean":
            return weighted_mean((weights[name], value) for name, value in counted.items())
        case "threshold":
            mean = weighted_mean((weights[name], value) for name, value in counted.items())
            return float(mean >= policy.threshold)


def require_scalar(result: VerifyResult, who: str, *, of_only_key: bool = True) -> None:
    """Raise `RewardScalarError` for a result of several keys without a scalar.

    who: needs one. of_only_key: the only key does for it, whatever that is called.
    """
    if not result.is_keyed and (of_only_key or result.only_key is None):
        return
    raise RewardScalarError(
        f"{who} needs one number, and the verifier reported {', '.join(result.items)}, none of which is the reward",
        key="verifier.reward_key",
        remedy="name the key that is (verifier.reward_key of the task, --reward-key of the job), or make one of them "
        "by the aggregate policy of the task's reward table",
    )


def weighted_mean(pairs: Iterable[tuple[float, float]]) -> float:
    """The mean of (weight, value) pairs, exact until it is rounded once: of ones it is 1, whatever the weights.

    Raises `VerifierError` when the weights sum to nothing, and for what is no finite number.
    """
    counted = list(pairs)
    try:
        exact = [(Fraction(weight), Fraction(value)) for weight, value in counted]
        total = sum(weight for weight, _ in exact)
        if total > 0:
            return float(sum(weight * value for weight, value in exact) / total)
    except (OverflowError, ValueError) as error:
        raise VerifierError(f"the weights and values of a mean must be finite: {counted}") from error
    raise VerifierError(
        f"the weights of the aggregate policy sum to {'less than ' if total else ''}0",
        remedy="give at least one a positive weight",
    )
