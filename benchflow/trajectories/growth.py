"""How a tree grows: the names of its chains and nodes, and one tree of what a rollout and its children have reached.

A chain is what one rollout runs: the root's has the nodes n0, n1, …; child number j of the node v has the chain `v.j`,
whose nodes are `v.j/n<k>`, where k counts all steps from the root. A child hands up its own nodes and those of all
below it, each with what it knows of it; who merges adds what only a parent knows. Workflows do this whenever a child
has ended, and must not think for long: the time that it takes is linear in the nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchflow.contracts.branch import ChildOutcome, StateValue
from benchflow.contracts.rollout import Node, RolloutTree
from benchflow.errors import ResultFileError
from benchflow.trajectories.values import (
    Aggregate,
    advantages_of_nodes,
    grpo,
    leave_one_out,
    state_value,
    tree_grpo,
)

Nodes = dict[str, Node]

_ASKED = "-asked"


# --- names ----------------------------------------------------------------------------------------------


def chain_of(node: str) -> str:
    """The chain that a node belongs to; empty for the root's."""
    return node.rpartition("/")[0]


def chains_above(chain: str) -> list[str]:
    """A chain and those by way of which it was come to, from the root's on."""
    start = start_of(chain)
    return [chain] if start is None else [*chains_above(chain_of(start)), chain]


def child_chain(node: str, number: int) -> str:
    """The chain of a node's child of this number."""
    return f"{node}.{number}"


def node_in(chain: str, step: int) -> str:
    """The node of a chain to which so many steps, counted from the root, have led."""
    return f"{chain}/n{step}" if chain else f"n{step}"


def asked_in(chain: str, steps_done: int) -> str:
    """The node of a chain at which the agent has asked its user, in the step after so many."""
    return f"{node_in(chain, steps_done + 1)}{_ASKED}"


def is_asked(node: str) -> bool:
    """Whether a node is such a pause, which no step has led to."""
    return node.endswith(_ASKED)


def turn_of(node: str) -> str:
    """The node that the step leads to in which the agent has asked."""
    return node.removesuffix(_ASKED)


def start_of(chain: str) -> str | None:
    """The node where a chain begins, which belongs to another; None for the root's."""
    return chain.rpartition(".")[0] if chain else None


# --- trees ----------------------------------------------------------------------------------------------


def state_values(
    outcomes: Iterable[ChildOutcome],
    aggregate: str = "mean",
    pending: Iterable[str] = (),
    *,
    own: Aggregate | None = None,
) -> list[StateValue]:
    """V(s) of all nodes where one of these chains begins, as `state_value` has it."""
    children: dict[str, list[ChildOutcome]] = defaultdict(list)
    running: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        children[start_of(outcome.chain) or ""].append(outcome)
    for chain in pending:
        running[start_of(chain) or ""].append(chain)
    nodes = sorted(children.keys() | running.keys())
    return [state_value(node, aggregate, children[node], running[node], own=own) for node in nodes]


def grow(
    rollout: str,
    own: Sequence[Node],
    outcomes: Iterable[ChildOutcome],
    values: Iterable[StateValue] | None = None,
    *,
    returns: float | None = None,
) -> RolloutTree:
    """The tree of a rollout as far as it has grown: root first, parents before children, whatever came first.

    own: the nodes of the root's chain. outcomes, values: as in `merge`. returns: the reward of that chain, where it
    came to an end of its own. Raises `ResultFileError` for nodes that make no tree.
    """
    nodes = {node.id: node for node in merge(own, outcomes, values)}
    roots = [node for node in nodes.values() if node.parent not in nodes]
    if not own or roots != [nodes[own[0].id]] or roots[0].parent is not None:
        raise _spoilt(f"its roots are {[node.id for node in roots]}")
    if returns is not None and not _has_branched(nodes[own[-1].id]):
        _change(nodes, own[-1].id, {"returns": returns})
    return RolloutTree(rollout=rollout, root=own[0].id, nodes=_with_advantages(_in_order(nodes)))


def merge(
    own: Iterable[Node], outcomes: Iterable[ChildOutcome], values: Iterable[StateValue] | None = None
) -> list[Node]:
    """The nodes of a chain and of all below it, in any order, with the V(s) of those that branched and the returns of
    those that ended: what a child hands up. Its own return is its parent's to add.

    values: of the nodes where the outcomes' chains begin; what is below them is worth what the outcomes say. None: the
    mean of the returns. Linear in the nodes, since each rollout does it again for all that is below it.
    """
    ended = list(outcomes)
    nodes = _together([own, *(outcome.nodes for outcome in ended)])
    for value in state_values(ended) if values is None else values:
        _change(nodes, value.node, _known_of(value))
    for outcome in ended:
        if outcome.leaf is not None and outcome.reward is not None and not _has_branched(_get(nodes, outcome.leaf)):
            _change(nodes, outcome.leaf, {"returns": outcome.reward})
    trees = _Trees({outcome.chain: outcome.tree for outcome in ended if outcome.tree is not None})
    for node in nodes.values():
        chain = chain_of(node.id)
        tree = node.tree or trees[chain]
        if node.tree != tree or (node.chain or "") != chain:
            nodes[node.id] = node.model_copy(update={"chain": chain or None, "tree": tree})
    return list(nodes.values())


def _together(sources: Iterable[Iterable[Node]]) -> Nodes:
    nodes: Nodes = {}
    for source in sources:
        for node in source:
            known = nodes.setdefault(node.id, node)
            if known is not node and known != node:
                raise _spoilt(f"two different nodes are called {node.id}")
    return nodes


def _known_of(value: StateValue) -> dict[str, Any]:
    names = ("value", "n", "variance", "stderr", "failed", "pending")
    return {name: getattr(value, name) for name in names}


def _has_branched(node: Node) -> bool:
    return bool(node.n or node.failed or node.pending)


class _Trees(dict[str, str | None]):
    """The tree of Tree-GRPO that a chain belongs to: its own, else that of the chain where it begins."""

    def __missing__(self, chain: str) -> str | None:
        below: list[str] = []
        while chain and chain not in self:
            below.append(chain)
            chain = chain_of(start_of(chain) or "")
        found = self.get(chain)
        self.update(dict.fromkeys(below, found))
        return found


# --- order ----------------------------------------------------------------------------------------------


def _in_order(nodes: Nodes) -> list[Node]:
    """Parents before children; first the child by which a chain goes on, then by number: so the first children of all
    nodes lead to where the rollout's own chain has come.
    """
    children: dict[str | None, list[Node]] = defaultdict(list)
    for node in nodes.values():
        children[node.parent if node.parent in nodes else None].append(node)
    onward = _onward(nodes)
    ordered: list[Node] = []
    waiting = sorted(children[None], key=_place, reverse=True)
    while waiting:
        node = waiting.pop()
        ordered.append(node)
        below = children.get(node.id, ())
        if len(below) > 1:
            below = sorted(below, key=lambda child: (child.id not in onward, _place(child)), reverse=True)
        # The last of what waits is the next.
        waiting += below
    if len(ordered) != len(nodes):
        raise _spoilt("some of its nodes are their own ancestors")
    return ordered


def _onward(nodes: Nodes) -> set[str]:
    """The nodes by which a chain goes on: its own, and those of the child from whose end it went on."""
    onward: set[str] = set()
    for node in nodes.values():
        chain = chain_of(node.id)
        start = start_of(chain)
        at: Node | None = node
        while at is not None and at.parent is not None and at.parent != start:
            onward.add(at.id)
            at = nodes.get(at.parent) if chain_of(at.parent) != chain else None
    return onward


def _place(node: Node) -> tuple[int, str]:
    number = chain_of(node.id).rpartition(".")[2]
    return (int(number) if number.isdecimal() else -1, node.id)


# --- advantages -----------------------------------------------------------------------------------------


def _with_advantages(nodes: Sequence[Node]) -> list[Node]:
    """All leaves that have a return are one group; nothing of a child that failed counts."""
    trees = _measured_leaves(nodes)
    returns = {leaf: value for tree in trees.values() for leaf, value in tree.items()}
    parents = {node.id: node.parent for node in nodes}
    estimates = {"grpo": grpo(returns), "leave_one_out": leave_one_out(returns), "tree_grpo": tree_grpo(trees)}
    by_node: dict[str, dict[str, float]] = defaultdict(dict)
    for name, estimate in estimates.items():
        for node, advantage in advantages_of_nodes(parents, estimate).items():
            by_node[node][name] = advantage
    return [
        node.model_copy(update={"advantages": by_node[node.id]}) if node.id in by_node or node.advantages else node
        for node in nodes
    ]


def _measured_leaves(nodes: Sequence[Node]) -> dict[str, dict[str, float]]:
    """The returns of the trajectories that have one, by the tree of Tree-GRPO and the leaf."""
    parents = {node.parent for node in nodes}
    failed = {chain for node in nodes for chain in node.failed}
    trees: dict[str, dict[str, float]] = defaultdict(dict)
    for node in nodes:
        if node.returns is not None and node.id not in parents and not _is_below(chain_of(node.id), failed):
            trees[node.tree or ""][node.id] = node.returns
    return trees


def _is_below(chain: str, failed: set[str]) -> bool:
    while failed and chain and chain not in failed:
        chain = chain_of(start_of(chain) or "")
    return bool(failed and chain)


# --- what is wrong --------------------------------------------------------------------------------------


def _get(nodes: Nodes, node: str) -> Node:
    if node not in nodes:
        raise _spoilt(f"it has no node {node}")
    return nodes[node]


def _change(nodes: Nodes, node: str, update: Mapping[str, Any]) -> None:
    nodes[node] = _get(nodes, node).model_copy(update=update)


def _spoilt(message: str) -> ResultFileError:
    return ResultFileError(f"the nodes make no tree: {message}", remedy="restore the file, or leave the rollout out")
