"""Policies and aggregates that users bring: found, asked, and refused with the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchflow.branching.custom import decide, load_aggregate, load_policy
from benchflow.branching.policies import BranchPolicy
from benchflow.contracts.branch import ChildSpec, CustomPolicy
from benchflow.contracts.rollout_records import Node, RolloutTree
from benchflow.errors import ConfigError

TREE = RolloutTree(rollout="r", root="n0", nodes=[Node(id="n0"), Node(id="n1", parent="n0", rewards={"reward": 0.2})])

SOURCE = """
from benchflow.contracts.branch import ChildSpec


class WhereItIsPoor:
    def __init__(self, below=0.5, n=2):
        self.below, self.n = below, n

    def decide(self, tree, node, steps_left):
        reward = (node.rewards or {}).get("reward", 1.0)
        return [ChildSpec(seed=number) for number in range(self.n)] if steps_left and reward < self.below else None


class NoPolicy:
    pass


def lowest(returns):
    return min(returns)


number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of a user's, that declares a policy."""
    (tmp_path / "poor_states.py").write_text(SOURCE)
    (tmp_path / "poor_broken.py").write_text("import nothing_like_this\n")
    info = tmp_path / "poor_states-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: poor-states\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[benchflow.branch_policies]\npoor = poor_states:WhereItIsPoor\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "poor_states", raising=False)
    return "poor_states"


@pytest.mark.parametrize("name", ["poor", "poor_states:WhereItIsPoor"])
def test_a_policy_is_found_by_its_entry_point_or_its_path_and_made_with_its_options(mine: str, name: str) -> None:
    policy = load_policy(CustomPolicy(policy=name, options={"n": 3}))
    assert decide(policy, TREE, "n1", 2) == (ChildSpec(seed=0), ChildSpec(seed=1), ChildSpec(seed=2))
    assert decide(policy, TREE, "n0", 2) == decide(policy, TREE, "n1", 0) == ()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (CustomPolicy(policy="rich"), "no installed package declares a branch policy 'rich'"),
        (CustomPolicy(policy="poor_nowhere:It"), "No module named 'poor_nowhere'"),
        (CustomPolicy(policy="poor_broken:It"), "No module named 'nothing_like_this'"),
        (CustomPolicy(policy="poor_states:Other"), "has no attribute 'Other'"),
        (CustomPolicy(policy="poor_states:WhereItIsPoor", options={"above": 1}), "unexpected keyword argument 'above'"),
        (CustomPolicy(policy="poor_states:NoPolicy"), "it has no `decide`"),
        (CustomPolicy(policy="poor_states:number"), "it has no `decide`"),
        # Programs that are installed anyway are not called by a job's file.
        (CustomPolicy(policy="subprocess:Popen", options={"args": ["false"]}), "it has no `decide`"),
    ],
)
def test_a_policy_that_cannot_be_had_is_refused(mine: str, policy: CustomPolicy, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_policy(policy)
    assert caught.value.remedy and str(caught.value.key).startswith("branch.policy")


def test_a_name_that_is_not_declared_is_refused_with_those_that_are(mine: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_policy(CustomPolicy(policy="por"))
    assert "one of poor" in str(caught.value.remedy)


class Fixed:
    """Decides what it is told to."""

    def __init__(self, decision: Callable[[], Any]) -> None:
        self._decision = decision

    def decide(self, tree: RolloutTree, node: Node, steps_left: int) -> Sequence[ChildSpec] | None:
        decided: Sequence[ChildSpec] | None = self._decision()
        return decided


async def late() -> list[ChildSpec]:
    return []


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (lambda: 3, "no list of children: 3"),
        (lambda: "two", "no list of children"),
        (lambda: late(), "no list of children: <coroutine"),
        (lambda: [ChildSpec(), 3], "no child"),
        (lambda: [{"sead": 1}], "no child: sead"),
        (lambda: [{"answer": {"question": "q"}}], "an answer, where nothing was asked"),
        (lambda: 1 // 0, "failed at the node n1: ZeroDivisionError"),
        (lambda: [ChildSpec()] * 4, "wants 4 children at the node n1, of at most 3 in the whole tree"),
    ],
)
def test_what_a_policy_does_wrong_is_its_users_to_mend(decision: Callable[[], Any], message: str) -> None:
    policy: BranchPolicy = Fixed(decision)
    with pytest.raises(ConfigError, match=message) as caught:
        decide(policy, TREE, "n1", 2, most=3)
    assert caught.value.file == f"{__name__}:Fixed" and caught.value.remedy


def test_children_may_be_written_as_tables() -> None:
    assert decide(Fixed(lambda: [{"seed": 1}, {}]), TREE, "n1", 2) == (ChildSpec(seed=1), ChildSpec())
    assert decide(Fixed(list), TREE, "n1", 2) == ()


# --- aggregates -----------------------------------------------------------------------------------------


def test_an_aggregate_is_a_word_or_a_users_function(mine: str) -> None:
    assert [load_aggregate(name) for name in ("mean", "max")] == [None, None]
    lowest = load_aggregate("poor_states:lowest")
    assert lowest is not None and lowest([0.5, 0.25]) == 0.25


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("median", "there is no aggregate 'median'"),
        ("poor_states:highest", "has no attribute 'highest'"),
        ("poor_states:number", "is no function"),
        ("poor_states:NoPolicy", "is no function"),
        ("poor_states:", "cannot be imported"),
        (":lowest", "cannot be imported"),
    ],
)
def test_an_aggregate_that_cannot_be_had_is_refused(mine: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_aggregate(name)
    assert caught.value.key == "branch.aggregate" and caught.value.remedy
