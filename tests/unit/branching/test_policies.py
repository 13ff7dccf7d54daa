"""What built-in policies decide, and where trees of Tree-GRPO grow."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from benchflow.branching.policies import BuiltIn, Drawn, choose_children, count_children, draw
from benchflow.contracts.branch import AfterSteps, ChildSpec, EverySteps, Group, OnAskUser, TreeGrpo
from benchflow.contracts.rollout_records import Answer, Node, Option, Question

ASKED = Question(
    id="q1",
    kind="permission",
    text="May I delete it?",
    options=[Option(id=name, name=name, kind=name) for name in ("allow_once", "allow_always", "reject_once")],
)


def places(policy: BuiltIn, total: int, begun_at: int | None = None) -> list[tuple[int, int]]:
    """Where it branches, with how many children."""
    found = [(done, len(choose_children(policy, done, total, begun_at=begun_at))) for done in range(total + 1)]
    return [(done, count) for done, count in found if count]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (AfterSteps(steps=(0, 2), n=3), [(0, 3), (2, 3)]),
        (AfterSteps(steps=(2, 0), n=(3, 4)), [(0, 4), (2, 3)]),
        (AfterSteps(steps=(6, 7)), []),  # nothing is left to run
        (EverySteps(every=2, n=4), [(2, 4), (4, 4)]),
        (EverySteps(every=1), [(1, 2), (2, 2), (3, 2), (4, 2), (5, 2)]),
        (Group(n=8), [(0, 8)]),
        (Group(n=5, at=3), [(3, 5)]),
        (TreeGrpo(m=3), [(0, 3)]),
        (OnAskUser(), []),
    ],
)
def test_a_policy_branches_at_its_steps_and_not_at_the_end(policy: BuiltIn, expected: list[tuple[int, int]]) -> None:
    assert places(policy, 6) == expected


def test_a_child_does_not_branch_where_it_begins() -> None:
    assert places(EverySteps(every=2), 6, begun_at=2) == [(4, 2)]
    assert places(Group(at=3), 6, begun_at=3) == []
    assert places(TreeGrpo(), 6, begun_at=0) == []


def test_copies_differ_in_nothing_and_children_given_one_by_one_take_their_place() -> None:
    assert choose_children(Group(n=3), 0, 5) == (ChildSpec(), ChildSpec(), ChildSpec())
    given = (ChildSpec(seed=1), ChildSpec(model="other"))
    assert choose_children(AfterSteps(steps=(1,)), 1, 5, children=given) == given
    assert choose_children(AfterSteps(steps=(1,)), 2, 5, children=given) == ()
    assert choose_children(AfterSteps(steps=(1, 2), n=(2, 1)), 2, 5, children=given) == given[:1]


def test_each_option_of_a_question_has_a_child_that_chooses_it() -> None:
    children = choose_children(OnAskUser(), 0, 1, ASKED)
    assert [child.answer for child in children] == [
        Answer(question="q1", option=name) for name in ("allow_once", "allow_always", "reject_once")
    ]
    assert choose_children(OnAskUser(most=2), 0, 1, ASKED) == children[:2]


def test_a_question_without_options_has_no_children() -> None:
    assert choose_children(OnAskUser(), 0, 1, ASKED.model_copy(update={"options": []})) == ()


@pytest.mark.parametrize("policy", [AfterSteps(steps=(0,)), EverySteps(every=1), Group(), TreeGrpo()])
def test_a_policy_of_steps_does_not_branch_within_one(policy: BuiltIn) -> None:
    assert choose_children(policy, 0, 5, ASKED) == choose_children(policy, 1, 5, ASKED) == ()


def test_the_most_children_of_one_state_are_known_before() -> None:
    counted: list[tuple[BuiltIn, int]] = [
        (Group(n=4), 4),
        (TreeGrpo(m=3), 3),
        (OnAskUser(most=5), 5),
        (AfterSteps(steps=(1,), n=3), 3),
        (AfterSteps(steps=(1, 2), n=(2, 6)), 6),
    ]
    assert [count_children(policy) for policy, _ in counted] == [count for _, count in counted]


# --- Tree-GRPO ------------------------------------------------------------------------------------------


def chain(*names: str) -> list[Node]:
    return [Node(id=name, parent=parent) for name, parent in zip(names, [None, *names], strict=False)]


TREES = {"b": chain("n0", "b1", "b2"), "a": chain("n0", "a1", "a2", "a3")}


def test_each_tree_grows_from_its_root_and_its_inner_nodes_and_from_no_leaf() -> None:
    policy = TreeGrpo(n=2, k=3)
    drawn = Counter(place for seed in range(600) for place in draw(policy, TREES, random.Random(seed)))
    assert set(drawn) == {
        Drawn("a", "n0"), Drawn("a", "a1"), Drawn("a", "a2"), Drawn("b", "n0"), Drawn("b", "b1")
    }  # fmt: skip
    # Uniformly: 1200 draws a tree, among three nodes and among two.
    assert all(330 <= drawn[place] <= 470 for place in drawn if place.tree == "a")
    assert all(530 <= drawn[place] <= 670 for place in drawn if place.tree == "b")


def test_a_draw_is_the_same_from_the_same_random_numbers_whatever_the_order_of_the_nodes() -> None:
    policy = TreeGrpo(n=4, k=9)
    turned = {tree: nodes[::-1] for tree, nodes in reversed(TREES.items())}
    assert draw(policy, TREES, random.Random(7)) == draw(policy, turned, random.Random(7))
    assert [place.tree for place in draw(policy, TREES, random.Random(7))] == ["a"] * 4 + ["b"] * 4


def test_a_tree_has_no_more_leaves_than_it_may() -> None:
    grown = {"a": [*TREES["a"], Node(id="a4", parent="a1"), Node(id="a5", parent="n0")], "b": TREES["b"]}
    assert Counter(place.tree for place in draw(TreeGrpo(n=2, k=4), grown, random.Random(0))) == {"a": 1, "b": 2}
    assert Counter(place.tree for place in draw(TreeGrpo(n=2, k=2), grown, random.Random(0))) == {"b": 1}


def test_a_tree_whose_first_chain_reached_nothing_grows_from_its_root() -> None:
    assert draw(TreeGrpo(n=2), {"a": chain("n0")}, random.Random(0)) == [Drawn("a", "n0")] * 2
