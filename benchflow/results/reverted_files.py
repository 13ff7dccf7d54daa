"""Results that a rollback reverts: moved out of a rollout's results, into a directory of their own.

Afterwards the rollout's files describe it as of the restored state; reverted results stay beside them. Every function
may be called again after a crash, and then moves the rest.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchflow.contracts.rollout_records import Step, Usage
from benchflow.errors import ResultFileError
from benchflow.host_files import lock, open_fd, raise_storage_errors, write_atomic
from benchflow.paths import RESCORED, RolloutPaths, make_state_label
from benchflow.results.write import write_json
from benchflow.stored_files import read_stored
from benchflow.trajectories.journal import read_journal

_NODE = b', "node": "'
_BODY = b', "request'
"""Start of the last part of a line of recorded calls: the request, in which nothing may be replaced."""


def get_reverted_paths(paths: RolloutPaths, label: str) -> RolloutPaths:
    """Return the paths for the results that one rollback reverts, laid out as a rollout is.

    Args:
        paths: Files of the rollout.
        label: Name of the rollback.
    """
    return RolloutPaths(paths.root / "rollbacks" / label)


def move_end_aside(paths: RolloutPaths, label: str, config: dict[str, Any]) -> None:
    """Move the files of a rollout's end aside, if it had ended.

    These are its result, new scores, artifacts, service logs and the agent's files without the sessions' journals. The
    result is moved first: while it is there, nothing was reverted.

    Args:
        paths: Files of the rollout.
        label: Name of the rollback.
        config: New content of `config.json`: the existing one names another run of the workflow.
    """
    target = get_reverted_paths(paths, label)
    if paths.result.exists():
        with raise_storage_errors(target.root):
            target.root.mkdir(parents=True, exist_ok=True)
            paths.result.replace(target.result)
    if not target.result.exists():
        return
    # The journals belong to all sessions, of which some are resumed.
    collected = [each for each in _list_entries(paths.agent) if each != paths.sessions]
    for source in (paths.root / RESCORED, *collected, paths.artifacts, paths.environment / "logs"):
        _move(source, paths.root, target.root)
    write_json(paths.config, config)


def move_reverted_aside(
    paths: RolloutPaths, label: str, *, undone: Collection[str], steps: Sequence[Step], chains: Collection[str]
) -> None:
    """Move the files of reverted nodes, steps and children aside: events, rewards, evidence, results of the children.

    Args:
        paths: Files of the rollout.
        label: Name of the rollback.
        undone: Ids of the reverted nodes.
        steps: Reverted steps, which led to these nodes.
        chains: Branch paths of the children that started since the restored state.
    """
    target = get_reverted_paths(paths, label)
    _cut_trajectory(paths.trajectory, target.trajectory, undone)
    _cut_rewards(paths.rewards, target.rewards, {step.index for step in steps})
    for source in _iterate_step_files(paths, steps, whole=any(step.index == 0 for step in steps)):
        _move(source, paths.root, target.root)
    for chain in chains:
        _move(paths.child(chain).root, paths.root, target.root)


def detach_reverted_calls(record: Path, undone: Collection[str], label: str) -> None:
    """Detach the recorded model calls of reverted nodes from the tree; they then count as usage only.

    A call is detached by a suffix to its node's id. Nothing else may write to the record meanwhile: it is replaced.

    Args:
        record: File of the recorded calls; missing is success.
        undone: Ids of the reverted nodes.
        label: Name of the rollback, which is the suffix.
    """
    try:
        lines = record.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    names = {f'{_NODE.decode()}{node}"'.encode(): f'{_NODE.decode()}{node}~{label}"'.encode() for node in undone}
    changed = False
    for at, line in enumerate(lines):
        head, mark, body = line.partition(_BODY)
        for old, new in names.items() if mark else ():
            if old in head:
                lines[at] = _remove_turn(head.replace(old, new)) + mark + body
                changed = True
    if changed:
        write_atomic(record, b"".join(lines))


def list_child_usage(paths: RolloutPaths, chains: Collection[str]) -> list[Usage]:
    """Return the model usage in the results of children; a child without a readable result is left out."""
    used = []
    for chain in chains:
        try:
            told = json.loads(read_stored(paths.child(chain).result))
        except (FileNotFoundError, ValueError):
            continue
        if told.get("n_input_tokens") is not None:
            cost = told.get("cost_usd")
            names = ("input_tokens", "output_tokens", "estimated_calls")
            counts = {name: told[f"n_{name}"] for name in names if f"n_{name}" in told}
            used.append(Usage(**counts, cost=cost, currency=None if cost is None else "USD"))
    return used


def _remove_turn(head: bytes) -> bytes:
    """Return the start of a recorded call's line with its turn replaced by null."""
    before, mark, after = head.partition(b', "turn": ')
    return before + mark + b"null" + after[len(after) - len(after.lstrip(b"0123456789")) :] if mark else head


def _iterate_step_files(paths: RolloutPaths, steps: Sequence[Step], *, whole: bool) -> Iterator[Path]:
    """Yield the files and directories of steps.

    Args:
        paths: Files of the rollout.
        steps: The steps.
        whole: Whether the first step is among them, so that the baseline taken before it is yielded, too.
    """
    yield paths.root / "soft"
    for step in steps:
        yield from (paths.state(step.name), paths.environment / "snapshots" / make_state_label(step.name))
        if step.name is not None:
            yield paths.root / "steps" / step.name
            continue
        yield from (paths.verifier, paths.judge())
        evidence = paths.evidence()
        # The baseline of the sandbox before the first step serves all steps of such a task.
        yield from (each for each in _list_entries(evidence) if whole or each.name != "baseline.json")


def _list_entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _move(source: Path, root: Path, target: Path) -> None:
    """Move a file or directory to the same relative path below `target`; missing is success."""
    if not os.path.lexists(source):
        return
    place = target / source.relative_to(root)
    with raise_storage_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir() and not place.is_symlink():
            # A crash cannot leave half a move, since it is one rename: whatever is in its place may go.
            shutil.rmtree(place)
        source.replace(place)


def _cut_trajectory(file: Path, target: Path, undone: Collection[str]) -> None:
    """Move the lines from the first one of a reverted node on to `target`; all later lines are reverted, too."""
    if not file.exists():
        return
    with raise_storage_errors(file), open_fd(file, os.O_RDWR) as fd:
        lock(fd)
        data = file.read_bytes()
        kept = 0
        for line in data.splitlines(keepends=True):
            if line.endswith(b"\n") and _read_node(line, file) in undone:
                break
            kept += len(line)
        if kept == len(data):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data[kept:])
        os.ftruncate(fd, kept)


def _read_node(line: bytes, file: Path) -> str:
    """Return the node id of a line of the trajectory. Raise `ResultFileError` if it is no event."""
    try:
        return str(json.loads(line)["node"])
    except (ValueError, KeyError) as error:
        raise ResultFileError("this line is no event", file=str(file), remedy="restore the file") from error


def _cut_rewards(file: Path, target: Path, steps: Collection[int]) -> None:
    """Move the lines of reverted steps from `file` to `target`."""
    lines = read_journal(file)
    gone = [line for line in lines if line["step_index"] in steps]
    if not gone:
        return
    for place, those in ((target, gone), (file, [line for line in lines if line not in gone])):
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in those)
        write_atomic(place, text.encode(), durable=False)
