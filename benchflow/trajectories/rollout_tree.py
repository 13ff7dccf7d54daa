"""The tree of a rollout, derived from the steps that were run. A linear rollout is the tree of degree 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchflow.contracts.reward import RewardEvent
from benchflow.contracts.rollout_records import Node, RolloutTree, StepOutcome
from benchflow.trajectories.growth import make_node_id

ROOT = "n0"
"""Id of a tree's root node."""


def make_step_node_id(step_index: int, chain: str = "") -> str:
    """Return the id of the node to which a step leads. `chain`: branch path of the rollout; empty for a root."""
    return make_node_id(chain, step_index + 1)


def build_tree(
    rollout: str,
    steps: Sequence[StepOutcome],
    events: Sequence[dict[str, Any]],
    rewards: Sequence[dict[str, Any]] = (),
    *,
    root: str = ROOT,
    chain: str = "",
) -> RolloutTree:
    """Build the tree of a rollout whose steps were run one after another.

    Args:
        rollout: Workflow id of the rollout.
        steps: Outcomes of its steps, in order.
        events: `seq` and `node` of the trajectory's lines.
        rewards: Lines of `rewards.jsonl`.
        root: Id of the node where it starts.
        chain: Its branch path, by which its nodes are named; empty unless it is a child in a larger tree.
    """
    nodes = [Node(id=root)]
    for outcome in steps:
        name = make_step_node_id(outcome.step.index, chain)
        mine = [event["seq"] for event in events if event["node"] == name]
        nodes.append(
            Node(
                id=name,
                parent=nodes[-1].id,
                step=outcome.step.index,
                role=outcome.step.role,
                events=(mine[0], mine[-1] + 1) if mine else (0, 0),
                rewards=outcome.verify.rewards if outcome.verify else None,
                scores=[
                    _parse_score(line)
                    for line in rewards
                    if line["granularity"] == "step" and line["step_index"] == outcome.step.index
                ],
            )
        )
    return RolloutTree(rollout=rollout, root=root, nodes=nodes)


def add_events(grown: RolloutTree, own: RolloutTree) -> RolloutTree:
    """Return a tree with the event ranges and scores that only the files of the root's own branch path hold.

    Args:
        grown: The whole tree.
        own: Tree of that branch path, built from its files.
    """
    known = {node.id: {"events": node.events, "scores": node.scores} for node in own.nodes}
    nodes = [node.model_copy(update=known.get(node.id, {})) for node in grown.nodes]
    return grown.model_copy(update={"nodes": nodes})


def _parse_score(line: dict[str, Any]) -> RewardEvent:
    """Return the reward event of a line of `rewards.jsonl`."""
    return RewardEvent(
        space=line["space"],
        granularity="step",
        value=line["value"],
        source=line["source"],
        ts=line["ts"],
        step=line["step_index"],
        tag=line["tag"],
    )
