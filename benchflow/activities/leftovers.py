"""Removal, by age, of files that jobs leave on a host, and of caches.

These are results that went to the store, unpacked tasks, trials of worlds, retained checkpoints of rollouts that have
ended, and the large contents of messages. No reference count tells whether they are still needed, so nothing is removed
that has changed since the retention time before the oldest open workflow started.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import structlog
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError

from benchflow.activities.worker_context import WorkerContext
from benchflow.hosting.checkpoint_records import read_checkpoint_record, remove_checkpoint
from benchflow.planes.sandbox import directory_trees
from benchflow.rounds import Failures
from benchflow.store import BULK, DirectoryBackend
from benchflow.workflow_executions import require_not_found

_REMOVAL_SUFFIX = ".old"

log = structlog.get_logger("benchflow.leftovers")


class Leftovers:
    """Removes the leftovers of one host; each worker has one.

    Args:
        context: Host and client of this worker process.
    """

    def __init__(self, context: WorkerContext) -> None:
        """Make it."""
        self.context = context
        self._failures = Failures("leftovers")

    async def remove(self) -> int:
        """Remove all leftovers that are old enough, and return the number of directories and files removed.

        An entry that can't be removed is logged, and retried in the next round.

        Raises:
            RPCError: The server can't be asked for its open workflows.
        """
        self._failures.begin_round()
        began = await find_oldest_start(self.context.client)
        # The minimum, since this host's clock may have been set, and may differ from the server's.
        newest = min(began, time.time()) - self.context.options.leftovers_retain_days * 86_400
        paths, backend = self.context.paths, self.context.store.backend
        removed = 0
        for root in (paths.rollouts, paths.tasks, paths.checks):
            for directory in await asyncio.to_thread(_list_entries, root):
                async with self._failures.item(f"{root.name}/{directory.name}"):
                    removed += await asyncio.to_thread(_remove_directory, directory, newest)
        for file in await asyncio.to_thread(lambda: [*paths.checkpoints.glob("*.json"), *paths.ended.glob("*.json")]):
            async with self._failures.item(f"checkpoint {file.stem}"):
                removed += await self._remove_ended(file, newest)
        if isinstance(backend, DirectoryBackend):
            async with self._failures.item(BULK):
                removed += await asyncio.to_thread(_remove_files, backend.root / BULK, newest)
        if removed:
            log.info("removed what jobs had left", count=removed)
        return removed

    async def _remove_ended(self, file: Path, newest: float) -> bool:
        """Remove a retained checkpoint, or the recorded state of an ended rollout.

        Args:
            file: Record of the checkpoint, or of the state.
            newest: Timestamp; a file that has changed since then stays.

        Returns:
            Whether it was removed. Checkpoints that are not retained are left to the reaper.
        """
        if file.lstat().st_ctime > newest:
            return False
        if file.parent == self.context.paths.ended:
            file.unlink(missing_ok=True)
            return True
        kept = await asyncio.to_thread(read_checkpoint_record, file)
        if kept is None or not kept.is_retained:
            # The reaper removes it, when its rollout has ended.
            return False
        await remove_checkpoint(file, self.context.store)
        return True


async def find_oldest_start(client: Client) -> float:
    """Return the timestamp at which the oldest open workflow started; the present time, if none is open.

    After continue-as-new the first run counts, whose files the workflow may still use. If the server has forgotten the
    first run, it may have started at any time, and 0 is returned.

    Args:
        client: Connection to the Temporal server.

    Raises:
        RPCError: The server can't be asked.
    """
    oldest = time.time()
    async for workflow in client.list_workflows('ExecutionStatus="Running"'):
        try:
            description = await client.get_workflow_handle(workflow.id, run_id=workflow.run_id).describe()
            first = description.raw_description.workflow_execution_info.first_run_id
            if first not in ("", workflow.run_id):
                description = await _describe_first(client, workflow.id, first)
        except RPCError as error:
            require_not_found(error)
            return 0.0
        oldest = min(oldest, description.start_time.timestamp())
    return oldest


async def _describe_first(client: Client, workflow: str, run: str) -> WorkflowExecutionDescription:
    return await client.get_workflow_handle(workflow, run_id=run).describe()


def _list_entries(root: Path) -> list[Path]:
    return sorted(root.iterdir()) if root.is_dir() else []


def _remove_directory(directory: Path, newest: float) -> bool:
    """Remove a directory in which nothing has changed since `newest`; return whether it was removed.

    Hidden directories are skipped, since a process works in them now; but those that an interrupted removal has renamed
    (`.<name>.old`) are removed.
    """
    if not stat.S_ISDIR(directory.lstat().st_mode):
        return False
    if not (directory.name.startswith(".") and directory.suffix == _REMOVAL_SUFFIX):
        if directory.name.startswith(".") or any(changed > newest for changed in _iterate_ctimes(directory)):
            return False
        # Renamed first, so that no process finds a half-removed directory.
        directory = directory.rename(directory.with_name(f".{directory.name}{_REMOVAL_SUFFIX}"))
    directory_trees.remove_tree(directory)
    return True


def _iterate_ctimes(directory: Path) -> Iterator[float]:
    """Yield the ctimes of a directory and of all entries below it. Unlike an mtime, a program can't set a ctime."""
    yield directory.lstat().st_ctime
    for place, directories, files in os.walk(directory):
        for name in (*directories, *files):
            yield Path(place, name).lstat().st_ctime


def _remove_files(root: Path, newest: float) -> int:
    """Remove the files below `root` that have not changed since `newest`, and return their number."""
    removed = 0
    for file in root.rglob("*") if root.is_dir() else ():
        status = file.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_ctime <= newest:
            file.unlink(missing_ok=True)
            removed += 1
    return removed
