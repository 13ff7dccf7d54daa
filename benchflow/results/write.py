"""Writing one rollout's results. Every file is written whole or not at all, and may be written again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchflow.contracts.reward import RewardEvent, VerifyResult
from benchflow.contracts.rollout import RolloutResult, RolloutTree
from benchflow.disk_writes import append_all, end_of_lines, sync_directory
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.results.trees import value_of, value_row
from benchflow.store import storage_errors, write_atomic
from benchflow.stored_files import open_stored, read_stored, require_directory
from benchflow.trajectories.journal import timestamp


def set_aside(paths: RolloutPaths, identity: dict[str, Any]) -> None:
    """Begin a run of a rollout: write `config.json`; what an earlier run left moves to `attempts/<n>/`.

    Called again for the same run (after a crash) it changes nothing.
    """
    try:
        before = json.loads(read_stored(paths.config))
    except (FileNotFoundError, ValueError):
        # ValueError: a power cut has left its name and not its content.
        before = None
    if before == identity:
        return
    # What lies there without a configuration, too: whoever made the job may have put links where this run writes.
    if paths.root.is_dir():
        put_aside(paths)
    write_json(paths.config, identity)


def put_aside(paths: RolloutPaths) -> None:
    """Move what an earlier run left to `attempts/<n>/`."""
    left = [path for path in paths.root.iterdir() if path.name != "attempts"]
    if not left:
        return
    target = next_attempt(paths)
    with storage_errors(target):
        target.mkdir(parents=True)
        # The configuration goes last: until then a crash finds the earlier run and moves the rest.
        for path in sorted(left, key=lambda path: path == paths.config):
            path.replace(target / path.name)


def next_attempt(paths: RolloutPaths) -> Path:
    """The directory that the next run to be put aside goes to."""
    require_directory(paths.root.parent, f"{paths.root.name}/attempts")
    attempts = paths.root / "attempts"
    return attempts / str(1 + (sum(1 for _ in attempts.iterdir()) if attempts.is_dir() else 0))


def write_json(path: Path, value: Any) -> None:
    """For files beside `result.json`: a disk that has lost them in a power cut has not got that one either."""
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode(), durable=False)


def write_rollout(
    paths: RolloutPaths,
    result: RolloutResult,
    tree: RolloutTree,
    prompts: Sequence[dict[str, Any]],
    *,
    is_lost: bool = False,
) -> bool:
    """Lay out a rollout's files; `result.json` last, because its presence says that the rollout is done.

    Args:
        is_lost: Whether its job knows the result, and the rollout has not told it. It never replaces one that the
            rollout writes after all, at whichever moment.

    Returns:
        Whether the result was written.
    """
    for directory in (paths.agent, paths.verifier, paths.artifacts, paths.trainer, paths.trajectory.parent):
        with storage_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
    with storage_errors(paths.trajectory):
        paths.trajectory.touch()
    write_json(paths.timing, result.timing)
    write_json(paths.prompts, list(prompts))
    write_json(paths.tree, tree.model_dump(mode="json"))
    with storage_errors(paths.rewards):
        paths.rewards.touch()
    content = result.model_dump_json(indent=2, exclude={"trajectory"}).encode() + b"\n"
    if not write_atomic(paths.result, content, replaces=not is_lost):
        return False
    with storage_errors(paths.root):
        # The directory was made in the beginning, and its name may be nowhere but in memory.
        sync_directory(paths.root.parent)
    return True


def write_rewards(paths: RolloutPaths, step: int, events: Sequence[RewardEvent]) -> None:
    """`rewards.jsonl`: one event a line. Replaces what the file says of this step, keeps the others."""
    try:
        # Only these line ends are ours: a verifier's texts may hold others that Python knows.
        lines = read_stored(paths.rewards).decode().removesuffix("\n").split("\n")
        old = [line for line in lines if line and json.loads(line)["step_index"] != step]
    except FileNotFoundError:
        old = []
    new = [json.dumps(_reward_line(event, step), ensure_ascii=False) for event in events]
    write_atomic(paths.rewards, "".join(f"{line}\n" for line in old + new).encode(), durable=False)


def _reward_line(event: RewardEvent, step: int) -> dict[str, Any]:
    return {
        "ts": timestamp(event.ts),
        "type": "terminal" if event.granularity == "terminal" else "process",
        "source": event.source,
        "value": event.value,
        "tag": event.tag,
        "step_index": step if event.step is None else event.step,
        "space": event.space,
        "granularity": event.granularity,
        "meta": event.meta,
    }


def result_row(result: RolloutResult) -> dict[str, Any]:
    """A rollout as a line of `results.jsonl`. value: what its reward is made of, where that is a V(s)."""
    row = result.model_dump(mode="json", exclude={"trajectory", "steps", "tree", "sandbox", "directory"})
    row["reward"] = result.reward
    node = value_of(result)
    return row | {"value": value_row(node)} if node is not None else row


def append_row(paths: JobPaths, result: RolloutResult) -> None:
    """Add a finished rollout to `results.jsonl`, which may be read while the job runs.

    A row that is repeated after a crash is dropped when the job ends and the file is written anew.
    """
    append_line(paths.results, json.dumps(result_row(result), ensure_ascii=False) + "\n")


def append_line(file: Path, line: str) -> None:
    """Add a line to a file that several processes add to, whole or not at all.

    What a writer that died, or a power cut, has left of a line is taken away: whoever wrote it writes it again. Raises
    `ResultFileError` for what is no regular file.
    """
    with contextlib.suppress(FileNotFoundError):
        open_stored(file).close()
    with storage_errors(file):
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if (end := end_of_lines(fd)) < (size := os.fstat(fd).st_size):
                try:
                    json.loads(os.pread(fd, size - end, end))
                    # A whole one, of somebody who has edited the file.
                    line = "\n" + line
                except ValueError:
                    os.ftruncate(fd, end)
            append_all(fd, line.encode())
        finally:
            os.close(fd)


def without_events(result: VerifyResult) -> VerifyResult:
    """What travels through a workflow: the numbers; the events are on disk."""
    return result.model_copy(update={"events": []})
