"""Trees as they are drawn in a terminal, read as text."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchflow.contracts.branch import ChildOutcome
from benchflow.contracts.rollout_records import Failure, Node, RolloutTree
from benchflow.trajectories.drawing import draw_tree
from benchflow.trajectories.growth import compute_state_values, grow_tree, make_branch_path, make_node_id, merge_nodes
from benchflow.trajectories.state_values import compute_state_value

GONE = "the sandbox that was running is gone: \x1b[31mno such container\n  at line 7"


def drawn(tree: RolloutTree, width: int = 80, **folded: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(draw_tree(tree, width=width, **folded))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def rollout_of(*rewards: float | None) -> RolloutTree:
    nodes = [Node(id="n0")]
    for number, reward in enumerate(rewards, 1):
        found = None if reward is None else {"reward": reward}
        nodes.append(Node(id=f"n{number}", parent=f"n{number - 1}", step=number - 1, role="agent", rewards=found))
    return RolloutTree(rollout="office/1", root="n0", nodes=nodes)


def children_of(start: str, step: int, counts: tuple[int, ...]) -> list[ChildOutcome]:
    """Full trees, whose children run two steps each; the odd ones are rewarded."""
    made = []
    for number in range(counts[0]):
        chain = make_branch_path(start, number)
        names = [make_node_id(chain, step + 1), make_node_id(chain, step + 2)]
        nodes = [Node(id=names[0], parent=start), Node(id=names[1], parent=names[0], checkpoint="c" * len(counts[1:]))]
        below = children_of(names[1], step + 2, counts[1:]) if counts[1:] else []
        made.append(
            ChildOutcome(
                chain=chain,
                number=number,
                reward=None if below else float(number % 2),
                value=compute_state_value(names[1], "mean", below) if below else None,
                leaf=names[1],
                nodes=merge_nodes(nodes, below),
            )
        )
    return made


def tree_of(*counts: int) -> RolloutTree:
    own = [Node(id="n0"), Node(id="n1", parent="n0", checkpoint="c")]
    return grow_tree("office/1", own, children_of("n1", 1, counts))


def with_failures() -> RolloutTree:
    lost = Failure(type="SandboxLostError", category="sandbox_lost", message=GONE)
    own = [Node(id="n0"), Node(id="n1", parent="n0", checkpoint="c")]
    ended = [
        ChildOutcome(chain="n1.0", number=0, failure=lost, nodes=[Node(id="n1.0/n2", parent="n1")]),
        ChildOutcome(chain="n1.2", number=2, reward=0.5, leaf="n1.2/n2", nodes=[Node(id="n1.2/n2", parent="n1")]),
        ChildOutcome(chain="n1.3", number=3, failure=lost),
    ]
    return grow_tree("office/1", own, ended, compute_state_values(ended, pending=["n1.1"]))


def test_a_tree_is_drawn_with_what_its_nodes_are_worth() -> None:
    assert drawn(tree_of(2, 2)) == [
        "office/1  14 nodes, 4 leaves",
        "n0 – n1 ◆  V=0.5±0.0 n=2  A=0.0",
        "├─ n1.0/n2 – n3 ◆  V=0.5±0.5 n=2  A=0.0",
        "│  ├─ n1.0/n3.0/n4 – n5  return=0.0  A=-0.866",
        "│  └─ n1.0/n3.1/n4 – n5  return=1.0  A=+0.866",
        "└─ n1.1/n2 – n3 ◆  V=0.5±0.5 n=2  A=0.0",
        "   ├─ n1.1/n3.0/n4 – n5  return=0.0  A=-0.866",
        "   └─ n1.1/n3.1/n4 – n5  return=1.0  A=+0.866",
        "◆ checkpoint · V of n children's returns ± standard error · A: advantage, grpo",
    ]


def test_a_large_tree_has_a_line_for_each_child() -> None:
    lines = drawn(tree_of(4, 3, 2), 100)
    assert len(lines) == 3 + 4 + 4 * 3 + 4 * 3 * 2
    assert "│  └─ n1.0/n3.2/n4 – n5 ◆  V=0.5±0.5 n=2  A=0.0" in lines
    assert "      └─ n1.3/n3.2/n5.1/n6 – n7  return=1.0  A=+0.979" in lines


def test_a_rollout_that_never_branched_is_one_line_where_there_is_nothing_to_tell_between() -> None:
    assert drawn(rollout_of(*[None] * 19, 0.75)) == ["office/1  21 nodes, 1 leaf", "n0 – n20  reward=0.75"]


def test_a_rollout_whose_steps_were_scored_has_a_line_a_step() -> None:
    lines = drawn(rollout_of(*[number / 4 for number in range(20)]))
    assert lines[1:4] == ["n0 – n1  reward=0.0", "n2  reward=0.25", "n3  reward=0.5"]
    assert len(lines) == 21


def test_children_that_failed_say_why_and_those_that_run_that_they_do() -> None:
    assert drawn(with_failures(), 100) == [
        "office/1  4 nodes, 2 leaves",
        "n0 – n1 ◆  V=0.5 n=1",
        "├─ n1.0/n2  failed: the sandbox that was running is gone: ␛no such container",
        "├─ n1.1  still running",
        "├─ n1.2/n2  return=0.5",
        "└─ n1.3  failed: the sandbox that was running is gone: ␛no such container",
        "◆ checkpoint · V of n children's returns ± standard error",
    ]


def test_in_a_narrow_terminal_lines_go_on_below_and_names_are_relative() -> None:
    assert drawn(with_failures(), 30)[1:6] == [
        "n0 – n1 ◆  V=0.5 n=1",
        "├─ n1.0/n2  failed: the",
        "│     sandbox that was running",
        "│     is gone: ␛no such",
        "│     container",
    ]
    assert drawn(tree_of(2, 2), 30)[1:7] == [
        "n0 – n1 ◆  V=0.5±0.0 n=2",
        "│  A=0.0",
        "├─ .0/n2 – n3 ◆  V=0.5±0.5",
        "│  │  n=2  A=0.0",
        "│  ├─ .0/n4 – n5  return=0.0",
        "│  │  A=-0.866",
    ]


@pytest.mark.parametrize("width", [8, 20, 40, 80, 200])
@pytest.mark.parametrize("tree", [tree_of(4, 3, 2), tree_of(*[1] * 30), with_failures(), rollout_of(*[1.0] * 20)])
def test_no_line_is_wider_than_the_terminal(tree: RolloutTree, width: int) -> None:
    lines = drawn(tree, width)
    assert max(map(len, lines)) <= width
    if width >= 40:
        assert sum("return=" in line or "reward=" in line for line in lines) == sum(
            node.returns is not None or node.rewards is not None for node in tree.nodes
        )


def test_a_rollout_that_went_on_from_a_child_goes_on_below_it() -> None:
    own = [
        Node(id="n0"),
        Node(id="n1", parent="n0", role="agent"),
        Node(id="n4", parent="n1.1/n3", role="critic"),
        Node(id="n5", parent="n4", role="agent"),
    ]
    assert drawn(grow_tree("office/1", own, children_of("n1", 1, (2,)), returns=0.125))[1:-1] == [
        "n0 – n1  agent  V=0.5±0.5 n=2  A=0.0",
        "├─ n1.0/n2 – n3  return=0.0  A=-0.707",
        "└─ n1.1/n2 – n3  return=1.0",
        "   n4  critic",
        "   n5  agent  return=0.125  A=+0.707",
    ]


def test_the_advantages_of_trees_of_tree_grpo_are_those() -> None:
    children = [child.model_copy(update={"tree": "ab"[child.number]}) for child in children_of("n0", 0, (2,))]
    lines = drawn(grow_tree("office/1", [Node(id="n0")], children))
    assert lines[-1].endswith("A: advantage, tree_grpo")


def test_trees_whose_nodes_have_other_names_are_drawn_as_well() -> None:
    nodes = [Node(id="a"), Node(id="b", parent="a"), Node(id="c", parent="a"), Node(id="d", parent="a")]
    assert drawn(RolloutTree(rollout="r", root="a", nodes=nodes))[1:] == ["a", "├─ c", "├─ d", "b"]


# --- large trees ---------------------------------------------------------------------------------------------


def test_what_is_too_deep_is_folded_into_a_line_that_tells_what_it_came_to() -> None:
    assert drawn(tree_of(2, 3, 2), depth=1)[1:] == [
        "n0 – n1 ◆  V=0.5±0.0 n=2  A=0.0",
        "├─ n1.0/n2 – n3 ◆  V=0.5±0.0 n=3  A=0.0",
        "│  └─ … 3 children, 6 leaves  return=0.0 … 1.0, mean 0.5",
        "└─ n1.1/n2 – n3 ◆  V=0.5±0.0 n=3  A=0.0",
        "   └─ … 3 children, 6 leaves  return=0.0 … 1.0, mean 0.5",
        "◆ checkpoint · V of n children's returns ± standard error · A: advantage, grpo",
    ]
    assert drawn(tree_of(2, 3, 2), depth=0)[2] == "└─ … 2 children, 12 leaves  return=0.0 … 1.0, mean 0.5"


def test_children_that_are_too_many_are_folded_and_those_that_failed_are_named() -> None:
    lost = Failure(type="SandboxLostError", category="sandbox_lost", message=GONE)
    own = [Node(id="n0"), Node(id="n1", parent="n0")]
    ended = children_of("n1", 1, (9,))
    gone = [ChildOutcome(chain=f"n1.{number}", number=number, failure=lost) for number in (9, 11, 12)]
    begun = ended[5].model_copy(update={"failure": lost, "reward": None})
    values = [*ended[:5], begun, *ended[6:], *gone]
    tree = grow_tree("office/1", own, values, [compute_state_value("n1", "mean", values, ["n1.10"])])
    assert drawn(tree, 120, limit=2)[4] == (
        "└─ … 11 more children  return=0.0 … 1.0, mean 0.333  1 still running  4 failed: n1.5, n1.9, n1.11, …"
    )
    # One more needs no more lines than what it would be folded into.
    assert drawn(tree_of(3), limit=2) == drawn(tree_of(3))


def test_a_thousand_leaves_fit_where_they_have_to_and_are_all_there_where_not() -> None:
    deep, wide = tree_of(10, 10, 10), tree_of(1000)
    for tree in (deep, wide):
        lines = drawn(tree, most=100)
        assert 10 < len(lines) <= 102
        assert sum("…" in line for line in lines) > 0
        assert max(map(len, lines)) <= 80
    assert len(drawn(deep, 1000)) == 3 + 10 + 100 + 1000
    assert len(drawn(tree_of(4, 3), most=100)) == len(drawn(tree_of(4, 3)))
    assert len(drawn(deep, most=100, limit=10)) == len(drawn(deep))


# --- what else is known ----------------------------------------------------------------------------------------


def test_how_the_sessions_of_children_went_on_is_told_where_there_were_any() -> None:
    tree = tree_of(2)
    rungs = {"n1.0/n2": "load", "n1.1/n2": "fresh"}
    nodes = [node.model_copy(update={"rung": rungs.get(node.id)}) for node in tree.nodes]
    assert drawn(tree.model_copy(update={"nodes": nodes}))[2:4] == [
        "├─ n1.0/n2 – n3  session=load  return=0.0  A=-0.707",
        "└─ n1.1/n2 – n3  session=fresh  return=1.0  A=+0.707",
    ]
    nodes = [node.model_copy(update={"rung": "process" if node.id in rungs else None}) for node in tree.nodes]
    assert drawn(tree.model_copy(update={"nodes": nodes})) == drawn(tree)


def test_rewards_that_were_given_afterwards_are_told_by_their_names() -> None:
    tree = rollout_of(None, 0.5)
    given = tree.nodes[1].model_copy(update={"rewards": {"calm": 0.25}, "given": ("calm",)})
    nodes = [tree.nodes[0], given, tree.nodes[2]]
    assert drawn(tree.model_copy(update={"nodes": nodes}))[1:] == ["n0 – n1  calm=0.25", "n2  reward=0.5"]


def test_what_makes_values_doubtful_is_told_below_the_tree() -> None:
    warned = tree_of(2).model_copy(update={"warnings": [f"n1.{number}: \x1b[1mit differs" for number in range(7)]})
    lines = drawn(warned)
    assert "warning: n1.0: ␛[1mit differs" in [line.rstrip() for line in lines]
    assert lines[-1].rstrip() == "warning: 2 more in tree.json"
