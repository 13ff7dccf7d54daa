"""A tree as it grows: names, values and advantages, whatever ends first; random trees against a model of their own."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from benchflow.contracts.branch import ChildOutcome
from benchflow.contracts.reward import Evidence
from benchflow.contracts.rollout_records import Failure, Node, RolloutTree
from benchflow.errors import ResultFileError
from benchflow.trajectories.growth import (
    compute_state_values,
    get_branch_path,
    get_start_node,
    grow_tree,
    make_branch_path,
    make_node_id,
    merge_nodes,
)
from benchflow.trajectories.nodes import build_nodes, find_last_node
from benchflow.trajectories.state_values import EPSILON, compute_state_value

LOST = Failure(type="SandboxLostError", category="sandbox_lost", message="the sandbox is gone")
SEEDS = range(200)


# --- the model: what was drawn, and what must come of it ------------------------------------------------


@dataclass
class Chain:
    """A chain as it was drawn: at most one branch, at its last node."""

    name: str
    start: str | None
    done_before: int
    nodes: list[str]
    children: list[Chain] = field(default_factory=list)
    reward: float | None = None
    has_failed: bool = False

    def path(self) -> list[tuple[str, str | None]]:
        return list(zip(self.nodes, [self.start, *self.nodes], strict=False))

    def worth(self) -> float | None:
        if self.has_failed:
            return None
        if not self.children:
            return self.reward
        worths = [worth for child in self.children if (worth := child.worth()) is not None]
        return statistics.fmean(worths) if worths else None

    def leaves(self) -> Iterator[tuple[str, float]]:
        """Of those that count."""
        if self.has_failed:
            return
        for child in self.children:
            yield from child.leaves()
        if not self.children and self.reward is not None:
            yield self.nodes[-1], self.reward

    def all(self) -> Iterator[Chain]:
        yield self
        for child in self.children:
            yield from child.all()


def draw_chain(rng: random.Random, name: str, start: str | None, done: int, depth: int) -> Chain:
    first = 0 if start is None else done + 1
    last = done + rng.randint(1, 4)
    chain = Chain(name, start, done, [f"{name}/n{k}".removeprefix("/") for k in range(first, last + 1)])
    chain.has_failed = start is not None and rng.random() < 0.2
    if chain.has_failed:
        # It may have got somewhere, branched even, before it was lost.
        chain.nodes = chain.nodes[: rng.randint(0, len(chain.nodes))]
    if chain.nodes and depth < 3 and rng.random() < 0.7:
        end = chain.nodes[-1]
        done = int(end.rpartition("n")[2])
        chain.children = [
            draw_chain(rng, f"{end}.{number}", end, done, depth + 1) for number in range(rng.randint(1, 4))
        ]
    elif not chain.has_failed:
        chain.reward = rng.choice([0.0, 1.0, rng.random(), rng.random()])
    return chain


# --- the same, told by the rollouts that ran it ---------------------------------------------------------


def own_nodes(chain: Chain) -> list[Node]:
    return [Node(id=name, parent=parent, role="agent") for name, parent in chain.path()]


def outcome_of(chain: Chain, rng: random.Random) -> ChildOutcome:
    below = [outcome_of(child, rng) for child in chain.children]
    rng.shuffle(below)
    value = compute_state_value(chain.nodes[-1], "mean", below) if below else None
    return ChildOutcome(
        chain=chain.name,
        number=int(chain.name.rpartition(".")[2]),
        reward=chain.reward,
        value=value,
        failure=LOST if chain.has_failed else None,
        leaf=chain.nodes[-1] if chain.nodes else None,
        nodes=merge_nodes(own_nodes(chain), below),
    )


def grown(chain: Chain, seed: int) -> RolloutTree:
    rng = random.Random(seed)
    outcomes = [outcome_of(child, rng) for child in chain.children]
    rng.shuffle(outcomes)
    return grow_tree("r", own_nodes(chain), outcomes, returns=chain.reward)


@pytest.fixture(scope="module")
def trees() -> list[tuple[Chain, RolloutTree]]:
    drawn = [draw_chain(random.Random(seed), "", None, 0, 0) for seed in SEEDS]
    assert sum(len(chain.children) > 1 for chain in drawn) > 100
    return [(chain, grown(chain, 0)) for chain in drawn]


def test_any_order_of_arrival_gives_the_same_tree(trees: list[tuple[Chain, RolloutTree]]) -> None:
    for chain, tree in trees:
        for seed in (1, 2):
            assert grown(chain, seed) == tree


def test_every_node_is_there_once_after_its_parent(trees: list[tuple[Chain, RolloutTree]]) -> None:
    for chain, tree in trees:
        expected = {name: parent for each in chain.all() for name, parent in each.path()}
        assert {node.id: node.parent for node in tree.nodes} == expected
        assert len(tree.nodes) == len(expected)
        build_nodes(tree, [], Evidence())  # refuses any other order


def test_every_path_leads_from_the_root_to_a_leaf(trees: list[tuple[Chain, RolloutTree]]) -> None:
    for _, tree in trees:
        covered = set()
        for leaf in tree.leaves:
            path = tree.path(leaf.id)
            assert path[0].id == tree.root == "n0"
            assert [int(node.id.rpartition("n")[2]) for node in path] == list(range(len(path)))
            covered |= {node.id for node in path}
        assert covered == {node.id for node in tree.nodes}


def test_a_node_is_worth_what_its_children_return_all_the_way_down(trees: list[tuple[Chain, RolloutTree]]) -> None:
    for chain, tree in trees:
        nodes = {node.id: node for node in tree.nodes}
        branched = [each for each in chain.all() if each.children]
        for each in branched:
            worths = [worth for child in each.children if (worth := child.worth()) is not None]
            node = nodes[each.nodes[-1]]
            assert node.n == len(worths)
            assert set(node.failed) == {child.name for child in each.children if child.worth() is None}
            assert node.value == (pytest.approx(statistics.fmean(worths)) if worths else None)
            assert node.variance == (pytest.approx(statistics.variance(worths)) if len(worths) > 1 else None)
        assert [node.id for node in tree.nodes if node.n or node.failed] == [
            node.id for node in tree.nodes if node.id in {each.nodes[-1] for each in branched}
        ]


def test_advantages_are_of_the_leaves_that_count_and_nothing_of_a_failed_child_does(
    trees: list[tuple[Chain, RolloutTree]],
) -> None:
    for chain, tree in trees:
        leaves = dict(chain.leaves())
        mean = statistics.fmean(leaves.values()) if leaves else 0.0
        scale = statistics.stdev(leaves.values()) + EPSILON if len(leaves) > 1 else 1.0
        below: dict[str, list[float]] = {}
        for leaf, value in leaves.items():
            for node in tree.path(leaf):
                below.setdefault(node.id, []).append((value - mean) / scale)
        for node in tree.nodes:
            assert set(node.advantages) == ({"grpo", "leave_one_out", "tree_grpo"} if node.id in below else set())
            if node.id in below:
                assert node.advantages["grpo"] == pytest.approx(statistics.fmean(below[node.id]), abs=1e-9)


def test_names_lead_back_to_where_they_came_from(trees: list[tuple[Chain, RolloutTree]]) -> None:
    for chain, tree in trees:
        for each in chain.all():
            assert get_start_node(each.name) == each.start
            for name in each.nodes:
                step = int(name.rpartition("n")[2])
                assert (get_branch_path(name), make_node_id(each.name, step)) == (each.name, name)
            for number, child in enumerate(each.children):
                assert make_branch_path(each.nodes[-1], number) == child.name
        assert {node.id: node.chain for node in tree.nodes} == {
            name: each.name or None for each in chain.all() for name in each.nodes
        }


def test_a_tree_is_the_same_read_from_its_file(trees: list[tuple[Chain, RolloutTree]]) -> None:
    for _, tree in trees[:20]:
        assert RolloutTree.model_validate_json(tree.model_dump_json()) == tree


# --- what random trees do not have ----------------------------------------------------------------------


def line(*names: str, parent: str | None = None) -> list[Node]:
    return [Node(id=name, parent=above) for name, above in zip(names, [parent, *names], strict=False)]


def ended(chain: str, reward: float | None, *names: str, tree: str | None = None) -> ChildOutcome:
    return ChildOutcome(
        chain=chain,
        number=int(chain.rpartition(".")[2]),
        reward=reward,
        leaf=names[-1] if names else None,
        nodes=line(*names, parent=get_start_node(chain)),
        tree=tree,
    )


def test_a_tree_from_before_there_were_children_can_be_read() -> None:
    old = {"id": "n1", "parent": "n0", "step": 0, "role": "agent", "events": [0, 2], "rewards": None, "value": None}
    tree = {"rollout": "r", "root": "n0", "nodes": [{"id": "n0"}, {**old, "scores": []}]}
    node = RolloutTree.model_validate_json(json.dumps(tree)).nodes[1]
    assert (node.advantages, node.failed, node.returns, node.chain) == ({}, {}, None, None)


def test_a_tree_can_be_seen_while_it_grows() -> None:
    own = line("n0", "n1")
    outcomes, pending = [ended("n1.1", 1.0, "n1.1/n2")], ["n1.0", "n1.1"]
    tree = grow_tree("r", own, outcomes, compute_state_values(outcomes, pending=pending))
    assert [node.id for node in tree.nodes] == ["n0", "n1", "n1.1/n2"]
    assert (tree.nodes[1].value, tree.nodes[1].n, tree.nodes[1].pending) == (1.0, 1, ("n1.0",))
    before = grow_tree("r", own, [], compute_state_values([], pending=pending)).nodes[1]
    assert (before.value, before.n, before.pending) == (None, 0, ("n1.0", "n1.1"))


def test_a_rollout_that_never_branched_is_a_tree_of_one_leaf_with_its_reward() -> None:
    tree = grow_tree("r", line("n0", "n1", "n2"), [], returns=0.5)
    assert [node.id for node in tree.leaves] == ["n2"]
    assert (tree.nodes[2].returns, tree.nodes[2].advantages["grpo"]) == (0.5, 0.0)


def test_the_value_of_a_rollout_that_stopped_where_it_branched_is_no_return_of_a_leaf() -> None:
    inner = [ended("n1.0/n2.0", 1.0, "n1.0/n2.0/n3"), ended("n1.0/n2.1", 0.5, "n1.0/n2.1/n3")]
    value = compute_state_value("n1.0/n2", "mean", inner)
    child = ended("n1.0", 0.75, "n1.0/n2").model_copy(
        update={"value": value, "nodes": merge_nodes(line("n1.0/n2", parent="n1"), inner)}
    )
    tree = grow_tree("r", line("n0", "n1"), [child, ended("n1.1", 0.0, "n1.1/n2")], returns=0.375)
    assert {node.id: node.returns for node in tree.nodes if node.returns is not None} == {
        "n1.0/n2.0/n3": 1.0, "n1.0/n2.1/n3": 0.5, "n1.1/n2": 0.0
    }  # fmt: skip
    assert tree.nodes[1].value == 0.375


def test_where_a_rollout_went_on_from_a_child_the_first_path_leads_to_its_end() -> None:
    children = [
        ended(f"n1.{number}", float(number == 10), f"n1.{number}/n2", f"n1.{number}/n3") for number in range(11)
    ]
    own = [*line("n0", "n1"), *line("n4", "n5", parent="n1.10/n3")]
    tree = grow_tree("r", own, children, returns=0.25)
    assert find_last_node(build_nodes(tree, [], Evidence())).id == "n5"
    assert [node.id for node in tree.path("n5")] == ["n0", "n1", "n1.10/n2", "n1.10/n3", "n4", "n5"]
    assert [node.id for node in tree.leaves][:4] == ["n5", "n1.0/n3", "n1.1/n3", "n1.2/n3"]
    # The child's own end is no leaf any more: its trajectory is part of the one that went on.
    assert "n1.10/n3" not in {node.id for node in tree.leaves}
    assert tree.path("n5")[-1].returns == 0.25


def test_where_a_child_went_on_from_one_of_its_own_the_first_path_does_too() -> None:
    inner = [ended(f"n1.0/n2.{number}", 0.0, f"n1.0/n2.{number}/n3") for number in range(2)]
    own = [*line("n1.0/n2", parent="n1"), *line("n1.0/n4", parent="n1.0/n2.1/n3")]
    child = ChildOutcome(chain="n1.0", number=0, reward=1.0, leaf="n1.0/n4", nodes=merge_nodes(own, inner))
    tree = grow_tree("r", line("n0", "n1"), [child])
    assert [node.id for node in tree.nodes] == ["n0", "n1", "n1.0/n2", "n1.0/n2.1/n3", "n1.0/n4", "n1.0/n2.0/n3"]
    assert tree.path("n1.0/n4")[-1].returns == 1.0


def test_chains_of_tree_grpo_are_compared_within_their_tree_and_with_all() -> None:
    outcomes = [
        ended("n0.0", 0.0, "n0.0/n1", "n0.0/n2", tree="a"),
        ended("n0.1", 1.0, "n0.1/n1", "n0.1/n2", tree="b"),
        ended("n0.0/n1.0", 1.0, "n0.0/n1.0/n2"),  # grown from a node of a
        ended("n0.2", 1.0, "n0.2/n1", "n0.2/n2", tree="b"),  # grown from b's root, which both share
    ]
    tree = grow_tree("r", line("n0"), outcomes)
    nodes = {node.id: node for node in tree.nodes}
    assert {name: node.tree for name, node in nodes.items() if name in {leaf.id for leaf in tree.leaves}} == {
        "n0.0/n2": "a", "n0.0/n1.0/n2": "a", "n0.1/n2": "b", "n0.2/n2": "b"
    }  # fmt: skip
    assert nodes["n0"].tree is None
    found = {leaf.id: leaf.advantages["tree_grpo"] - leaf.advantages["grpo"] for leaf in tree.leaves}
    assert found == pytest.approx(
        {"n0.0/n2": -(0.5**0.5), "n0.0/n1.0/n2": 0.5**0.5, "n0.1/n2": 0, "n0.2/n2": 0}, abs=1e-5
    )


def test_children_that_end_twice_count_once() -> None:
    child = ended("n1.0", 1.0, "n1.0/n2")
    assert grow_tree("r", line("n0", "n1"), [child, child]) == grow_tree("r", line("n0", "n1"), [child])


@pytest.mark.parametrize(
    ("own", "outcomes", "message"),
    [
        ([], [], "its roots"),
        (line("n0", "n1"), [ended("n7.0", 1.0, "n7.0/n8")], "no node n7"),
        (line("n0", "n1"), [ended("n1.0", 1.0, "n1")], "two different nodes are called n1"),
        (line("n1", "n2", parent="n0"), [], "its roots"),
        ([*line("n0"), *line("n5", parent="n9")], [], "its roots"),
        ([Node(id="n0"), Node(id="n1", parent="n2"), Node(id="n2", parent="n1")], [], "their own ancestors"),
    ],
)
def test_nodes_that_make_no_tree_are_refused(own: list[Node], outcomes: list[ChildOutcome], message: str) -> None:
    with pytest.raises(ResultFileError, match=message) as caught:
        grow_tree("r", own, outcomes)
    assert caught.value.remedy
