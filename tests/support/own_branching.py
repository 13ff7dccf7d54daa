"""A policy and aggregates of somebody's own package, good and bad, as jobs name them; workers can import it, too."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from benchflow.contracts.branch import ChildSpec
from benchflow.contracts.rollout_records import Node, RolloutTree


class WherePoor:
    """Branches where less was earned than `below`; its children act by roles of their own."""

    def __init__(self, below: float, roles: Sequence[str] = ("brave", "careful"), seed: int | None = None) -> None:
        self.below, self.roles, self.seed = below, tuple(roles), seed

    def decide(self, tree: RolloutTree, node: Node, steps_left: int) -> list[ChildSpec] | None:
        names = [each.id for each in tree.path(node.id)]
        steps = [each.step for each in tree.path(node.id)]
        if names[0] != "n0" or steps != [None, *range(len(steps) - 1)] or len(steps) + steps_left != 4:
            raise AssertionError(f"{names}, {steps_left} left")
        earned = (node.rewards or {}).get("reward", 1.0)
        return [ChildSpec(role=role, seed=self.seed) for role in self.roles] if earned < self.below else None


class Faulty:
    """Fails where so many steps are left."""

    def __init__(self, left: int) -> None:
        self.left = left

    def decide(self, tree: RolloutTree, node: Node, steps_left: int) -> None:
        if steps_left == self.left:
            raise RuntimeError("it cannot be")


def stdev(returns: Sequence[float]) -> float:
    """How uncertain a state is. Fails with fewer than two."""
    return statistics.stdev(returns)


def nothing(returns: Sequence[float]) -> float:
    return float("nan")


def hangs(returns: Sequence[float]) -> float:
    """Never come to an answer where a second child has ended."""
    while len(returns) > 1:
        time.sleep(0.1)
    return returns[0]


def leaves(returns: Sequence[float]) -> float:
    """As a user's code may, which was written as a script."""
    raise SystemExit(3)
