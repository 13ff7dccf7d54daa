"""Branch policies: after which states children start, how many, and how they differ.

The built-in policies are pure functions of a rollout's progress, so that a workflow may call them. A user's policy may
run anything, and is therefore called on a host (`benchflow.branching.custom`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple, Protocol, runtime_checkable

from benchflow.contracts.branch import AfterSteps, ChildSpec, EverySteps, Group, OnAskUser, TreeGrpo
from benchflow.contracts.rollout_records import Answer, Node, Question, RolloutTree

BuiltIn = AfterSteps | EverySteps | OnAskUser | Group | TreeGrpo
"""Any built-in policy that branches."""


@runtime_checkable
class BranchPolicy(Protocol):
    """A user's own policy: a class that is made with the policy's `options` as keyword arguments."""

    def decide(self, tree: RolloutTree, node: Node, steps_left: int) -> Sequence[ChildSpec] | None:
        """Return the children that start at a node which was just reached; none, or None, to continue without a branch.

        It may be called again for the same node after a crash, and must then return the same.

        Args:
            tree: The tree so far, with its rewards and values.
            node: The node.
            steps_left: Number of steps that may still be run from there.
        """
        ...


class Drawn(NamedTuple):
    """The start of a new branch path in a tree of Tree-GRPO."""

    tree: str
    """Name of the tree."""

    node: str
    """Id of the node at which the branch path starts."""


def choose_children(
    policy: BuiltIn,
    steps_done: int,
    total_steps: int,
    question: Question | None = None,
    children: Sequence[ChildSpec] = (),
    *,
    begun_at: int | None = None,
) -> tuple[ChildSpec, ...]:
    """Return the children that start after a number of steps; empty if the rollout does not branch there.

    Args:
        policy: The policy.
        steps_done: Number of steps done, counted from the root.
        total_steps: Number of the task's steps.
        question: Question that the agent waits with in the next step, where only `ask_user` branches; None for none.
        children: Overrides of each child; where fewer start, the first ones. Empty: the children are alike.
        begun_at: Number of steps after which the calling rollout's branch path starts; None for the root's. No branch
            path branches at its first state: its siblings there are the children of its parent.
    """
    if isinstance(policy, OnAskUser):
        return _make_answer_children(question, policy.most) if question is not None else ()
    if question is not None or steps_done == begun_at or steps_done >= total_steps:
        return ()
    if not _is_branch_point(policy, steps_done):
        return ()
    count = policy.counts[steps_done] if isinstance(policy, AfterSteps) else count_children(policy)
    return tuple(children)[:count] or (ChildSpec(),) * count


def count_children(policy: BuiltIn) -> int:
    """Return the number of children that start at one state; the maximum where it differs between states."""
    match policy:
        case AfterSteps():
            return max(policy.counts.values())
        case TreeGrpo():
            return policy.m
        case OnAskUser():
            return policy.most
        case _:
            return policy.n


def _is_branch_point(policy: AfterSteps | EverySteps | Group | TreeGrpo, steps_done: int) -> bool:
    """Return whether the policy branches after a number of steps."""
    match policy:
        case AfterSteps():
            return steps_done in policy.counts
        case EverySteps():
            return steps_done > 0 and steps_done % policy.every == 0
        case Group():
            return steps_done == policy.at
        case TreeGrpo():
            return steps_done == 0


def _make_answer_children(question: Question, most: int) -> tuple[ChildSpec, ...]:
    """Return one child for each of the question's first options."""
    return tuple(ChildSpec(answer=Answer(question=question.id, option=option.id)) for option in question.options[:most])


def draw(policy: TreeGrpo, trees: Mapping[str, Sequence[Node]], random: Random) -> list[Drawn]:
    """Draw the nodes at which each tree grows a new branch path, once all its branch paths have ended.

    In each tree `n` nodes are drawn, or as many as `k` leaves allow, uniformly and with replacement, from the root and
    the nodes that are no leaves. So a node may be drawn twice, and in a tree of two nodes it is the root.

    Args:
        policy: The policy.
        trees: Nodes of each tree by its name, including the root, which the trees of one prompt share.
        random: Random generator: a workflow's own in a workflow, so that a replay draws the same nodes.
    """
    drawn: list[Drawn] = []
    for tree in sorted(trees):
        parents = {node.parent for node in trees[tree]}
        inner = sorted(node.id for node in trees[tree] if node.id in parents or node.parent is None)
        leaves = len(trees[tree]) - len(inner)
        wanted = max(0, min(policy.n, policy.k - leaves))
        drawn += [Drawn(tree, node) for node in random.choices(inner, k=wanted)] if inner else []
    return drawn
