"""The nodes that scorers read, built from a tree, a trajectory and the other files of a rollout.

`tree` builds a tree from steps; `benchflow.contracts.reward` documents a node as scorers see it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from benchflow.contracts.base import Model
from benchflow.contracts.environment import StateDiff, WorldState
from benchflow.contracts.reward import Evidence, HardeningFinding, HardeningReport, Judge, RolloutNode, Workbench
from benchflow.contracts.rollout_records import Node, RolloutResult, RolloutTree
from benchflow.errors import ResultFileError, VerifierError
from benchflow.paths import RolloutPaths
from benchflow.stored_files import read_stored
from benchflow.trajectories.growth import get_branch_path, get_start_node
from benchflow.trajectories.stored import StoredTree, load_tree, make_file_error, read_events, read_model

M = TypeVar("M", bound=Model)


def build_nodes(
    tree: RolloutTree, events: Sequence[Mapping[str, Any]], evidence: Evidence, *, file: Path | None = None
) -> dict[str, RolloutNode]:
    """Return the nodes of a tree by id, root first, linked to parents and children, each with its events.

    Args:
        tree: The tree.
        events: Lines of the trajectory. Those of a step that was not finished belong to no node.
        evidence: Evidence of all nodes.
        file: File of the events, for errors.

    Raises:
        ResultFileError: A line is no event, or the tree is invalid.
    """
    return _link_nodes(tree, events, lambda node: evidence, file)


def load_rollout(
    directory: Path,
    *,
    judge: Judge | None = None,
    workbench: Callable[[str | None], Workbench | None] = lambda step: None,
    whole: bool = False,
) -> dict[str, RolloutNode]:
    """Load the nodes of a stored rollout and of all its children, by id, root first.

    A child's directory yields the nodes from the root of its tree to its start, its own, and those below it. Each node
    has the prompt and the evidence of its own step, from the directory of its own branch path. States of the world are
    read on access.

    Args:
        directory: `<jobs_dir>/<job>/<task>__<id>`, or the directory of a child.
        judge: Judge that scorers may use.
        workbench: Returns the workbench for the world after a step, by the step's name; None is that of an only step.
        whole: Whether to refuse a rollout that ended within a step.

    Raises:
        ResultFileError: The directory holds no rollout, or files that were changed.
        VerifierError: The rollout ended within a step, and `whole` is set.
    """
    _require_rollout(RolloutPaths(directory))
    stored = load_tree(directory)
    tree = _select_nodes(stored)
    chains = dict.fromkeys(get_branch_path(node.id) for node in tree.nodes)
    made = {chain: _Chain(stored.chain_files(chain), judge, workbench) for chain in chains}
    known = {node.id for node in tree.nodes}
    mine: dict[str, list[dict[str, Any]]] = defaultdict(list)
    unfinished = 0
    for chain, files in made.items():
        for event in read_events(files.paths):
            node = _get_event_node(event, files.paths.trajectory)
            mine[node].append(event)
            unfinished += chain == stored.chain and node not in known
    events = _number_events(tree, mine)
    nodes = _link_nodes(tree, events, lambda node: made[get_branch_path(node.id)].evidence(node), None)
    if whole and unfinished:
        raise VerifierError(
            f"the rollout ended within a step: the last {unfinished} lines lead to no state that it reached",
            file=str(RolloutPaths(directory).trajectory),
            remedy="run it again: bench job resume; or score the nodes that it did reach",
        )
    return nodes


def _number_events(tree: RolloutTree, mine: Mapping[str, Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the events of all nodes, numbered along every path: each branch path's own file starts at 0."""
    shift: dict[str, int] = {"": 0}
    ends: dict[str | None, int] = {}
    events = []
    for node in tree.nodes:
        end = ends.get(node.parent, 0)
        by = shift.setdefault(get_branch_path(node.id), end)
        numbered = [event | {"seq": event["seq"] + by} if by else event for event in mine.get(node.id, ())]
        ends[node.id] = numbered[-1]["seq"] + 1 if numbered else end
        events += numbered
    return events


class _Chain:
    """The evidence of one branch path's nodes, from its files."""

    def __init__(
        self, paths: RolloutPaths, judge: Judge | None, workbench: Callable[[str | None], Workbench | None]
    ) -> None:
        self.paths, self._judge, self._workbench = paths, judge, workbench
        # A child that was stopped from outside, or still runs, has no result.
        self._result = read_model(RolloutResult, paths.result) if paths.result.is_file() else None
        steps = self._result.steps if self._result else []
        self._names = {outcome.step.index: outcome.step.name for outcome in steps}
        self._scored = {outcome.step.index for outcome in steps if outcome.verify or outcome.verifier_error}
        self._prompts = _read_prompts(paths)

    def evidence(self, node: Node) -> Evidence:
        """Return the evidence of a node of this branch path."""
        paths, result = self.paths, self._result
        # No step led to the root.
        is_reached = node.step is not None and node.step in self._names
        name = self._names.get(node.step) if node.step is not None else None

        @cache
        def state(asked: str) -> WorldState | None:
            return read_world_state(paths, name) if is_reached and asked == node.id else None

        @cache
        def diff(asked: str) -> StateDiff | None:
            return read_state_diff(paths, name) if is_reached and asked == node.id else None

        @cache
        def findings(asked: str) -> tuple[HardeningFinding, ...]:
            # Turns of scenes share a directory, whose report is of the one that was scored.
            return read_findings(paths, name) if node.step in self._scored and asked == node.id else ()

        return Evidence(
            directory=paths.root,
            evidence=paths.evidence(name),
            task=result.task_name if result is not None else "",
            instruction=self._prompts.get(name, ""),
            workspace=str(result.sandbox.get("workdir", "/")) if result is not None else "/",
            workbench=self._workbench(name) if is_reached else None,
            judge=self._judge,
            state=state,
            diff=diff,
            findings=findings,
        )


def _select_nodes(stored: StoredTree) -> RolloutTree:
    """Return the tree as its loaded branch path sees it: nodes that lead to it, its own, and those below."""
    chain, tree = stored.chain, stored.tree
    if not chain:
        return tree
    above = {node.id for node in tree.path(stored.node(get_start_node(chain) or "").id)}
    nodes = [node for node in tree.nodes if node.id in above or f"{get_branch_path(node.id)}/".startswith(f"{chain}/")]
    return tree.model_copy(update={"nodes": nodes})


def find_last_node(nodes: Mapping[str, RolloutNode]) -> RolloutNode:
    """Return the node where a rollout ended: the leaf that is reached by the first child of every node.

    Raises:
        VerifierError: No step was finished.
    """
    node = next(node for node in nodes.values() if node.parent is None)
    while node.children:
        node = node.children[0]
    if node.parent is None:
        raise VerifierError(
            "no step of this rollout was finished, so there is nothing to score",
            file=str(node.rollout.directory) if node.rollout.directory else None,
            remedy="run it again: bench job resume",
        )
    return node


# --- the world's state ----------------------------------------------------------------------------------


def read_world_state(paths: RolloutPaths, step: str | None) -> WorldState | None:
    """Return the state of the world after a step (None: the only step); None if it was not stored."""
    return _read_state_file(WorldState, paths, step, "state.json")


def read_state_diff(paths: RolloutPaths, step: str | None) -> StateDiff | None:
    """Return the changes of the world's state after a step (None: the only step); None if they were not stored."""
    return _read_state_file(StateDiff, paths, step, "diff.json")


def read_hardening(paths: RolloutPaths, step: str | None) -> HardeningReport | None:
    """Return the report of the hardening after a step (None: the only step); None if nothing was hardened."""
    file = paths.hardening(step)
    return read_model(HardeningReport, file) if file.is_file() else None


def read_findings(paths: RolloutPaths, step: str | None) -> tuple[HardeningFinding, ...]:
    """Return the findings of the hardening after a step (None: the only step); empty if nothing was hardened."""
    report = read_hardening(paths, step)
    return tuple(report.findings) if report is not None else ()


def _read_state_file(model: type[M], paths: RolloutPaths, step: str | None, name: str) -> M | None:
    """Read a file of the world's state after a step; None if there is none."""
    file = paths.state(step) / name
    return read_model(model, file) if file.is_file() else None


# --- linking --------------------------------------------------------------------------------------------


def _link_nodes(
    tree: RolloutTree, events: Sequence[Mapping[str, Any]], evidence: Callable[[Node], Evidence], file: Path | None
) -> dict[str, RolloutNode]:
    """Return the nodes by id, each linked to its parent and children, and with its events and evidence."""
    mine: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        mine[_get_event_node(event, file)].append(dict(event))
    nodes: dict[str, RolloutNode] = {}
    for node in tree.nodes:
        _check_order(node, tree, nodes)
        parent = nodes[node.parent] if node.parent is not None else None
        nodes[node.id] = RolloutNode(
            id=node.id,
            parent=parent,
            step=node.step,
            role=node.role,
            events=tuple(mine.pop(node.id, ())),
            rewards=node.rewards,
            value=node.value,
            rollout=evidence(node),
        )
        if parent is not None:
            parent.children.append(nodes[node.id])
    if tree.root not in nodes:
        raise make_file_error(f"the root {tree.root} is not among the nodes", f"tree of {tree.rollout}")
    return nodes


def _check_order(node: Node, tree: RolloutTree, before: Mapping[str, RolloutNode]) -> None:
    """Raise `ResultFileError` unless the node is new and comes after its parent, or is the root and comes first."""
    if node.id in before:
        raise make_file_error(f"the node {node.id} is there twice", f"tree of {tree.rollout}")
    has_place = node.parent in before if node.parent is not None else node.id == tree.root and not before
    if not has_place:
        raise make_file_error(
            f"the node {node.id} does not come after its parent {node.parent}", f"tree of {tree.rollout}"
        )


def _get_event_node(event: Mapping[str, Any], file: Path | None) -> str:
    """Return the id of the event's node. Raise `ResultFileError` if it is no event."""
    node = event.get("node")
    if isinstance(node, str) and isinstance(event.get("type"), str):
        return node
    raise make_file_error(
        f"this is no event with a node and a type: {str(dict(event))[:80]}", str(file) if file else None
    )


# --- files ----------------------------------------------------------------------------------------------


def _require_rollout(paths: RolloutPaths) -> None:
    """Raise `ResultFileError` unless the directory has the files of a rollout that has ended."""
    missing = [file.name for file in (paths.tree, paths.result) if not file.is_file()]
    if not missing:
        return
    inside = sorted(file.parent.name for file in paths.root.glob("*/tree.json"))[:5] if paths.root.is_dir() else []
    raise ResultFileError(
        f"this is no rollout's directory: it has no {' and no '.join(missing)}",
        file=str(paths.root),
        remedy=f"give one of its rollouts: {', '.join(inside)}" if inside else "give <jobs_dir>/<job>/<task>__<id>",
    )


def _read_prompts(paths: RolloutPaths) -> dict[str | None, str]:
    """Return the prompts that the agent got, by the names of the steps."""
    try:
        return {prompt["step"]: str(prompt["text"]) for prompt in json.loads(read_stored(paths.prompts))}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as error:
        raise make_file_error(f"this is no list of prompts: {error!r}", str(paths.prompts)) from error
