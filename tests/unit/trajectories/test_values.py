"""V(s) of what children returned, and the advantages of leaves in their group."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence

import pytest

from benchflow.contracts.branch import ChildOutcome, StateValue
from benchflow.contracts.rollout_records import Failure
from benchflow.errors import ConfigError, RewardFuncError, VerifierError
from benchflow.trajectories.state_values import (
    EPSILON,
    compute_grpo,
    compute_leave_one_out,
    compute_node_advantages,
    compute_state_value,
    compute_tree_grpo,
)

LOST = Failure(type="SandboxLostError", category="sandbox_lost", message="the sandbox is gone")
LATE = Failure(type="AgentTimeoutError", category="agent_timeout", message="the agent did not finish in time")


def child(number: int, reward: float | None, failure: Failure | None = None) -> ChildOutcome:
    return ChildOutcome(chain=f"n1.{number}", number=number, reward=reward, failure=failure)


# --- V(s) -----------------------------------------------------------------------------------------------


def test_a_state_is_worth_the_mean_of_its_childrens_returns() -> None:
    value = compute_state_value("n1", "mean", [child(0, 1.0), child(1, 0.0), child(2, 0.5)])
    assert (value.node, value.aggregate, value.value, value.n) == ("n1", "mean", 0.5, 3)
    assert value.variance == 0.25
    assert value.stderr == pytest.approx(0.5 / math.sqrt(3))
    assert value.returns == {"n1.0": 1.0, "n1.1": 0.0, "n1.2": 0.5}


def test_a_state_may_be_worth_its_best_child() -> None:
    value = compute_state_value("n1", "max", [child(0, 0.25), child(1, 0.75)])
    assert (value.aggregate, value.value, value.variance) == ("max", 0.75, 0.125)


def test_a_mean_is_exact_and_does_not_depend_on_who_ended_first() -> None:
    children = [child(0, 0.1), child(1, 0.2), child(2, 0.3), child(3, 1e16), child(4, -1e16)]
    values = [compute_state_value("n1", "mean", order) for order in itertools.permutations(children)]
    assert all(value == values[0] for value in values)
    assert values[0].value == pytest.approx(0.12, abs=1e-15)
    assert list(values[0].returns) == ["n1.0", "n1.1", "n1.2", "n1.3", "n1.4"]
    assert compute_state_value("n1", "mean", [child(number, 0.1) for number in range(10)]).value == 0.1


def test_one_child_has_no_variance() -> None:
    value = compute_state_value("n1", "mean", [child(0, 0.5)])
    assert (value.value, value.n, value.variance, value.stderr) == (0.5, 1, None, None)


def test_a_child_that_failed_is_named_and_is_no_zero() -> None:
    value = compute_state_value("n1", "mean", [child(0, 1.0), child(1, None, LOST), child(2, None)])
    assert (value.value, value.n) == (1.0, 1)
    assert value.failed["n1.1"] == LOST
    assert value.failed["n1.2"].message == "nothing was measured"
    assert list(value.returns) == ["n1.0"]


def test_a_child_whose_agent_failed_and_whose_state_was_scored_has_its_reward() -> None:
    value = compute_state_value("n1", "mean", [child(0, 1.0), child(1, 0.5, LATE)])
    assert (value.value, value.failed) == (0.75, {})


def test_a_childs_return_is_its_own_value_if_it_branched() -> None:
    inner = StateValue(node="n1.0/n3", aggregate="mean", value=0.25, n=4)
    branched = ChildOutcome(chain="n1.0", number=0, reward=1.0, value=inner)
    nothing = ChildOutcome(chain="n1.1", number=1, value=StateValue(node="n1.1/n3", aggregate="mean"))
    value = compute_state_value("n1", "mean", [branched, nothing])
    assert value.returns == {"n1.0": 0.25}
    assert value.failed["n1.1"].message == "none of its own children has a return"


def test_what_a_child_measured_below_does_not_count_once_it_has_failed() -> None:
    inner = StateValue(node="n1.0/n3", aggregate="mean", value=0.25, n=4)
    lost = ChildOutcome(chain="n1.0", number=0, value=inner, failure=LOST)
    assert compute_state_value("n1", "mean", [lost]).returns == {}


def test_a_value_is_partial_while_children_run() -> None:
    pending = [f"n1.{number}" for number in (10, 9, 1, 0)]
    assert compute_state_value("n1", "mean", [], pending) == StateValue(
        node="n1", aggregate="mean", pending=("n1.0", "n1.1", "n1.9", "n1.10")
    )
    value = compute_state_value("n1", "mean", [child(1, 1.0), child(9, None, LOST)], pending)
    assert (value.value, value.n, value.pending) == (1.0, 1, ("n1.0", "n1.10"))


OWN = f"{__name__}:second_best"


def second_best(returns: Sequence[float]) -> float:
    return sorted(returns)[-2]


def test_a_users_aggregate_is_given_the_returns_in_the_order_of_the_children() -> None:
    seen: list[list[float]] = []

    def first(returns: Sequence[float]) -> float:
        seen.append(list(returns))
        return returns[0]

    value = compute_state_value("n1", OWN, [child(2, 0.2), child(0, 0.0), child(1, None, LOST)], own=first)
    assert (value.value, value.aggregate, seen) == (0.0, OWN, [[0.0, 0.2]])
    assert compute_state_value("n1", OWN, [child(0, None)], own=first).value is None


def test_where_a_users_aggregate_may_not_be_called_all_but_the_value_is_known() -> None:
    value = compute_state_value("n1", OWN, [child(0, 0.25), child(1, 0.75)])
    assert (value.value, value.aggregate, value.n, value.returns) == (None, OWN, 2, {"n1.0": 0.25, "n1.1": 0.75})


@pytest.mark.parametrize("given", [math.nan, math.inf, "1", None, True])
def test_an_aggregate_that_gives_no_number_is_refused(given: object) -> None:
    def wrong(returns: Sequence[float]) -> float:
        return given  # type: ignore[return-value]

    with pytest.raises(RewardFuncError, match="no finite number") as caught:
        compute_state_value("n1", OWN, [child(0, 1.0)], own=wrong)
    assert caught.value.remedy and caught.value.file == OWN


def test_an_aggregate_that_fails_is_named() -> None:
    with pytest.raises(RewardFuncError, match="IndexError") as caught:
        compute_state_value("n1", OWN, [child(0, 1.0)], own=second_best)
    assert caught.value.file == OWN


def test_an_aggregate_that_is_not_known_is_refused_before_any_child_has_ended() -> None:
    with pytest.raises(ConfigError, match="'median'"):
        compute_state_value("n1", "median", [])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("aggregate", ["mean", "max", OWN])
def test_a_return_that_is_no_finite_number_is_refused(value: float, aggregate: str) -> None:
    with pytest.raises(VerifierError, match=r"n1\.1") as caught:
        compute_state_value("n1", aggregate, [child(0, 1.0), child(1, value)], own=second_best)
    assert caught.value.key == "n1.1"


def test_returns_too_far_apart_are_refused() -> None:
    with pytest.raises(VerifierError, match="variance"):
        compute_state_value("n1", "mean", [child(0, 1e308), child(1, -1e308)])


# --- advantages -----------------------------------------------------------------------------------------


def test_grpo_is_the_distance_from_the_mean_in_standard_deviations_of_the_group() -> None:
    advantages = compute_grpo({"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0})
    wanted = math.sqrt(3 / 4)
    assert advantages == pytest.approx({"a": wanted, "b": -wanted, "c": -wanted, "d": wanted}, abs=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_advantages_agree_with_their_definitions(seed: int) -> None:
    rng = random.Random(seed)
    trees = {
        f"t{tree}": {f"t{tree}/{leaf}": rng.choice([0.0, 1.0, rng.random()]) for leaf in range(rng.randint(1, 5))}
        for tree in range(rng.randint(1, 3))
    }
    returns = {leaf: value for tree in trees.values() for leaf, value in tree.items()}

    def normalised(leaf: str, group: dict[str, float]) -> float:
        if len(group) < 2:
            return 0.0
        return (group[leaf] - statistics.fmean(group.values())) / (statistics.stdev(group.values()) + EPSILON)

    assert compute_grpo(returns) == pytest.approx({leaf: normalised(leaf, returns) for leaf in returns})
    assert compute_tree_grpo(trees) == pytest.approx(
        {leaf: normalised(leaf, tree) + normalised(leaf, returns) for tree in trees.values() for leaf in tree}
    )
    for leaf, advantage in compute_leave_one_out(returns).items():
        others = [value for name, value in returns.items() if name != leaf]
        assert advantage == pytest.approx(returns[leaf] - statistics.fmean(others) if others else 0.0)


@pytest.mark.parametrize(
    "estimate", [compute_grpo, compute_leave_one_out, lambda returns: compute_tree_grpo({"t": returns})]
)
def test_in_a_group_of_equals_and_alone_nobody_has_an_advantage(estimate: object) -> None:
    assert estimate({"a": 0.1, "b": 0.1, "c": 0.1}) == {"a": 0.0, "b": 0.0, "c": 0.0}  # type: ignore[operator]
    assert estimate({"a": 0.7}) == {"a": 0.0}  # type: ignore[operator]
    assert estimate({}) == {}  # type: ignore[operator]


def test_tree_grpo_tells_the_leaves_of_a_poor_tree_apart_and_from_those_of_a_good_one() -> None:
    advantages = compute_tree_grpo({"poor": {"a": 0.0, "b": 0.5}, "good": {"c": 1.0, "d": 1.0}})
    assert advantages["a"] < advantages["b"]
    assert advantages["c"] == advantages["d"] == compute_grpo({"a": 0.0, "b": 0.5, "c": 1.0, "d": 1.0})["c"]


@pytest.mark.parametrize(
    "estimate", [compute_grpo, compute_leave_one_out, lambda returns: compute_tree_grpo({"t": returns})]
)
def test_no_advantage_is_made_of_what_is_no_number(estimate: object) -> None:
    with pytest.raises(VerifierError, match="that of b is nan"):
        estimate({"a": 1.0, "b": math.nan})  # type: ignore[operator]


def test_a_nodes_advantage_is_the_mean_over_the_leaves_below_it() -> None:
    parents = {"n0": None, "n1": "n0", "a": "n1", "b": "n1", "c": "n0", "failed": "n0"}
    found = compute_node_advantages(parents, {"a": 1.0, "b": 0.5, "c": -1.5})
    assert found == {"a": 1.0, "b": 0.5, "c": -1.5, "n1": 0.75, "n0": 0.0}
