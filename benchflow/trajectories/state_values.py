"""V(s), the value of a state, and advantages: how much better or worse than its group a trajectory did.

Pure functions of returns. Sums are exact until they are rounded once, so that neither the order in which children end
nor the machine changes a digit. A child without a return, because it failed, is left out: it never counts as 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from benchflow.contracts.branch import ChildOutcome, StateValue
from benchflow.contracts.failures import failure_of
from benchflow.contracts.rollout_records import Failure
from benchflow.errors import ConfigError, RewardFuncError, RewardMissingError, VerifierError

Aggregate = Callable[[Sequence[float]], float]
"""Function that aggregates children's returns, in the order of their numbers, to one value. The list is never empty."""

BUILT_IN = ("mean", "max")
"""Names of the built-in aggregates."""

EPSILON = 1e-6
"""Added to the standard deviation of a group, so that nearly equal returns give no huge advantages."""


# --- V(s) -----------------------------------------------------------------------------------------------


def compute_state_value(
    node: str,
    aggregate: str,
    outcomes: Iterable[ChildOutcome],
    pending: Iterable[str] = (),
    *,
    own: Aggregate | None = None,
) -> StateValue:
    """Return V(s) of a node, by the outcomes of its children so far.

    Args:
        node: Id of the node.
        aggregate: `mean`, `max`, or the name of a user's own function.
        outcomes: Outcomes of children that have ended.
        pending: Branch paths of children that were started; those that have ended are ignored.
        own: The user's function; None if it is not to be called, so that the value is None and can be added later.

    Raises:
        VerifierError: A return is no finite number.
        RewardFuncError: The user's function fails.
        ConfigError: The aggregate is unknown.
    """
    ended = {outcome.chain: outcome for outcome in sorted(outcomes, key=lambda outcome: outcome.number)}
    returns = {chain: outcome.returns for chain, outcome in ended.items()}
    measured = {chain: value for chain, value in returns.items() if value is not None}
    variance = _compute_variance(measured)
    return StateValue(
        node=node,
        aggregate=aggregate,
        value=_aggregate(aggregate, measured, own),
        n=len(measured),
        variance=variance,
        stderr=None if variance is None else math.sqrt(variance / len(measured)),
        returns=measured,
        failed={chain: _get_failure(outcome) for chain, outcome in ended.items() if returns[chain] is None},
        pending=tuple(sorted(set(pending) - ended.keys(), key=_make_sort_key)),
    )


def is_user_function(aggregate: str) -> bool:
    """Return whether an aggregate is the name of a user's function."""
    return ":" in aggregate


def _aggregate(aggregate: str, returns: Mapping[str, float], own: Aggregate | None) -> float | None:
    """Return the aggregate of the returns; None without returns, or without the user's function."""
    if aggregate not in BUILT_IN and not is_user_function(aggregate):
        raise ConfigError(
            f"{aggregate!r} is no aggregate that can be used by its name",
            key="branch.aggregate",
            remedy=f"use {' or '.join(BUILT_IN)}, or module:function",
        )
    if not returns:
        return None
    if aggregate in BUILT_IN:
        return (
            _round_sum(_compute_mean(_make_fractions(returns).values()))
            if aggregate == "mean"
            else max(returns.values())
        )
    return call_aggregate(aggregate, own, list(returns.values())) if own is not None else None


def call_aggregate(name: str, own: Aggregate, returns: Sequence[float]) -> float:
    """Call a user's aggregate, and return its value.

    Args:
        name: Name of the function, for errors.
        own: The function.
        returns: Returns of children.

    Raises:
        RewardFuncError: It fails, or returns no finite number.
    """
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


def _compute_variance(returns: Mapping[str, float]) -> float | None:
    """Return the variance with n - 1 as divisor; None for fewer than two returns.

    Raises `VerifierError` if any return is no finite number, even a single one.
    """
    exact = _make_fractions(returns)
    if len(exact) < 2:
        return None
    return _round_sum(_sum_squares(exact.values()) / (len(exact) - 1))


def _get_failure(outcome: ChildOutcome) -> Failure:
    """Return the failure of a child without a return; a `RewardMissingError` if it has none of its own."""
    if outcome.failure is not None:
        return outcome.failure
    why = "none of its own children has a return" if outcome.value is not None else "nothing was measured"
    return failure_of(RewardMissingError(why), "verify")


def _make_sort_key(chain: str) -> tuple[int, str]:
    """Return the sort key of a branch path: the child's number, then the name."""
    number = chain.rpartition(".")[2]
    return (int(number) if number.isdecimal() else 0, chain)


# --- advantages -----------------------------------------------------------------------------------------


def compute_grpo(returns: Mapping[str, float]) -> dict[str, float]:
    """Return group-relative advantages (DeepSeekMath, arXiv 2402.03300): (r - mean) / (std + EPSILON).

    The std is that of the sample, with n - 1 as divisor, as trainers compute it. Equal returns, and a group of one,
    give advantages of 0.

    Args:
        returns: Returns by leaf.

    Raises:
        VerifierError: A return is no finite number.
    """
    exact = _make_fractions(returns)
    if len(exact) < 2:
        return dict.fromkeys(exact, 0.0)
    mean = _compute_mean(exact.values())
    scale = math.sqrt(_round_sum(_sum_squares(exact.values()) / (len(exact) - 1))) + EPSILON
    return {leaf: _round_sum(value - mean) / scale for leaf, value in exact.items()}


def compute_leave_one_out(returns: Mapping[str, float]) -> dict[str, float]:
    """Return RLOO advantages (arXiv 2402.14740): r minus the mean of the others; 0 without others.

    Args:
        returns: Returns by leaf.

    Raises:
        VerifierError: A return is no finite number.
    """
    exact = _make_fractions(returns)
    total, others = sum(exact.values(), Fraction(0)), len(exact) - 1
    return {leaf: _round_sum(value - (total - value) / others) if others else 0.0 for leaf, value in exact.items()}


def compute_tree_grpo(trees: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return Tree-GRPO advantages (arXiv 2509.21240): for each leaf the sum of two group-relative ones.

    Both are as in `compute_grpo`: the intra-tree advantage is among the leaves of its own tree, the inter-tree
    advantage among all leaves of all trees of the prompt. A tree of one leaf has only the second.

    Args:
        trees: Returns by tree and leaf. Leaves of different trees have different names.

    Raises:
        VerifierError: A return is no finite number.
    """
    intra = {leaf: value for tree in trees.values() for leaf, value in compute_grpo(tree).items()}
    inter = compute_grpo({leaf: value for tree in trees.values() for leaf, value in tree.items()})
    return {leaf: intra[leaf] + inter[leaf] for leaf in inter}


def compute_node_advantages(parents: Mapping[str, str | None], leaves: Mapping[str, float]) -> dict[str, float]:
    """Return the advantage of each node that leads to a leaf: the mean over the leaves at and below it.

    Args:
        parents: Parent of each node; None for the root.
        leaves: Advantages of the leaves that have one.
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
            # Rounded once per sum, whatever its order. Only nodes with several children need such a sum.
            values = [value for part, _ in parts for value in part]
            mean = math.fsum(values) / len(values)
        means[name] = mean
        below[parents[name]].append((values, mean))
    return means


# --- exact sums -----------------------------------------------------------------------------------------


def _make_fractions(values: Mapping[str, float]) -> dict[str, Fraction]:
    """Return the values as fractions. Raise `VerifierError` for NaN or infinity."""
    try:
        return {name: Fraction(value) for name, value in values.items()}
    except (OverflowError, ValueError) as error:
        wrong = next(name for name, value in values.items() if not math.isfinite(value))
        raise VerifierError(
            f"a return must be a finite number, and that of {wrong} is {values[wrong]}",
            key=wrong,
            remedy="mend the verifier or the reward function that gave it",
        ) from error


def _compute_mean(values: Iterable[Fraction]) -> Fraction:
    counted = list(values)
    return sum(counted, Fraction(0)) / len(counted)


def _sum_squares(values: Iterable[Fraction]) -> Fraction:
    """Return the sum of squared distances from the mean."""
    counted = list(values)
    mean = _compute_mean(counted)
    return sum(((value - mean) ** 2 for value in counted), Fraction(0))


def _round_sum(value: Fraction) -> float:
    """Return the nearest float. Raise `VerifierError` if the value is too large for one."""
    try:
        return float(value)
    except OverflowError as error:
        raise VerifierError(
            "the returns are so far apart that their variance is no finite number",
            remedy="let rewards be of a usual size, such as 0 to 1",
        ) from error
