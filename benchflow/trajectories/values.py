"""What a state is worth, V(s), and how much better or worse than its group a trajectory did: its advantage.

Pure functions of returns. Sums are exact until they are rounded once, so that neither the order in which children end
nor the machine changes a digit. What has no return, because it failed, is left out: it is never a 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from benchflow.contracts.branch import ChildOutcome, StateValue
from benchflow.contracts.rollout import Failure
from benchflow.errors import ConfigError, RewardFuncError, VerifierError

Aggregate = Callable[[Sequence[float]], float]
"""What makes one value of the returns of children, in the order of their numbers; it is never given none."""

BUILT_IN = ("mean", "max")

EPSILON = 1e-6
"""Added to the standard deviation of a group, so that one of nearly equal returns gives no endless advantages."""


# --- V(s) -----------------------------------------------------------------------------------------------


def state_value(
    node: str,
    aggregate: str,
    outcomes: Iterable[ChildOutcome],
    pending: Iterable[str] = (),
    *,
    own: Aggregate | None = None,
) -> StateValue:
    """V(s) of a node, from what is known of its children so far.

    aggregate: `mean`, `max`, or the name of a user's own function, which is `own` where it may be called: without it
    the value is left for others to add. pending: chains that were begun; those that have ended are left out. Raises
    `VerifierError` for returns that are no finite numbers, what `aggregated` raises, and `ConfigError` for an aggregate
    that is not known.
    """
    ended = {outcome.chain: outcome for outcome in sorted(outcomes, key=lambda outcome: outcome.number)}
    returns = {chain: outcome.returns for chain, outcome in ended.items()}
    measured = {chain: value for chain, value in returns.items() if value is not None}
    variance = _sample_variance(measured)
    return StateValue(
        node=node,
        aggregate=aggregate,
        value=_value(aggregate, measured, own),
        n=len(measured),
        variance=variance,
        stderr=None if variance is None else math.sqrt(variance / len(measured)),
        returns=measured,
        failed={chain: _failure_of(outcome) for chain, outcome in ended.items() if returns[chain] is None},
        pending=tuple(sorted(set(pending) - ended.keys(), key=_number_of)),
    )


def is_own(aggregate: str) -> bool:
    """Whether it names a user's function."""
    return ":" in aggregate


def _value(aggregate: str, returns: Mapping[str, float], own: Aggregate | None) -> float | None:
    if aggregate not in BUILT_IN and not is_own(aggregate):
        raise ConfigError(
            f"{aggregate!r} is no aggregate that can be used by its name",
            key="branch.aggregate",
            remedy=f"use {' or '.join(BUILT_IN)}, or module:function",
        )
    if not returns:
        return None
    if aggregate in BUILT_IN:
        return _rounded(_mean(_exact(returns).values())) if aggregate == "mean" else max(returns.values())
    return aggregated(aggregate, own, list(returns.values())) if own is not None else None


def aggregated(name: str, own: Aggregate, returns: Sequence[float]) -> float:
    """What a user's function makes of returns. Raises `RewardFuncError` where it fails, or gives no finite number."""
    try:
        value = own(list(returns))
    except Exception as error:
        raise RewardFuncError(
            f"the aggregate failed: {type(error).__name__}: {error}",
            file=name,
            key="branch.aggregate",
            remedy=f"mend it: it is given a list of floats, here {list(returns[:8])}",
        ) from error
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise RewardFuncError(
        f"the aggregate gives no finite number: {value!r}",
        file=name,
        key="branch.aggregate",
        remedy="let it return a float",
    )


def _sample_variance(returns: Mapping[str, float]) -> float | None:
    """With n - 1 below the line; None for fewer than two. Looks at every return, whatever it comes to."""
    exact = _exact(returns)
    if len(exact) < 2:
        return None
    return _rounded(_squares(exact.values()) / (len(exact) - 1))


def _failure_of(outcome: ChildOutcome) -> Failure:
    if outcome.failure is not None:
        return outcome.failure
    why = "none of its own children has a return" if outcome.value is not None else "nothing was measured"
    return Failure(type="RewardMissingError", category="reward_missing", message=why, phase="verify")


def _number_of(chain: str) -> tuple[int, str]:
    number = chain.rpartition(".")[2]
    return (int(number) if number.isdecimal() else 0, chain)


# --- advantages -----------------------------------------------------------------------------------------


def grpo(returns: Mapping[str, float]) -> dict[str, float]:
    """Group-relative advantages (DeepSeekMath, arXiv 2402.03300): (r - mean) / (std + EPSILON).

    std: of the sample, with n - 1 below the line, as trainers compute it. A group of equals, and of one, has advantages
    of 0.
    """
    exact = _exact(returns)
    if len(exact) < 2:
        return dict.fromkeys(exact, 0.0)
    mean = _mean(exact.values())
    scale = math.sqrt(_rounded(_squares(exact.values()) / (len(exact) - 1))) + EPSILON
    return {leaf: _rounded(value - mean) / scale for leaf, value in exact.items()}


def leave_one_out(returns: Mapping[str, float]) -> dict[str, float]:
    """RLOO (arXiv 2402.14740): r minus the mean of the others; 0 where there are no others."""
    exact = _exact(returns)
    total, others = sum(exact.values(), Fraction(0)), len(exact) - 1
    return {leaf: _rounded(value - (total - value) / others) if others else 0.0 for leaf, value in exact.items()}


def tree_grpo(trees: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Tree-GRPO (arXiv 2509.21240): for each leaf the sum of two group-relative advantages, both as in `grpo`.

    Intra-tree: among the leaves of its own tree. Inter-tree: among all leaves of all trees of the prompt. trees: by
    name, the returns of their leaves, whose names differ between trees. A tree of one leaf has only the second.
    """
    intra = {leaf: value for tree in trees.values() for leaf, value in grpo(tree).items()}
    inter = grpo({leaf: value for tree in trees.values() for leaf, value in tree.items()})
    return {leaf: intra[leaf] + inter[leaf] for leaf in inter}


def advantages_of_nodes(parents: Mapping[str, str | None], leaves: Mapping[str, float]) -> dict[str, float]:
    """The advantage of each node that leads to a leaf: the mean over the leaves at and below it.

    parents: of all nodes, None for the root. leaves: the advantages of those that have one.
    """
    order: list[str] = []
    known: set[str] = set()
    for leaf in leaves:
        path: list[str] = []
        node: str | None = leaf
        while node is not None and node not in known:
            known.add(node)
            path.append(node)
            node = parents[node]
        order += reversed(path)
    means: dict[str, float] = {}
    below: dict[str | None, list[tuple[list[float], float]]] = defaultdict(list)
    for name in reversed(order):
        parts = below.pop(name, [])
        if name in leaves:
            parts.append(([leaves[name]], leaves[name]))
        values, mean = parts[0]
        if len(parts) > 1:
            # Rounded once for the sum, whatever its order: there are as many of these sums as nodes with a choice.
            values = [value for part, _ in parts for value in part]
            mean = math.fsum(values) / len(values)
        means[name] = mean
        below[parents[name]].append((values, mean))
    return means


# --- exact sums -----------------------------------------------------------------------------------------


def _exact(values: Mapping[str, float]) -> dict[str, Fraction]:
    try:
        return {name: Fraction(value) for name, value in values.items()}
    except (OverflowError, ValueError) as error:
        wrong = next(name for name, value in values.items() if not math.isfinite(value))
        raise VerifierError(
            f"a return must be a finite number, and that of {wrong} is {values[wrong]}",
            key=wrong,
            remedy="mend the verifier or the reward function that gave it",
        ) from error


def _mean(values: Iterable[Fraction]) -> Fraction:
    counted = list(values)
    return sum(counted, Fraction(0)) / len(counted)


def _squares(values: Iterable[Fraction]) -> Fraction:
    """The sum of squared distances from the mean."""
    counted = list(values)
    mean = _mean(counted)
    return sum(((value - mean) ** 2 for value in counted), Fraction(0))


def _rounded(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise VerifierError(
            "the returns are so far apart that their variance is no finite number",
            remedy="let rewards be of a usual size, such as 0 to 1",
        ) from error
