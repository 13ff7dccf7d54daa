"""V(s) as a rollout's reward: the value of a state, estimated from its children's returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchflow.contracts.rollout_records import Node, RolloutResult, RolloutTree
from benchflow.errors import ResultFileError
from benchflow.paths import RolloutPaths
from benchflow.trajectories.stored import StoredTree, read_model


def find_value_node(result: RolloutResult) -> Node | None:
    """Return the node whose V(s) is a rollout's reward; None if the reward was measured, or the tree is unreadable."""
    if result.reward_kind != "value" or result.directory is None:
        return None
    paths = RolloutPaths(Path(result.directory))
    try:
        # The children's own files are not read: tables call this for many rollouts.
        return StoredTree(paths, read_model(RolloutTree, paths.tree)).value
    except ResultFileError:
        return None


def make_value_row(node: Node) -> dict[str, Any]:
    """Return V(s) as a row of results has it: node, value, n, variance, stderr, and the failed children's errors."""
    about = node.model_dump(mode="json", include={"value", "n", "variance", "stderr"})
    failed = {chain: f"{failure.category}: {failure.message}" for chain, failure in node.failed.items()}
    return {"node": node.id, **about, "failed": failed}
