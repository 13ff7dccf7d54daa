"""What a job's mode makes of its rollouts: a group a line in `groups.jsonl`, V(s) of a depth a line in `values.jsonl`.

Each is read off the trees of the rollouts' own files, so that it is right whenever it is asked for. Whoever reads a
group needs to know nothing of trees: it names the files of which each leaf's trajectory is made. What failed is named,
too, and never a 0.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchflow.contracts.base import Model
from benchflow.contracts.modes import GrpoMode, JobMode, ValueMode
from benchflow.contracts.rollout import Failure, Node, RolloutResult, RolloutTree
from benchflow.errors import ResultFileError
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.results.write import append_line
from benchflow.store import write_atomic
from benchflow.trajectories.growth import chain_of, node_in, start_of
from benchflow.trajectories.stored import read_model


class Leaf(Model):
    """A trajectory of a group. returns: what it has earned. advantages: `grpo` and `leave_one_out`, among its group.

    trajectory, model_calls: the files, relative to the job's directory, that are its events, and its model's calls,
    when they are read one after another: what it has in common with the others, then its own. is_truncated: it would
    have gone on; None where its result is not here.
    """

    node: str
    returns: float
    advantages: dict[str, float]
    trajectory: list[str]
    model_calls: list[str]
    is_truncated: bool | None = None


class _Row(Model):
    """Whose it is. rollout: its workflow id; directory: of its results, in the job's. node: of its tree; depth: how
    many steps led to it.

    n: children that have a return. failed: those that have none, and why. error: why there is nothing to be had of it.
    """

    task: str
    task_digest: str
    agent: str
    model: str | None
    repeat: int
    rollout: str
    directory: str
    node: str
    depth: int
    n: int = 0
    failed: dict[str, str] = {}
    error: str | None = None
    warnings: list[str] = []
    """Reasons why values of the tree may be wrong."""


class GroupRow(_Row):
    """A line of `groups.jsonl`: trajectories that have what led to a state in common.

    mean, std: of the returns of its leaves; std with n - 1 below the line, None for fewer than two.
    """

    mean: float | None = None
    std: float | None = None
    leaves: list[Leaf] = []


class ValueRow(_Row):
    """A line of `values.jsonl`. value: V(s); variance, stderr: as the node of the tree has them. returns: by child."""

    value: float | None = None
    variance: float | None = None
    stderr: float | None = None
    returns: dict[str, float] = {}


Row = GroupRow | ValueRow


# --- files ----------------------------------------------------------------------------------------------


def file_of(paths: JobPaths, mode: JobMode) -> Path:
    """Where the rows of a job of this mode lie."""
    return paths.groups if isinstance(mode, GrpoMode) else paths.values


def append_rows(paths: JobPaths, mode: JobMode, result: RolloutResult) -> None:
    """Add those of a rollout that has ended; what is repeated after a crash is dropped when the job ends."""
    for row in rows_of(mode, [result]):
        append_line(file_of(paths, mode), _line(row))


def write_rows(paths: JobPaths, mode: JobMode, results: Sequence[RolloutResult]) -> None:
    """Write the file anew: those of all rollouts that have a result, in their order."""
    write_atomic(file_of(paths, mode), "".join(map(_line, rows_of(mode, results))).encode())


def _line(row: Row) -> str:
    return json.dumps(row.model_dump(mode="json"), ensure_ascii=False) + "\n"


# --- rows -----------------------------------------------------------------------------------------------


def rows_of(mode: JobMode, results: Sequence[RolloutResult]) -> list[Row]:
    """The rows of rollouts whose files are here; of one that was cancelled, none."""
    rows: list[Row] = []
    for result in results:
        if result.directory is not None and result.status not in ("cancelled", "not_started"):
            paths = RolloutPaths(Path(result.directory))
            tree = _tree_of(paths)
            rows += [_row(mode, result, paths, tree, depth) for depth in sorted(mode.depths)]
    return rows


def _tree_of(paths: RolloutPaths) -> RolloutTree | None:
    try:
        return read_model(RolloutTree, paths.tree)
    except ResultFileError:
        return None


def _row(mode: JobMode, result: RolloutResult, paths: RolloutPaths, tree: RolloutTree | None, depth: int) -> Row:
    name = node_in("", depth)
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
        "failed": {chain: _told(failure) for chain, failure in node.failed.items()} if node is not None else {},
        "error": _why_not(node, result),
        "warnings": tree.warnings if tree is not None else [],
    }
    if isinstance(mode, ValueMode):
        known = node.model_dump(include={"value", "variance", "stderr"}) if node is not None else {}
        return ValueRow(**about, **known, returns=_returns(tree, name))
    return GroupRow(
        **about,
        mean=node.value if node is not None else None,
        std=math.sqrt(node.variance) if node is not None and node.variance is not None else None,
        # Of a scoring, those that are left are no group.
        leaves=[] if result.stored is not None and about["error"] else _leaves(paths, result.stored, tree, name),
    )


def _why_not(node: Node | None, result: RolloutResult) -> str | None:
    """Why a state has no value; None where it has one."""
    if node is not None and node.value is not None:
        return None
    if node is not None and node.failed and node.n and result.stored is not None:
        chain, failed = next(iter(node.failed.items()))
        return f"the others are no measure of it without {chain}, which had a return: {_told(failed)}"
    if node is not None and node.failed:
        return f"none of its {len(node.failed)} children could be measured"
    failure = result.error or result.verifier_error
    if failure is not None:
        return _told(failure)
    return "the rollout ended before it came to this depth" if node is None else "no children began here"


def _told(failure: Failure) -> str:
    return f"{failure.category}: {failure.message}"


def _ends(tree: RolloutTree | None, start: str) -> list[Node]:
    """Where the children of a state have ended, those that have a return, in the order of their numbers."""
    nodes = tree.nodes if tree is not None else []
    failed = {chain for node in nodes for chain in node.failed}
    mine = [node for node in nodes if chain_of(node.id) and start_of(chain_of(node.id)) == start]
    return [node for node in mine if node.returns is not None and chain_of(node.id) not in failed]


def _returns(tree: RolloutTree | None, start: str) -> dict[str, float]:
    return {chain_of(node.id): node.returns for node in _ends(tree, start) if node.returns is not None}


def _leaves(paths: RolloutPaths, stored: str | None, tree: RolloutTree | None, start: str) -> list[Leaf]:
    """Return the trajectories of a group. stored: where they lie, of a rollout that was scored again."""
    job, leaves = paths.root.parent, []
    if stored is not None:
        # `<job>/rescored/<scoring>/<rollout>`
        paths = RolloutPaths(job.parent.parent / stored)
    for node in _ends(tree, start):
        child = paths.child(chain_of(node.id))
        leaves.append(
            Leaf(
                node=node.id,
                returns=node.returns,
                advantages={name: node.advantages[name] for name in ("grpo", "leave_one_out")},
                trajectory=_there(job, [paths.trajectory, child.trajectory]),
                model_calls=_there(job, [paths.model_calls, child.model_calls]),
                is_truncated=_is_truncated(child),
            )
        )
    return leaves


def _there(job: Path, files: Sequence[Path]) -> list[str]:
    """Return the files that have anything in them, relative to the job."""
    return [os.path.relpath(file, job) for file in files if file.is_file() and file.stat().st_size]


def _is_truncated(child: RolloutPaths) -> bool | None:
    """Return whether an agent's failure has cut a child's trajectory short; None if its result can't be read."""
    try:
        return read_model(RolloutResult, child.result).is_truncated if child.result.is_file() else None
    except ResultFileError:
        return None
