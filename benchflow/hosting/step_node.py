"""Make the node of a step for scorers: the path from the root of its tree to the step, with the step's evidence."""

from __future__ import annotations

from pathlib import Path

from benchflow.contracts.reward import Evidence, HardeningFinding, Judge, RolloutNode, Workbench
from benchflow.contracts.rollout_records import Node, RolloutTree, Step
from benchflow.hosting.hosted import Hosted
from benchflow.tasks import compose_step_prompt
from benchflow.trajectories.journal import read_journal
from benchflow.trajectories.nodes import build_nodes, read_findings, read_state_diff, read_world_state
from benchflow.trajectories.rollout_tree import ROOT, make_step_node_id
from benchflow.trajectories.stored import list_nodes_before, read_events_before


def make_step_node(rollout: Hosted, step: Step, evidence: Path, workbench: Workbench, judge: Judge) -> RolloutNode:
    """Return the node that a step led to, linked to the nodes before it, with events read from the trajectories.

    State, state diff and findings are read only when a scorer asks for them.

    Args:
        rollout: The rollout, attached to its sandbox.
        step: The step.
        evidence: Directory of the step's evidence.
        workbench: Workbench for scorers that run something, such as the verifier.
        judge: Judge for scorers that ask a model.
    """
    paths, spec = rollout.paths, rollout.spec
    started = spec.begins_at[1]
    steps = {make_step_node_id(done, spec.chain): done for done in range(started, step.index + 1)}
    names = [*(list_nodes_before(spec.chain) or [ROOT]), *steps]
    # Nodes of the parents need no steps: scorers read the parents' work from the events.
    nodes = [Node(id=names[0])]
    nodes += [Node(id=name, parent=names[at], step=steps.get(name)) for at, name in enumerate(names[1:])]
    tree = RolloutTree(rollout=spec.id, root=names[0], nodes=nodes)
    known = {node.id for node in tree.nodes}
    before = read_events_before(paths) if spec.branch is not None else []
    own = [event for event in read_journal(paths.trajectory) if event["node"] in known]
    for event in own:
        # In place, to save the memory of a second copy of a long trajectory.
        event["seq"] += len(before)

    def findings(node: str) -> tuple[HardeningFinding, ...]:
        # The turns of scenes share a directory, and only the last one is scored.
        names: dict[int, str | None] = {done: one.name for done, one in enumerate(rollout.task.steps)}
        names[step.index] = step.name
        index = steps.get(node)
        return read_findings(paths, names[index]) if index is not None and index in names else ()

    about = Evidence(
        directory=paths.root,
        evidence=evidence,
        task=rollout.task.name,
        instruction=compose_step_prompt(rollout.task, step),
        workspace=rollout.ref.workdir,
        workbench=workbench,
        judge=judge,
        state=lambda node: read_world_state(paths, step.name),
        diff=lambda node: read_state_diff(paths, step.name),
        findings=findings,
    )
    return build_nodes(tree, before + own, about)[nodes[-1].id]
