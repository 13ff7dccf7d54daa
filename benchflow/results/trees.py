"""What a rollout's reward is where nobody measured it: the value of a state, made of what its children have earned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchflow.contracts.rollout import Node, RolloutResult, RolloutTree
from benchflow.errors import ResultFileError
from benchflow.paths import RolloutPaths
from benchflow.trajectories.stored import StoredTree, read_model


def value_of(result: RolloutResult) -> Node | None:
    """The node whose V(s) is a rollout's reward; None where that was measured, or where its files are not here."""
    if result.reward_kind != "value" or result.directory is None:
        return None
    paths = RolloutPaths(Path(result.directory))
    try:
        # What the children's own files tell besides is not looked for: tables ask this of many rollouts.
        return StoredTree(paths, read_model(RolloutTree, paths.tree)).value
    except ResultFileError:
        return None


def value_row(node: Node) -> dict[str, Any]:
    """V(s) as a row of results tells it. failed: the children that are not in it, and why."""
    about = node.model_dump(mode="json", include={"value", "n", "variance", "stderr"})
    failed = {chain: f"{failure.category}: {failure.message}" for chain, failure in node.failed.items()}
    return {"node": node.id, **about, "failed": failed}
