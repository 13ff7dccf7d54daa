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
    compute_grpo,
    compute_leave_one_out,
    compute_node_advantages,
    compute_state_value,
    compute_tree_grpo,
)

Nodes = dict[str, Node]

_ASKED = "-asked"

_VALUE_FIELDS = ("value", "n", "variance", "stderr", "failed", "pending")
"""Fields of a node that V(s) sets."""


# --- names ----------------------------------------------------------------------------------------------


def get_branch_path(node: str) -> str:
    """Return the branch path of a node; empty for the root's."""
    return node.rpartition("/")[0]


def list_branch_paths(chain: str) -> list[str]:
    """Return a branch path and those that lead to it, from the root's on."""
    start = get_start_node(chain)
    return [chain] if start is None else [*list_branch_paths(get_branch_path(start)), chain]


def make_branch_path(node: str, number: int) -> str:
    """Return the branch path of a node's child of this number."""
    return f"{node}.{number}"


def make_node_id(chain: str, step: int) -> str:
    """Return the id of a branch path's node after a number of steps, counted from the root."""
    return f"{chain}/n{step}" if chain else f"n{step}"


def make_question_id(chain: str, steps_done: int) -> str:
    """Return the id of a branch path's node of a question that the agent asks in the step after `steps_done` steps."""
    return f"{make_node_id(chain, steps_done + 1)}{_ASKED}"


def is_question(node: str) -> bool:
    """Return whether a node is that of a question, within a step."""
    return node.endswith(_ASKED)


def get_step_node(node: str) -> str:
    """Return the node to which the step of a question leads; any other node itself."""
    return node.removesuffix(_ASKED)


def get_start_node(chain: str) -> str | None:
    """Return the node where a branch path starts, which belongs to another one; None for the root's."""
    return chain.rpartition(".")[0] if chain else None


# --- trees ----------------------------------------------------------------------------------------------


def compute_state_values(
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
        children[get_start_node(outcome.chain) or ""].append(outcome)
    for chain in pending:
        running[get_start_node(chain) or ""].append(chain)
    nodes = sorted(children.keys() | running.keys())
    return [compute_state_value(node, aggregate, children[node], running[node], own=own) for node in nodes]


def grow_tree(
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
        outcomes: As in `merge_nodes`.
        values: As in `merge_nodes`.
        returns: Reward of the root's branch path, if it ended without branching at its last node.

    Raises:
        ResultFileError: The nodes make no tree.
    """
    nodes = {node.id: node for node in merge_nodes(own, outcomes, values)}
    roots = [node for node in nodes.values() if node.parent not in nodes]
    if not own or roots != [nodes[own[0].id]] or roots[0].parent is not None:
        raise _make_error(f"its roots are {[node.id for node in roots]}")
    if returns is not None and not _has_branched(nodes[own[-1].id]):
        _update_node(nodes, own[-1].id, {"returns": returns})
    return RolloutTree(rollout=rollout, root=own[0].id, nodes=_add_advantages(_sort_nodes(nodes)))


def merge_nodes(
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
    nodes = _collect_nodes([own, *(outcome.nodes for outcome in ended)])
    for value in compute_state_values(ended) if values is None else values:
        _update_node(nodes, value.node, {name: getattr(value, name) for name in _VALUE_FIELDS})
    for outcome in ended:
        if (
            outcome.leaf is not None
            and outcome.reward is not None
            and not _has_branched(_get_node(nodes, outcome.leaf))
        ):
            _update_node(nodes, outcome.leaf, {"returns": outcome.reward})
    trees = _Trees({outcome.chain: outcome.tree for outcome in ended if outcome.tree is not None})
    for node in nodes.values():
        chain = get_branch_path(node.id)
        tree = node.tree or trees[chain]
        if node.tree != tree or (node.chain or "") != chain:
            nodes[node.id] = node.model_copy(update={"chain": chain or None, "tree": tree})
    return list(nodes.values())


def _collect_nodes(sources: Iterable[Iterable[Node]]) -> Nodes:
    """Return all nodes by id. Raise `ResultFileError` if two different ones have the same id."""
    nodes: Nodes = {}
    for source in sources:
        for node in source:
            known = nodes.setdefault(node.id, node)
            if known is not node and known != node:
                raise _make_error(f"two different nodes are called {node.id}")
    return nodes


def _has_branched(node: Node) -> bool:
    return bool(node.n or node.failed or node.pending)


class _Trees(dict[str, str | None]):
    """Tree of Tree-GRPO by branch path: its own, else that of the branch path where it starts."""

    def __missing__(self, chain: str) -> str | None:
        below: list[str] = []
        while chain and chain not in self:
            below.append(chain)
            chain = get_branch_path(get_start_node(chain) or "")
        found = self.get(chain)
        self.update(dict.fromkeys(below, found))
        return found


# --- order ----------------------------------------------------------------------------------------------


def _sort_nodes(nodes: Nodes) -> list[Node]:
    """Return the nodes in order: parents before children, and children by number.

    The child by which a branch path continues comes first. So the first children of all nodes lead to the last node of
    the rollout's own branch path.
    """
    children: dict[str | None, list[Node]] = defaultdict(list)
    for node in nodes.values():
        children[node.parent if node.parent in nodes else None].append(node)
    onward = _find_continuing(nodes)
    ordered: list[Node] = []
    waiting = sorted(children[None], key=_make_sort_key, reverse=True)
    while waiting:
        node = waiting.pop()
        ordered.append(node)
        below = children.get(node.id, ())
        if len(below) > 1:
            below = sorted(below, key=lambda child: (child.id not in onward, _make_sort_key(child)), reverse=True)
        # `pop` takes the last one.
        waiting += below
    if len(ordered) != len(nodes):
        raise _make_error("some of its nodes are their own ancestors")
    return ordered


def _find_continuing(nodes: Nodes) -> set[str]:
    """Return the ids of nodes by which branch paths continue: their own, and of children from whose end they did."""
    onward: set[str] = set()
    for node in nodes.values():
        chain = get_branch_path(node.id)
        start = get_start_node(chain)
        at: Node | None = node
        while at is not None and at.parent is not None and at.parent != start:
            onward.add(at.id)
            at = nodes.get(at.parent) if get_branch_path(at.parent) != chain else None
    return onward


def _make_sort_key(node: Node) -> tuple[int, str]:
    """Return a node's sort key: the number of its child, then its id."""
    number = get_branch_path(node.id).rpartition(".")[2]
    return (int(number) if number.isdecimal() else -1, node.id)


# --- advantages -----------------------------------------------------------------------------------------


def _add_advantages(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with new advantages, by estimator; older ones are dropped.

    For `grpo` and `leave_one_out` all leaves with a return are one group; `tree_grpo` compares within trees. Failed
    children are left out.
    """
    trees = _collect_returns(nodes)
    returns = {leaf: value for tree in trees.values() for leaf, value in tree.items()}
    parents = {node.id: node.parent for node in nodes}
    estimates = {
        "grpo": compute_grpo(returns),
        "leave_one_out": compute_leave_one_out(returns),
        "tree_grpo": compute_tree_grpo(trees),
    }
    by_node: dict[str, dict[str, float]] = defaultdict(dict)
    for name, estimate in estimates.items():
        for node, advantage in compute_node_advantages(parents, estimate).items():
            by_node[node][name] = advantage
    return [
        node.model_copy(update={"advantages": by_node[node.id]}) if node.id in by_node or node.advantages else node
        for node in nodes
    ]


def _collect_returns(nodes: Sequence[Node]) -> dict[str, dict[str, float]]:
    """Return the returns of leaves that have one, by tree of Tree-GRPO and leaf, without those of failed children."""
    parents = {node.parent for node in nodes}
    failed = {chain for node in nodes for chain in node.failed}
    trees: dict[str, dict[str, float]] = defaultdict(dict)
    for node in nodes:
        if node.returns is not None and node.id not in parents and not _is_below(get_branch_path(node.id), failed):
            trees[node.tree or ""][node.id] = node.returns
    return trees


def _is_below(chain: str, failed: set[str]) -> bool:
    """Return whether a branch path is one of those that failed, or starts below one."""
    while failed and chain and chain not in failed:
        chain = get_branch_path(get_start_node(chain) or "")
    return bool(failed and chain)


# --- errors ---------------------------------------------------------------------------------------------


def _get_node(nodes: Nodes, node: str) -> Node:
    if node not in nodes:
        raise _make_error(f"it has no node {node}")
    return nodes[node]


def _update_node(nodes: Nodes, node: str, update: Mapping[str, Any]) -> None:
    nodes[node] = _get_node(nodes, node).model_copy(update=update)


def _make_error(message: str) -> ResultFileError:
    return ResultFileError(f"the nodes make no tree: {message}", remedy="restore the file, or leave the rollout out")
