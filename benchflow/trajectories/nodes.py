"""The nodes that scorers read, put together from a tree, a trajectory and what else was kept of a rollout.

How a tree grows out of steps is told in `tree`; what a node is to a scorer, in `benchflow.contracts.reward`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from benchflow.contracts.base import Model
from benchflow.contracts.environment import StateDiff, WorldState
from benchflow.contracts.reward import Evidence, Judge, RolloutNode, Workbench
from benchflow.contracts.rollout import Node, RolloutResult, RolloutTree
from benchflow.errors import ResultFileError, VerifierError
from benchflow.paths import RolloutPaths
from benchflow.trajectories.journal import read_journal

M = TypeVar("M", bound=Model)


def nodes_of(
    tree: RolloutTree, events: Sequence[Mapping[str, Any]], evidence: Evidence, *, file: Path | None = None
) -> dict[str, RolloutNode]:
    """The nodes of a tree by their ids, root first, linked to their parents and children, each with its events.

    events: the trajectory's lines; those of a step that was not finished belong to no node. file: where they were read
    from, for errors. Raises `ResultFileError` for a line or a tree that is none.
    """
    return _linked(tree, events, lambda node: evidence, file)[0]


def load_rollout(
    directory: Path,
    *,
    judge: Judge | None = None,
    workbench: Callable[[str | None], Workbench | None] = lambda step: None,
    whole: bool = False,
) -> dict[str, RolloutNode]:
    """The nodes of a stored rollout, by their ids, root first. directory: `<jobs_dir>/<job>/<task>__<id>`.

    Each node has the prompt and the evidence of its own step, and the world after it: workbench gives that for the name
    of a step, None for the only one. States of the world are read when they are asked for. Raises `ResultFileError` for
    a directory that holds no rollout or files that were changed; with `whole`, `VerifierError` for a rollout that ended
    within a step.
    """
    paths = RolloutPaths(directory)
    _expect_rollout(paths)
    result = _model(RolloutResult, paths.result)
    tree = _model(RolloutTree, paths.tree)
    names = {outcome.step.index: outcome.step.name for outcome in result.steps}
    prompts = _prompts(paths)
    # No step led to the root.
    reached = {node.id: names.get(node.step) for node in tree.nodes if node.step is not None}

    @cache
    def state(node: str) -> WorldState | None:
        return world_after(paths, reached[node]) if node in reached else None

    @cache
    def diff(node: str) -> StateDiff | None:
        return change_after(paths, reached[node]) if node in reached else None

    def evidence(node: Node) -> Evidence:
        name = reached.get(node.id)
        return Evidence(
            directory=directory,
            evidence=paths.evidence(name),
            task=result.task_name,
            instruction=prompts.get(name, ""),
            workspace=str(result.sandbox.get("workdir", "/")),
            workbench=workbench(name) if node.id in reached else None,
            judge=judge,
            state=state,
            diff=diff,
        )

    nodes, unfinished = _linked(tree, _events(paths.trajectory), evidence, paths.trajectory)
    if whole and unfinished:
        raise VerifierError(
            f"the rollout ended within a step: the last {unfinished} lines lead to no state that it reached",
            file=str(paths.trajectory),
            remedy="run it again: bench job resume; or score the nodes that it did reach",
        )
    return nodes


def last_of(nodes: Mapping[str, RolloutNode]) -> RolloutNode:
    """Where a rollout ended: the leaf that is reached by the first child of every node.

    Raises `VerifierError` when no step of it was finished.
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


def world_after(paths: RolloutPaths, step: str | None) -> WorldState | None:
    """The state of the world after a step, None for the only one; None where it was not kept."""
    return _stored(WorldState, paths, step, "state.json")


def change_after(paths: RolloutPaths, step: str | None) -> StateDiff | None:
    """What had changed in the world after a step, None for the only one; None where it was not kept."""
    return _stored(StateDiff, paths, step, "diff.json")


def _stored(model: type[M], paths: RolloutPaths, step: str | None, name: str) -> M | None:
    file = paths.state(step) / name
    return _model(model, file) if file.is_file() else None


# --- linking --------------------------------------------------------------------------------------------


def _linked(
    tree: RolloutTree, events: Sequence[Mapping[str, Any]], evidence: Callable[[Node], Evidence], file: Path | None
) -> tuple[dict[str, RolloutNode], int]:
    """The nodes, and how many lines belong to none."""
    mine: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        mine[_node_of(event, file)].append(dict(event))
    nodes: dict[str, RolloutNode] = {}
    for node in tree.nodes:
        _expect_place(node, tree, nodes)
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
        raise _spoilt(f"the root {tree.root} is not among the nodes", f"tree of {tree.rollout}")
    return nodes, sum(map(len, mine.values()))


def _expect_place(node: Node, tree: RolloutTree, before: Mapping[str, RolloutNode]) -> None:
    """Root first, parents before children, each node once."""
    if node.id in before:
        raise _spoilt(f"the node {node.id} is there twice", f"tree of {tree.rollout}")
    has_place = node.parent in before if node.parent is not None else node.id == tree.root and not before
    if not has_place:
        raise _spoilt(f"the node {node.id} does not come after its parent {node.parent}", f"tree of {tree.rollout}")


def _node_of(event: Mapping[str, Any], file: Path | None) -> str:
    node = event.get("node")
    if isinstance(node, str) and isinstance(event.get("type"), str):
        return node
    raise _spoilt(f"this is no event with a node and a type: {str(dict(event))[:80]}", str(file) if file else None)


# --- files ----------------------------------------------------------------------------------------------


def _expect_rollout(paths: RolloutPaths) -> None:
    missing = [file.name for file in (paths.tree, paths.result) if not file.is_file()]
    if not missing:
        return
    inside = sorted(file.parent.name for file in paths.root.glob("*/tree.json"))[:5] if paths.root.is_dir() else []
    raise ResultFileError(
        f"this is no rollout's directory: it has no {' and no '.join(missing)}",
        file=str(paths.root),
        remedy=f"give one of its rollouts: {', '.join(inside)}" if inside else "give <jobs_dir>/<job>/<task>__<id>",
    )


def _model(model: type[M], file: Path) -> M:
    try:
        return model.model_validate_json(file.read_bytes())
    except OSError as error:
        raise _spoilt(f"cannot be read: {error.strerror}", str(file)) from error
    except ValidationError as error:
        raise _spoilt(f"this is not what BenchFlow wrote: {error.errors()[0]['msg']}", str(file)) from error


def _events(file: Path) -> list[dict[str, Any]]:
    try:
        return read_journal(file)
    except ValueError as error:
        raise _spoilt(f"a line is no JSON: {error}", str(file)) from error


def _prompts(paths: RolloutPaths) -> dict[str | None, str]:
    """What the agent was asked, by the names of the steps."""
    try:
        return {prompt["step"]: str(prompt["text"]) for prompt in json.loads(paths.prompts.read_bytes())}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as error:
        raise _spoilt(f"this is no list of prompts: {error!r}", str(paths.prompts)) from error


def _spoilt(message: str, file: str | None) -> ResultFileError:
    return ResultFileError(message, file=file, remedy="restore the file, or leave the rollout out")
