"""What a rollout's reward is where nobody measured it: the value of a state, made of what its children have earned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchflow.contracts.rollout import Node, RolloutResult
from benchflow.errors import ResultFileError
from benchflow.trajectories.stored import load_tree


def value_of(result: RolloutResult) -> Node | None:
    """The node whose V(s) is a rollout's reward; None where that was measured, or where its files are not here."""
    if result.reward_kind != "value" or result.directory is None:
        return None
    try:
        return load_tree(Path(result.directory)).value
    except ResultFileError:
        return None


def value_row(node: Node) -> dict[str, Any]:
    """V(s) as a row of results tells it. failed: the children that are not in it, and why."""
    about = node.model_dump(mode="json", include={"value", "n", "variance", "stderr"})
    failed = {chain: f"{failure.category}: {failure.message}" for chain, failure in node.failed.items()}
    return {"node": node.id, **about, "failed": failed}
