"""Aggregation of named metrics to one reward, by an `AggregatePolicy`. The origin of the metrics is not known here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from benchflow.contracts.reward import AggregatePolicy, VerifyResult
from benchflow.errors import RewardScalarError, VerifierError


def aggregate_metrics(metrics: Mapping[str, float], policy: AggregatePolicy) -> float:
    """Return the reward that the policy makes of the metrics.

    Args:
        metrics: Metrics by name.
        policy: Method, threshold and weights. Without weights all metrics weigh 1; with weights the others are ignored.

    Raises:
        VerifierError: There is no metric, one with a weight is missing, or the weights of a mean sum to 0 or less.
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
            return compute_weighted_mean((weights[name], value) for name, value in counted.items())
        case "threshold":
            mean = compute_weighted_mean((weights[name], value) for name, value in counted.items())
            return float(mean >= policy.threshold)


def require_scalar(result: VerifyResult, who: str, *, of_only_key: bool = True) -> None:
    """Raise `RewardScalarError` for a result of several keys without a scalar.

    Args:
        result: Result of a verifier.
        who: Subject of the error's sentence: the consumer that needs one number.
        of_only_key: Whether a scalar counts that is the value of the only key, whatever its name.
    """
    if not result.is_keyed and (of_only_key or result.only_key is None):
        return
    raise RewardScalarError(
        f"{who} needs one number, and the verifier reported {', '.join(result.items)}, none of which is the reward",
        key="verifier.reward_key",
        remedy="name the key that is (verifier.reward_key of the task, --reward-key of the job), or make one of them "
        "by the aggregate policy of the task's reward table",
    )


def compute_weighted_mean(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the mean of (weight, value) pairs. It is rounded once, so that the mean of ones is 1 for any weights.

    Raises:
        VerifierError: The weights sum to 0 or less, or a number is NaN or infinite.
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
