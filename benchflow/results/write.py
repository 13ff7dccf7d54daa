"""Writing one rollout's results. Every file is written atomically, and may be written again."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchflow.contracts.reward import RewardEvent, VerifyResult
from benchflow.contracts.rollout_records import RolloutResult, RolloutTree
from benchflow.host_files import (
    append_lines,
    find_end_of_lines,
    lock,
    open_fd,
    raise_storage_errors,
    sync_directory,
    write_all,
    write_atomic,
)
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.results.value_reward import find_value_node, make_value_row
from benchflow.stored_files import open_stored, read_stored, require_directory
from benchflow.trajectories.journal import format_timestamp


def begin_run(paths: RolloutPaths, identity: dict[str, Any]) -> None:
    """Start a run of a rollout: write `config.json`, and move the files of an earlier run to `attempts/<n>/`.

    A second call for the same run, after a crash, changes nothing.

    Args:
        paths: Files of the rollout.
        identity: Content of `config.json`, which identifies the run.
    """
    try:
        before = json.loads(read_stored(paths.config))
    except (FileNotFoundError, ValueError):
        # ValueError: a power cut left the file without its content.
        before = None
    if before == identity:
        return
    # Files without a configuration are moved, too: the job's author may have put links where this run writes.
    if paths.root.is_dir():
        archive_run(paths)
    write_json(paths.config, identity)


def archive_run(paths: RolloutPaths) -> None:
    """Move the files of an earlier run of a rollout to `attempts/<n>/`."""
    left = [path for path in paths.root.iterdir() if path.name != "attempts"]
    if not left:
        return
    target = find_next_attempt(paths)
    with raise_storage_errors(target):
        target.mkdir(parents=True)
        # The configuration goes last: after a crash before that, the next call recognises the run and moves the rest.
        for path in sorted(left, key=lambda path: path == paths.config):
            path.replace(target / path.name)


def find_next_attempt(paths: RolloutPaths) -> Path:
    """Return the directory to which the next earlier run will be moved: `attempts/<n>`, with n from 1."""
    require_directory(paths.root.parent, f"{paths.root.name}/attempts")
    attempts = paths.root / "attempts"
    return attempts / str(1 + (sum(1 for _ in attempts.iterdir()) if attempts.is_dir() else 0))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically and without fsync.

    For files beside `result.json`: a disk that loses them in a power cut has lost the result, written later, as well.
    """
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode(), durable=False)


def write_rollout(
    paths: RolloutPaths,
    result: RolloutResult,
    tree: RolloutTree,
    prompts: Sequence[dict[str, Any]],
    *,
    is_lost: bool = False,
) -> bool:
    """Write a rollout's files; `result.json` last, because its presence marks the rollout as done.

    Args:
        paths: Files of the rollout.
        result: The result; its trajectory is not written.
        tree: Tree of the rollout.
        prompts: Prompts of its steps.
        is_lost: Whether the job writes the result of a rollout that did not report. It never replaces one that the
            rollout writes after all, at whatever moment.

    Returns:
        Whether the result was written.
    """
    for directory in (paths.agent, paths.verifier, paths.artifacts, paths.trainer, paths.trajectory.parent):
        with raise_storage_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
    with raise_storage_errors(paths.trajectory):
        paths.trajectory.touch()
    write_json(paths.timing, result.timing)
    write_json(paths.prompts, list(prompts))
    write_json(paths.tree, tree.model_dump(mode="json"))
    with raise_storage_errors(paths.rewards):
        paths.rewards.touch()
    content = result.model_dump_json(indent=2, exclude={"trajectory"}).encode() + b"\n"
    if not write_atomic(paths.result, content, replaces=not is_lost):
        return False
    with raise_storage_errors(paths.root):
        # The directory was made at the start without fsync, so its name may not be on disk yet.
        sync_directory(paths.root.parent)
    return True


def write_rewards(paths: RolloutPaths, step: int, events: Sequence[RewardEvent]) -> None:
    """Write the reward events of a step to `rewards.jsonl`, one per line, in place of the step's earlier ones."""
    try:
        # Not `splitlines`: a verifier's texts may contain other characters that it takes for line ends.
        lines = read_stored(paths.rewards).decode().removesuffix("\n").split("\n")
        old = [line for line in lines if line and json.loads(line)["step_index"] != step]
    except FileNotFoundError:
        old = []
    new = [json.dumps(_make_reward_line(event, step), ensure_ascii=False) for event in events]
    write_atomic(paths.rewards, "".join(f"{line}\n" for line in old + new).encode(), durable=False)


def _make_reward_line(event: RewardEvent, step: int) -> dict[str, Any]:
    return {
        "ts": format_timestamp(event.ts),
        "type": "terminal" if event.granularity == "terminal" else "process",
        "source": event.source,
        "value": event.value,
        "tag": event.tag,
        "step_index": step if event.step is None else event.step,
        "space": event.space,
        "granularity": event.granularity,
        "meta": event.meta,
    }


def make_result_row(result: RolloutResult) -> dict[str, Any]:
    """Return a rollout as a line of `results.jsonl`; with `value`, the details of its V(s), if that is its reward."""
    row = result.model_dump(mode="json", exclude={"trajectory", "steps", "tree", "sandbox", "directory"})
    row["reward"] = result.reward
    node = find_value_node(result)
    return row | {"value": make_value_row(node)} if node is not None else row


def append_row(paths: JobPaths, result: RolloutResult) -> None:
    """Append an ended rollout to `results.jsonl`, which may be read while the job runs.

    Duplicates after a crash are dropped when the file is rewritten at the job's end.
    """
    append_line(paths.results, json.dumps(make_result_row(result), ensure_ascii=False) + "\n")


def append_line(file: Path, line: str) -> None:
    """Append a line to a file that several processes append to, whole or not at all.

    A partial last line, left by a writer that died or by a power cut, is removed: its writer is run again.

    Args:
        file: The file, made if it is missing.
        line: The line, with its line end.

    Raises:
        ResultFileError: It is not a regular file.
    """
    with contextlib.suppress(FileNotFoundError):
        open_stored(file).close()
    with raise_storage_errors(file), open_fd(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644) as fd:
        lock(fd)
        end = find_end_of_lines(fd)
        with contextlib.suppress(ValueError):
            json.loads(os.pread(fd, os.fstat(fd).st_size - end, end))
            # Complete but for its line end: an editor wrote it.
            write_all(fd, b"\n")
        append_lines(fd, line.encode())


def remove_events(result: VerifyResult) -> VerifyResult:
    """Return a verifier's result without its events, which are on disk: small enough to travel through a workflow."""
    return result.model_copy(update={"events": []})
