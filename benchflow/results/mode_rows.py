"""Extra rows of a job with a mode: `groups.jsonl` has a line per GRPO group, `values.jsonl` one per V(s).

Rows are derived from the trees in the rollouts' own files, so they are correct whenever they are computed. A reader of
a group needs no knowledge of trees: each leaf names the files that make up its trajectory. Failed children are named
with their errors, and never count as 0.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchflow.contracts.base import Model
from benchflow.contracts.job_modes import GrpoMode, JobMode, ValueMode
from benchflow.contracts.rollout_records import Failure, Node, RolloutResult, RolloutTree
from benchflow.errors import ResultFileError
from benchflow.host_files import write_atomic
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.results.write import append_line
from benchflow.trajectories.growth import get_branch_path, get_start_node, make_node_id
from benchflow.trajectories.stored import read_model


class Leaf(Model):
    """Trajectory of one leaf in a group."""

    node: str
    """Id of the leaf's node in the rollout's tree."""
    returns: float
    """Return of the leaf."""
    advantages: dict[str, float]
    """Advantages within the group, by estimator: `grpo` and `leave_one_out`."""
    trajectory: list[str]
    """Event files, relative to the job's directory, to be read one after another: the part shared with the group, then
    the leaf's own.
    """
    model_calls: list[str]
    """Files of the model calls, in the same way."""
    is_truncated: bool | None = None
    """Whether an agent's failure cut the trajectory short; None if its result cannot be read."""


class _Row(Model):
    """Common fields of the rows: rollout, node, and the children that have a return or have failed."""

    task: str
    task_digest: str
    agent: str
    model: str | None
    repeat: int
    rollout: str
    """Workflow id of the rollout."""
    directory: str
    """Name of the rollout's results directory in the job's."""
    node: str
    """Id of the node in the rollout's tree."""
    depth: int
    """Number of steps that led to the node."""
    n: int = 0
    """Number of children with a return."""
    failed: dict[str, str] = {}
    """Errors of the children without a return, by branch path."""
    error: str | None = None
    """Reason why the node has no value; None if it has one."""
    warnings: list[str] = []
    """Reasons why values of the tree may be wrong."""


class GroupRow(_Row):
    """Line of `groups.jsonl`: trajectories that share everything up to one state."""

    mean: float | None = None
    """Mean of the leaves' returns."""
    std: float | None = None
    """Sample standard deviation of the returns (n - 1); None for fewer than two."""
    leaves: list[Leaf] = []
    """Trajectories of the group, in the order of the children's numbers."""


class ValueRow(_Row):
    """Line of `values.jsonl`: V(s) of one state."""

    value: float | None = None
    """V(s), as the tree's node has it; `variance` and `stderr` likewise."""
    variance: float | None = None
    stderr: float | None = None
    returns: dict[str, float] = {}
    """Returns of the children, by branch path."""


Row = GroupRow | ValueRow


# --- files ----------------------------------------------------------------------------------------------


def get_rows_file(paths: JobPaths, mode: JobMode) -> Path:
    """Return the file that holds the rows of a job with this mode."""
    return paths.groups if isinstance(mode, GrpoMode) else paths.values


def append_rows(paths: JobPaths, mode: JobMode, result: RolloutResult) -> None:
    """Append the rows of an ended rollout. Duplicates after a crash go when the file is rewritten at the job's end."""
    for row in make_rows(mode, [result]):
        append_line(get_rows_file(paths, mode), _format_row(row))


def write_rows(paths: JobPaths, mode: JobMode, results: Sequence[RolloutResult]) -> None:
    """Rewrite the file with the rows of all rollouts that have a result, in their order."""
    write_atomic(get_rows_file(paths, mode), "".join(map(_format_row, make_rows(mode, results))).encode())


def _format_row(row: Row) -> str:
    return json.dumps(row.model_dump(mode="json"), ensure_ascii=False) + "\n"


# --- rows -----------------------------------------------------------------------------------------------


def make_rows(mode: JobMode, results: Sequence[RolloutResult]) -> list[Row]:
    """Return the rows of rollouts whose files are on this host; none for cancelled and not started rollouts."""
    rows: list[Row] = []
    for result in results:
        if result.directory is not None and result.status not in ("cancelled", "not_started"):
            paths = RolloutPaths(Path(result.directory))
            tree = _read_tree(paths)
            rows += [_make_row(mode, result, paths, tree, depth) for depth in sorted(mode.depths)]
    return rows


def _read_tree(paths: RolloutPaths) -> RolloutTree | None:
    try:
        return read_model(RolloutTree, paths.tree)
    except ResultFileError:
        return None


def _make_row(mode: JobMode, result: RolloutResult, paths: RolloutPaths, tree: RolloutTree | None, depth: int) -> Row:
    """Return the row of a rollout for one depth."""
    name = make_node_id("", depth)
    node = next((node for node in tree.nodes if node.id == name), None) if tree is not None else None
    about: dict[str, Any] = {
        "task": result.task_name,
        "task_digest": result.task_digest,
        "agent": result.agent,
        "model": result.model,
        "repeat": result.repeat,
        "rollout": result.workflow_id,
        "directory": paths.root.name,
        "node": name,
        "depth": depth,
        "n": node.n if node is not None else 0,
        "failed": {chain: _format_failure(failure) for chain, failure in node.failed.items()}
        if node is not None
        else {},
        "error": _explain_missing_value(node, result),
        "warnings": tree.warnings if tree is not None else [],
    }
    if isinstance(mode, ValueMode):
        known = node.model_dump(include={"value", "variance", "stderr"}) if node is not None else {}
        returns = {get_branch_path(end.id): end.returns for end in _find_end_nodes(tree, name)}
        return ValueRow(**about, **known, returns=returns)
    return GroupRow(
        **about,
        mean=node.value if node is not None else None,
        std=math.sqrt(node.variance) if node is not None and node.variance is not None else None,
        # In a scoring, the leaves that could be scored are not the whole group.
        leaves=[] if result.stored is not None and about["error"] else _make_leaves(paths, result.stored, tree, name),
    )


def _explain_missing_value(node: Node | None, result: RolloutResult) -> str | None:
    """Return the reason why a state has no value; None if it has one."""
    if node is not None and node.value is not None:
        return None
    if node is not None and node.failed and node.n and result.stored is not None:
        chain, failed = next(iter(node.failed.items()))
        return f"the others are no measure of it without {chain}, which had a return: {_format_failure(failed)}"
    if node is not None and node.failed:
        return f"none of its {len(node.failed)} children could be measured"
    failure = result.error or result.verifier_error
    if failure is not None:
        return _format_failure(failure)
    return "the rollout ended before it came to this depth" if node is None else "no children began here"


def _format_failure(failure: Failure) -> str:
    return f"{failure.category}: {failure.message}"


def _find_end_nodes(tree: RolloutTree | None, start: str) -> list[Node]:
    """Return the end nodes of a state's children that have a return, in the order of the children's numbers."""
    nodes = tree.nodes if tree is not None else []
    failed = {chain for node in nodes for chain in node.failed}
    mine = [node for node in nodes if get_branch_path(node.id) and get_start_node(get_branch_path(node.id)) == start]
    return [node for node in mine if node.returns is not None and get_branch_path(node.id) not in failed]


def _make_leaves(paths: RolloutPaths, stored: str | None, tree: RolloutTree | None, start: str) -> list[Leaf]:
    """Return the trajectories of a group.

    Args:
        paths: Files of the rollout.
        stored: Directory name of the scored rollout, which has the trajectories, if this is a scoring.
        tree: Tree of the rollout.
        start: Id of the node from which the group's children start.
    """
    job, leaves = paths.root.parent, []
    if stored is not None:
        # `<job>/rescored/<scoring>/<rollout>`
        paths = RolloutPaths(job.parent.parent / stored)
    for node in _find_end_nodes(tree, start):
        child = paths.child(get_branch_path(node.id))
        leaves.append(
            Leaf(
                node=node.id,
                returns=node.returns,
                advantages={name: node.advantages[name] for name in ("grpo", "leave_one_out")},
                trajectory=_list_existing(job, [paths.trajectory, child.trajectory]),
                model_calls=_list_existing(job, [paths.model_calls, child.model_calls]),
                is_truncated=_is_truncated(child),
            )
        )
    return leaves


def _list_existing(job: Path, files: Sequence[Path]) -> list[str]:
    """Return the files that exist and are not empty, relative to the job's directory."""
    return [os.path.relpath(file, job) for file in files if file.is_file() and file.stat().st_size]


def _is_truncated(child: RolloutPaths) -> bool | None:
    """Return whether an agent's failure has cut a child's trajectory short; None if its result can't be read."""
    try:
        return read_model(RolloutResult, child.result).is_truncated if child.result.is_file() else None
    except ResultFileError:
        return None
