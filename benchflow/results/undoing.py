"""What a rollout has written since a state that it is put back to: out of its results, into a directory of its own.

Its files tell of the rollout as it is again; what was undone is kept beside them. Called again after a crash, the rest
is moved.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchflow.contracts.rollout import Step, Usage
from benchflow.disk_writes import write_all
from benchflow.errors import ResultFileError
from benchflow.paths import RESCORED, RolloutPaths, state_label
from benchflow.results.write import write_json
from benchflow.store import storage_errors, write_atomic
from benchflow.stored_files import read_stored
from benchflow.trajectories.journal import read_journal

_NODE = b', "node": "'
_BODY = b', "request'
"""What the last part of a request line begins with: what is asked, where nothing is to be changed."""


def undone_place(paths: RolloutPaths, label: str) -> RolloutPaths:
    """Where what was undone at that time lies, laid out as a rollout is."""
    return RolloutPaths(paths.root / "rollbacks" / label)


def put_ended_aside(paths: RolloutPaths, label: str, config: dict[str, Any]) -> None:
    """Move what belongs to the end of a rollout, if it had ended: its result, its other scores, what was collected.

    The result goes first: as long as it is there, nothing was undone.

    Args:
        paths: The rollout's.
        label: Name of the roll-back.
        config: Content of its `config.json` from now on: what is there is of another run of its workflow.
    """
    target = undone_place(paths, label)
    if paths.result.exists():
        with storage_errors(target.root):
            target.root.mkdir(parents=True, exist_ok=True)
            paths.result.replace(target.result)
    if not target.result.exists():
        return
    # The journals are those of all sessions, of which some go on.
    collected = [each for each in _entries(paths.agent) if each != paths.sessions]
    for source in (paths.root / RESCORED, *collected, paths.artifacts, paths.environment / "logs"):
        _move(source, paths.root, target.root)
    write_json(paths.config, config)


def put_undone_aside(
    paths: RolloutPaths, label: str, *, undone: Collection[str], steps: Sequence[Step], chains: Collection[str]
) -> None:
    """Move what belongs to nodes, to the steps that led there, and to children that began since."""
    target = undone_place(paths, label)
    _cut_trajectory(paths.trajectory, target.trajectory, undone)
    _cut_rewards(paths.rewards, target.rewards, {step.index for step in steps})
    for source in _of_steps(paths, steps, whole=any(step.index == 0 for step in steps)):
        _move(source, paths.root, target.root)
    for chain in chains:
        _move(paths.child(chain).root, paths.root, target.root)


def mark_undone_calls(record: Path, undone: Collection[str], label: str) -> None:
    """Have the recorded calls of nodes lead to none of the tree's: they count as used, and for nothing else.

    Nobody may write to the record meanwhile.
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
                lines[at] = _without_turn(head.replace(old, new)) + mark + body
                changed = True
    if changed:
        write_atomic(record, b"".join(lines))


def used_by_children(paths: RolloutPaths, chains: Collection[str]) -> list[Usage]:
    """What the models of children have used, as their own results tell."""
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


def _without_turn(head: bytes) -> bytes:
    before, mark, after = head.partition(b', "turn": ')
    return before + mark + b"null" + after[len(after) - len(after.lstrip(b"0123456789")) :] if mark else head


def _of_steps(paths: RolloutPaths, steps: Sequence[Step], *, whole: bool) -> Iterator[Path]:
    """The files and directories that tell of steps. whole: of the first, too."""
    yield paths.root / "soft"
    for step in steps:
        yield from (paths.state(step.name), paths.environment / "snapshots" / state_label(step.name))
        if step.name is not None:
            yield paths.root / "steps" / step.name
            continue
        yield from (paths.verifier, paths.judge())
        evidence = paths.evidence()
        # What the sandbox was before anybody acted holds for all steps of such a task.
        yield from (each for each in _entries(evidence) if whole or each.name != "baseline.json")


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _move(source: Path, root: Path, target: Path) -> None:
    if not os.path.lexists(source):
        return
    place = target / source.relative_to(root)
    with storage_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir() and not place.is_symlink():
            # Of a move that a crash has cut short, nothing was lost: it is one rename.
            shutil.rmtree(place)
        source.replace(place)


def _cut_trajectory(file: Path, target: Path, undone: Collection[str]) -> None:
    """Move the lines that led to nodes. They are the last ones: nothing was done since that is not undone."""
    if not file.exists():
        return
    with storage_errors(file):
        fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            data = file.read_bytes()
            kept = 0
            for line in data.splitlines(keepends=True):
                if line.endswith(b"\n") and _node_of(line, file) in undone:
                    break
                kept += len(line)
            if kept == len(data):
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as moved:
                write_all(moved.fileno(), data[kept:])
            os.ftruncate(fd, kept)
        finally:
            os.close(fd)


def _node_of(line: bytes, file: Path) -> str:
    try:
        return str(json.loads(line)["node"])
    except (ValueError, KeyError) as error:
        raise ResultFileError("this line is no event", file=str(file), remedy="restore the file") from error


def _cut_rewards(file: Path, target: Path, steps: Collection[int]) -> None:
    lines = read_journal(file)
    gone = [line for line in lines if line["step_index"] in steps]
    if not gone:
        return
    for place, those in ((target, gone), (file, [line for line in lines if line not in gone])):
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in those)
        write_atomic(place, text.encode(), durable=False)
