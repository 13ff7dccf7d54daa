"""How a tree grows: the names of its chains and nodes, and one tree of what a rollout and its children have reached.

A chain is what one rollout runs: the root's has the nodes n0, n1, …; child number j of the node v has the chain `v.j`,
whose nodes are `v.j/n<k>`, where k counts all steps from the root. A child hands up its own nodes and those of all
below it, each with what it knows of it; who merges adds what only a parent knows. Trees of thousands of nodes take
longer than a workflow may think: it asks for `state_value`, and activities let the tree grow.
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


def grow(
    rollout: str,
    own: Sequence[Node],
    outcomes: Iterable[ChildOutcome],
    aggregate: str | Aggregate = "mean",
    *,
    pending: Iterable[str] = (),
    returns: float | None = None,
) -> RolloutTree:
    """The tree of a rollout as far as it has grown: root first, parents before children, whatever came first.

    own: the nodes of the root's chain. outcomes: of its children. pending: chains that have not ended. returns: the
    reward of the root's chain where it came to an end of its own. Raises `ResultFileError` for nodes that make no tree.
    """
    nodes = {node.id: node for node in merge(own, outcomes, aggregate, pending=pending)}
    roots = [node for node in nodes.values() if node.parent not in nodes]
    if not own or roots != [nodes[own[0].id]] or roots[0].parent is not None:
        raise _spoilt(f"its roots are {[node.id for node in roots]}")
    if returns is not None and not _has_branched(nodes[own[-1].id]):
        _change(nodes, own[-1].id, {"returns": returns})
    return RolloutTree(rollout=rollout, root=own[0].id, nodes=_with_advantages(list(nodes.values())))


def merge(
    own: Iterable[Node],
    outcomes: Iterable[ChildOutcome],
    aggregate: str | Aggregate = "mean",
    *,
    pending: Iterable[str] = (),
) -> list[Node]:
    """The nodes of a chain and of all below it, with the V(s) of those that branched and the returns of those that
    ended: what a child hands up. Its own return is its parent's to add.
    """
    ended = list(outcomes)
    nodes = _together([own, *(outcome.nodes for outcome in ended)])
    for value in _values(ended, aggregate, pending):
        _change(nodes, value.node, _known_of(value))
    for outcome in ended:
        if outcome.leaf is not None and outcome.reward is not None and not _has_branched(_get(nodes, outcome.leaf)):
            _change(nodes, outcome.leaf, {"returns": outcome.reward})
    trees = {outcome.chain: outcome.tree for outcome in ended if outcome.tree is not None}
    for node in nodes.values():
        chain = chain_of(node.id)
        tree = node.tree or _tree_of(chain, trees)
        if (node.chain or "", node.tree) != (chain, tree):
            nodes[node.id] = node.model_copy(update={"chain": chain or None, "tree": tree})
    return _in_order(nodes)


def _together(sources: Iterable[Iterable[Node]]) -> Nodes:
    nodes: Nodes = {}
    for source in sources:
        for node in source:
            if nodes.setdefault(node.id, node) != node:
                raise _spoilt(f"two different nodes are called {node.id}")
    return nodes


def _values(ended: Sequence[ChildOutcome], aggregate: str | Aggregate, pending: Iterable[str]) -> Iterable[StateValue]:
    """V(s) of all nodes where one of these chains begins."""
    children: dict[str, list[ChildOutcome]] = defaultdict(list)
    running: dict[str, list[str]] = defaultdict(list)
    for outcome in ended:
        children[start_of(outcome.chain) or ""].append(outcome)
    for chain in pending:
        running[start_of(chain) or ""].append(chain)
    for node in sorted(children.keys() | running.keys()):
        yield state_value(node, aggregate, children[node], running[node])


def _known_of(value: StateValue) -> dict[str, Any]:
    names = ("value", "n", "variance", "stderr", "failed", "pending")
    return {name: getattr(value, name) for name in names}


def _has_branched(node: Node) -> bool:
    return bool(node.n or node.failed or node.pending)


def _tree_of(chain: str, trees: Mapping[str, str]) -> str | None:
    """The tree of Tree-GRPO that a chain belongs to: its own, else that of the chain where it begins."""
    while chain and chain not in trees:
        chain = chain_of(start_of(chain) or "")
    return trees.get(chain)


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
        # The last of what waits is the next.
        waiting += sorted(children[node.id], key=lambda child: (child.id not in onward, _place(child)), reverse=True)
    if len(ordered) != len(nodes):
        raise _spoilt("some of its nodes are their own ancestors")
    return ordered


def _onward(nodes: Nodes) -> set[str]:
    """The nodes by which a chain goes on: its own, and those of the child from whose end it went on."""
    onward: set[str] = set()
    for node in nodes.values():
        chain = chain_of(node.id)
        at: Node | None = node
        while at is not None and at.parent is not None and at.parent != start_of(chain):
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
    by_name = {name: advantages_of_nodes(parents, estimate) for name, estimate in estimates.items()}
    return [
        node.model_copy(
            update={"advantages": {name: found[node.id] for name, found in by_name.items() if node.id in found}}
        )
        for node in nodes
    ]


def _measured_leaves(nodes: Sequence[Node]) -> dict[str, dict[str, float]]:
    """The returns of the trajectories that have one, by the tree of Tree-GRPO and the leaf."""
    parents = {node.parent for node in nodes}
    failed = {chain for node in nodes for chain in node.failed}
    trees: dict[str, dict[str, float]] = defaultdict(dict)
    for node in nodes:
        if node.id not in parents and node.returns is not None and not _is_below(chain_of(node.id), failed):
            trees[node.tree or ""][node.id] = node.returns
    return trees


def _is_below(chain: str, failed: set[str]) -> bool:
    while chain and chain not in failed:
        chain = chain_of(start_of(chain) or "")
    return bool(chain)


# --- what is wrong --------------------------------------------------------------------------------------


def _get(nodes: Nodes, node: str) -> Node:
    if node not in nodes:
        raise _spoilt(f"it has no node {node}")
    return nodes[node]


def _change(nodes: Nodes, node: str, update: Mapping[str, Any]) -> None:
    nodes[node] = _get(nodes, node).model_copy(update=update)


def _spoilt(message: str) -> ResultFileError:
    return ResultFileError(f"the nodes make no tree: {message}", remedy="restore the file, or leave the rollout out")
