"""What a branch policy decides: at which states children begin, how many, and in what they differ.

The built-in policies are pure functions of how far a rollout has come, so that a workflow may ask them. A user's policy
runs anything, and is therefore asked on a host (`benchflow.branching.custom`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple, Protocol, runtime_checkable

from benchflow.contracts.branch import AfterSteps, ChildSpec, EverySteps, Group, OnAskUser, TreeGrpo
from benchflow.contracts.rollout import Answer, Node, Question, RolloutTree

BuiltIn = AfterSteps | EverySteps | OnAskUser | Group | TreeGrpo


@runtime_checkable
class BranchPolicy(Protocol):
    """A user's own policy: a class that is made with the policy's `options` as keyword arguments."""

    def decide(self, tree: RolloutTree, node: Node, steps_left: int) -> Sequence[ChildSpec] | None:
        """The children that begin at this node, which was just reached; none, or None, to go on without branching.

        tree: as far as it has grown, with its rewards and values. It may be asked again for the same node, after a
        crash, and must then decide the same.
        """
        ...


class Drawn(NamedTuple):
    """Where a new chain of a tree begins."""

    tree: str
    node: str


def children_at(
    policy: BuiltIn,
    steps_done: int,
    total_steps: int,
    question: Question | None = None,
    children: Sequence[ChildSpec] = (),
    *,
    begun_at: int | None = None,
) -> tuple[ChildSpec, ...]:
    """The children that begin where so many steps, counted from the root, are done; empty: none do.

    question: what the agent waits for within the next step; then only a policy that branches there does. children: one
    by one, in place of copies; where fewer begin, the first. begun_at: where the chain that asks has begun, None for
    the root's: no chain branches at its first state, which is where its siblings are its parent's children.
    """
    if isinstance(policy, OnAskUser):
        return _answers(question, policy.most) if question is not None else ()
    if question is not None or steps_done == begun_at or steps_done >= total_steps:
        return ()
    if not _branches(policy, steps_done):
        return ()
    count = policy.counts[steps_done] if isinstance(policy, AfterSteps) else count_of(policy)
    return tuple(children)[:count] or (ChildSpec(),) * count


def count_of(policy: BuiltIn) -> int:
    """How many children begin at one state; the most that may, where that is the agent's to say."""
    match policy:
        case AfterSteps():
            return max(policy.counts.values())
        case TreeGrpo():
            return policy.m
        case OnAskUser():
            return policy.most
        case _:
            return policy.n


def _branches(policy: AfterSteps | EverySteps | Group | TreeGrpo, steps_done: int) -> bool:
    match policy:
        case AfterSteps():
            return steps_done in policy.counts
        case EverySteps():
            return steps_done > 0 and steps_done % policy.every == 0
        case Group():
            return steps_done == policy.at
        case TreeGrpo():
            return steps_done == 0


def _answers(question: Question, most: int) -> tuple[ChildSpec, ...]:
    return tuple(ChildSpec(answer=Answer(question=question.id, option=option.id)) for option in question.options[:most])


def draw(policy: TreeGrpo, trees: Mapping[str, Sequence[Node]], random: Random) -> list[Drawn]:
    """Where each tree grows a new chain, once all its chains have ended: `n` draws, as far as `k` leaves allow.

    trees: by name, all nodes of each, its root among them, which the trees of one prompt share. Drawn uniformly and
    with replacement from the root and the nodes that are no leaves: a node may be drawn twice, and a tree of two nodes
    has only its root. random: in a workflow its own, so that a replay draws the same.
    """
    drawn: list[Drawn] = []
    for tree in sorted(trees):
        parents = {node.parent for node in trees[tree]}
        inner = sorted(node.id for node in trees[tree] if node.id in parents or node.parent is None)
        leaves = len(trees[tree]) - len(inner)
        wanted = max(0, min(policy.n, policy.k - leaves))
        drawn += [Drawn(tree, node) for node in random.choices(inner, k=wanted)] if inner else []
    return drawn
