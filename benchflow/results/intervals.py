"""Confidence intervals of mean rewards, clipped to the range that the rewards can have."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchflow.contracts.base import Model

Z95 = 1.959963984540054
"""Normal quantile of a two-sided 95 % interval."""

Method = Literal["wilson", "wilson_by_task", "t_by_task", "t"]


class Interval(Model):
    """A mean, and its confidence interval where one can be estimated."""

    mean: float | None = None
    """Mean of the values; None if there are none."""

    low: float | None = None
    """Lower end; None where the spread cannot be estimated (a single value, or equal ones that are not all 0 or 1)."""

    high: float | None = None
    """Upper end; None as `low`."""

    level: float = 0.95
    """Share of such intervals that hold the true mean, if the assumptions of `method` are met."""

    method: Method | None = None
    """`wilson`: score interval of rewards that are all 0 or 1; assumes that rollouts are independent.
    `wilson_by_task`: the same of several tasks with repeats, where so many rollouts count as the likeness of a task's
    repeats leaves of them; assumes that tasks are independent. `t_by_task`: Student's t with tasks as clusters; assumes
    that tasks are independent. `t`: Student's t over the repeats of the only task. None: no interval.
    """

    n: int = 0
    """Number of values."""

    n_tasks: int = 0
    """Number of tasks that the values come from."""


@dataclass(frozen=True)
class Sample:
    """Reward of one rollout."""

    task: str
    """Name of the rollout's task."""
    value: float
    allowed: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest reward that the task can give."""


def estimate(samples: Sequence[Sample], *, is_trial: bool = True) -> Interval:
    """Return the mean of rewards and its 95 % confidence interval.

    Args:
        samples: Rewards, in any order.
        is_trial: Whether a reward of 0 or 1 is a failure or a success, so that Wilson's interval applies. False for
            V(s), which is a mean itself.
    """
    if not samples:
        return Interval()
    values = [sample.value for sample in samples]
    tasks = {sample.task for sample in samples}
    found = Interval(mean=statistics.fmean(values), n=len(values), n_tasks=len(tasks))
    if is_trial and set(values) <= {0.0, 1.0}:
        has_repeats = 1 < len(tasks) < len(values)
        n = _compute_effective_n(found, samples) if has_repeats else len(values)
        return found.model_copy(
            update={"method": "wilson_by_task" if has_repeats else "wilson", **_compute_wilson(found, n)}
        )
    if len(set(values)) < 2:
        return found
    return found.model_copy(
        update={"method": "t_by_task" if len(tasks) > 1 else "t", **_compute_student(found, samples)}
    )


def _compute_effective_n(found: Interval, samples: Sequence[Sample]) -> float:
    """Return the number of independent rollouts that would be as informative as these, whose repeats are correlated.

    It is their number divided by the design effect: the variance of the mean with tasks as clusters, over that of
    independent rollouts. If all rewards are equal, the design effect cannot be estimated, and each task counts once.
    """
    p, n, clusters = found.mean or 0.0, found.n, found.n_tasks
    if p in (0.0, 1.0):
        return clusters
    effect = _compute_robust_variance(p, samples) / (p * (1 - p) / n)
    return max(float(min(clusters, n)), n / max(1.0, effect))


def _compute_robust_variance(mean: float, samples: Sequence[Sample]) -> float:
    """Return the cluster-robust variance of a mean, with tasks as clusters."""
    by_task: dict[str, float] = defaultdict(float)
    for sample in samples:
        by_task[sample.task] += sample.value - mean
    clusters = len(by_task)
    return clusters / (clusters - 1) * sum(sum_ * sum_ for sum_ in by_task.values()) / len(samples) ** 2


def _compute_wilson(found: Interval, n: float) -> dict[str, float]:
    p = found.mean or 0.0
    middle = p + Z95**2 / (2 * n)
    half = Z95 * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
    # Rounding errors must not move an end across the mean, or beyond 0 or 1.
    low, high = ((middle + side) / (1 + Z95**2 / n) for side in (-half, half))
    return {"low": min(p, max(0.0, low)), "high": max(p, min(1.0, high))}


def _compute_student(found: Interval, samples: Sequence[Sample]) -> dict[str, float]:
    """Return the ends of Student's t interval, clipped to the possible values of the mean.

    With several tasks the standard error is the cluster-robust one, since repeats of a task are correlated and tell
    nothing about other tasks. With few tasks it may by chance be smaller than the standard error of independent values;
    the larger of the two is used.
    """
    mean, n = found.mean or 0.0, found.n
    error = statistics.stdev(sample.value for sample in samples) / math.sqrt(n)
    clusters = found.n_tasks
    if clusters > 1:
        error = max(error, math.sqrt(_compute_robust_variance(mean, samples)))
    half = compute_t_quantile((clusters if clusters > 1 else n) - 1) * error
    lowest = statistics.fmean(min(sample.value, sample.allowed[0]) for sample in samples)
    highest = statistics.fmean(max(sample.value, sample.allowed[1]) for sample in samples)
    return {"low": min(mean, max(lowest, mean - half)), "high": max(mean, min(highest, mean + half))}


def compute_t_quantile(df: int) -> float:
    """Return the quantile of Student's t distribution for a two-sided 95 % interval with `df` degrees of freedom."""
    if df >= 1000:
        # The next term of the expansion is below 1e-5.
        return Z95 + (Z95**3 + Z95) / (4 * df)
    low, high = Z95, 13.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _compute_central_mass(middle, df) < 0.95 else (low, middle)
    return (low + high) / 2


def _compute_central_mass(t: float, df: int) -> float:
    """Return P(-t < T < t): Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(df))
    cosine = math.cos(angle)
    is_odd = df % 2 == 1
    term = cosine if is_odd else 1.0
    total = term if df > 1 else 0.0
    for k in range(3 if is_odd else 2, df - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    mass = math.sin(angle) * total
    return 2 / math.pi * (angle + mass) if is_odd else mass
