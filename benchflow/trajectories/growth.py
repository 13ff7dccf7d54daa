"""Growth of a tree: ids of its branch paths and nodes, and the tree of a rollout's nodes and those of its children.

A branch path holds the nodes that one rollout runs: the root's has the nodes n0, n1, …; child number j of the node v
has the branch path `v.j`, whose nodes are `v.j/n<k>`, where k counts all steps from the root. A child returns its own
nodes and those of all below it, each with the values that it knows; the parent that merges them adds those that only a
parent knows. Workflows merge whenever a child has ended, and must not block for long: the time is linear in the number
of nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchflow.contracts.branch import ChildOutcome, StateValue
from benchflow.contracts.rollout_records import Node, RolloutTree
from benchflow.errors import ResultFileError
from benchflow.trajectories.state_values import (
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
    """Return the branch path of a node; empty for the root's."""
    return node.rpartition("/")[0]


def chains_above(chain: str) -> list[str]:
    """Return a branch path and those that lead to it, from the root's on."""
    start = start_of(chain)
    return [chain] if start is None else [*chains_above(chain_of(start)), chain]


def child_chain(node: str, number: int) -> str:
    """Return the branch path of a node's child of this number."""
    return f"{node}.{number}"


def node_in(chain: str, step: int) -> str:
    """Return the id of a branch path's node after a number of steps, counted from the root."""
    return f"{chain}/n{step}" if chain else f"n{step}"


def asked_in(chain: str, steps_done: int) -> str:
    """Return the id of a branch path's node of a question that the agent asks in the step after `steps_done` steps."""
    return f"{node_in(chain, steps_done + 1)}{_ASKED}"


def is_asked(node: str) -> bool:
    """Return whether a node is that of a question, within a step."""
    return node.endswith(_ASKED)


def turn_of(node: str) -> str:
    """Return the node to which the step of a question leads; any other node itself."""
    return node.removesuffix(_ASKED)


def start_of(chain: str) -> str | None:
    """Return the node where a branch path starts, which belongs to another one; None for the root's."""
    return chain.rpartition(".")[0] if chain else None


# --- trees ----------------------------------------------------------------------------------------------


def state_values(
    outcomes: Iterable[ChildOutcome],
    aggregate: str = "mean",
    pending: Iterable[str] = (),
    *,
    own: Aggregate | None = None,
) -> list[StateValue]:
    """Return V(s) of all nodes where one of these children starts, sorted by node.

    Args:
        outcomes: Outcomes of children that have ended.
        aggregate: As in `BranchConfig`.
        pending: Branch paths of children that were started.
        own: The user's function of that aggregate; None if it is not to be called.
    """
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
    """Build the tree of a rollout so far: root first, parents before children, in whatever order the nodes came.

    Args:
        rollout: Workflow id of the root.
        own: Nodes of the root's branch path, in order.
        outcomes: As in `merge`.
        values: As in `merge`.
        returns: Reward of the root's branch path, if it ended without branching at its last node.

    Raises:
        ResultFileError: The nodes make no tree.
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
    """Return the nodes of a branch path and of all below it, in any order, as a child returns them to its parent.

    Nodes that branched have their V(s), and leaves of ended children their returns; the own return is added by the
    parent. Linear in the number of nodes, since each rollout merges all nodes below it again.

    Args:
        own: Nodes of the branch path.
        outcomes: Outcomes of its children that have ended.
        values: V(s) of the nodes where the children start; nodes below them have theirs already. None: computed as the
            mean of the returns.

    Raises:
        ResultFileError: Two different nodes have one id, or a node is missing.
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
    """Return all nodes by id. Raise `ResultFileError` if two different ones have the same id."""
    nodes: Nodes = {}
    for source in sources:
        for node in source:
            known = nodes.setdefault(node.id, node)
            if known is not node and known != node:
                raise _spoilt(f"two different nodes are called {node.id}")
    return nodes


def _known_of(value: StateValue) -> dict[str, Any]:
    """Return the fields of a node that V(s) sets."""
    names = ("value", "n", "variance", "stderr", "failed", "pending")
    return {name: getattr(value, name) for name in names}


def _has_branched(node: Node) -> bool:
    return bool(node.n or node.failed or node.pending)


class _Trees(dict[str, str | None]):
    """Tree of Tree-GRPO by branch path: its own, else that of the branch path where it starts."""

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
    """Return the nodes in order: parents before children, and children by number.

    The child by which a branch path continues comes first. So the first children of all nodes lead to the last node of
    the rollout's own branch path.
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
        # `pop` takes the last one.
        waiting += below
    if len(ordered) != len(nodes):
        raise _spoilt("some of its nodes are their own ancestors")
    return ordered


def _onward(nodes: Nodes) -> set[str]:
    """Return the ids of nodes by which branch paths continue: their own, and of children from whose end they did."""
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
    """Return a node's sort key: the number of its child, then its id."""
    number = chain_of(node.id).rpartition(".")[2]
    return (int(number) if number.isdecimal() else -1, node.id)


# --- advantages -----------------------------------------------------------------------------------------


def _with_advantages(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with advantages. All leaves with a return are one group; failed children are left out."""
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
    """Return the returns of leaves that have one, by tree of Tree-GRPO and leaf, without those of failed children."""
    parents = {node.parent for node in nodes}
    failed = {chain for node in nodes for chain in node.failed}
    trees: dict[str, dict[str, float]] = defaultdict(dict)
    for node in nodes:
        if node.returns is not None and node.id not in parents and not _is_below(chain_of(node.id), failed):
            trees[node.tree or ""][node.id] = node.returns
    return trees


def _is_below(chain: str, failed: set[str]) -> bool:
    """Return whether a branch path is one of those that failed, or starts below one."""
    while failed and chain and chain not in failed:
        chain = chain_of(start_of(chain) or "")
    return bool(failed and chain)


# --- errors ---------------------------------------------------------------------------------------------


def _get(nodes: Nodes, node: str) -> Node:
    if node not in nodes:
        raise _spoilt(f"it has no node {node}")
    return nodes[node]


def _change(nodes: Nodes, node: str, update: Mapping[str, Any]) -> None:
    nodes[node] = _get(nodes, node).model_copy(update=update)


def _spoilt(message: str) -> ResultFileError:
    return ResultFileError(f"the nodes make no tree: {message}", remedy="restore the file, or leave the rollout out")
