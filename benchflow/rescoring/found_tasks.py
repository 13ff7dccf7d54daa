"""Tasks that stored rollouts are scored by: found, checked and packed."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow.contracts.allowed_code import allowing, is_allowed
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.failures import failure_of
from benchflow.contracts.job import TaskRef
from benchflow.contracts.rescoring_basis import ScoredBy
from benchflow.contracts.task import Task
from benchflow.errors import BenchFlowError, StoreError, TaskError
from benchflow.host_files import raise_storage_errors
from benchflow.jobs.job_plan import pack_directory
from benchflow.paths import StatePaths
from benchflow.planes.reward.functions import check_declared
from benchflow.planes.reward.needs import list_own_judges
from benchflow.secrets import list_task_variables
from benchflow.store import Store
from benchflow.tasks import digest_tree, find_ignored_files, find_tasks, load_task, unpack


@dataclass
class FoundTask:
    """A task to score by, and the variables that it needs."""

    by: ScoredBy
    """Reference to the packed task, or the failure to find it."""
    variables: set[str]
    """Names of the variables that it needs."""
    task: Task | None
    """The task; None if it cannot be found or may not be used."""


class Tasks:
    """Source of the tasks to score by: the recorded ones, or those of a given directory."""

    def __init__(
        self,
        store: Store,
        state: StatePaths,
        given: Path | None,
        *,
        take_variables: bool = True,
        allow_code: Sequence[str] | None = None,
    ) -> None:
        """Make it, and list the tasks of the given directory.

        Args:
            store: Store of the packed tasks.
            state: State directory of this host, in which packs are unpacked.
            given: Directory of tasks that replace the recorded ones of the same names; None for the recorded ones.
            take_variables: Whether tasks may use the variables of this environment that they name.
            allow_code: Modules that their reward functions may come from; None if these functions do not score.

        Raises:
            TaskError: The given directory has no tasks.
        """
        self._store = store
        self._state = state
        self._given = given
        self._take_variables = take_variables
        self._allow_code = allow_code
        self._paths = {path.name: path for path in find_tasks(given)} if given is not None else None

    def digest(self, ref: TaskRef) -> str | None:
        """Return the digest of the task to score by; None if the given directory has none of its name."""
        if self._paths is None:
            return ref.digest
        return _digest(self._paths[ref.name]) if ref.name in self._paths else None

    async def find(self, ref: TaskRef) -> FoundTask:
        """Find and pack the task that rollouts of `ref` are scored by.

        Returns:
            The task; or, with `task` None, the failure to find or accept it.

        Raises:
            BenchFlowError: An error that a retry may not meet again.
        """
        try:
            by, task, directory = await (self._recorded(ref) if self._paths is None else self._replaced(ref))
            return FoundTask(by, self._check(task, directory), task)
        except BenchFlowError as error:
            if error.retryable:
                raise
            return FoundTask(ScoredBy(failure=failure_of(error, "verify")), set(), None)

    async def _replaced(self, ref: TaskRef) -> tuple[ScoredBy, Task, Path]:
        """Pack the task of the given directory."""
        assert self._paths is not None
        path = self._paths.get(ref.name)
        if path is None:
            raise TaskError(
                f"there is no task {ref.name!r}",
                file=str(self._given),
                key="--tasks",
                remedy=f"add it there, or leave its rollouts out: the tasks there are {', '.join(self._paths)}",
            )
        task = await self._load(path, ref, None)
        left_out = await asyncio.to_thread(find_ignored_files, path)
        digest = await asyncio.to_thread(digest_tree, path, exclude=left_out)
        # The build context that was given at submit still applies.
        context = ref.context
        if task.context_root is not None:
            context = await pack_directory(Path(task.context_root), self._store)
        pack = await pack_directory(path.absolute(), self._store, left_out)
        update = {"digest": digest, "pack": pack, "context": context, "source": str(path.absolute())}
        return ScoredBy(ref=ref.model_copy(update=update), digest=digest, origin="given"), task, path

    async def _recorded(self, ref: TaskRef) -> tuple[ScoredBy, Task, Path]:
        """Return the recorded task: its source directory, if unchanged since the submit, else the pack in the store."""
        source = Path(ref.source) if ref.source is not None else None
        if source is not None and await asyncio.to_thread(_has_digest, source, ref.digest):
            # Packed again, since the store may have lost it.
            pack = await pack_directory(source, self._store)
            by = ScoredBy(ref=ref.model_copy(update={"pack": pack}), digest=ref.digest, origin="source")
            try:
                context = await self._unpacked(ref.context) if ref.context is not None else None
            except StoreError as error:
                raise _make_missing_error(f"the build context of task {ref.name!r}", ref, error) from error
            return by, await self._load(source, ref, context), source
        try:
            directory = await self._unpacked(ref.pack)
            task = await self._load(directory, ref, await self._unpacked(ref.context) if ref.context else None)
        except StoreError as error:
            raise _make_missing_error(f"task {ref.name!r} is not what it was, or gone, and it", ref, error) from error
        return ScoredBy(ref=ref, digest=ref.digest, origin="store"), task, directory

    async def _unpacked(self, pack: ArtifactRef) -> Path:
        """Return the directory on this host, also used by workers, with the content of a pack; unpack it if missing."""
        root = self._state.tasks
        target = root / pack.sha256[:32]
        if not target.is_dir():
            with raise_storage_errors(root):
                root.mkdir(parents=True, exist_ok=True, mode=0o700)
                with tempfile.TemporaryDirectory(dir=root, prefix=f".{target.name}.{os.getpid()}.") as scratch:
                    file = Path(scratch) / "pack.tar"
                    await self._store.fetch(pack, file)
                    await asyncio.to_thread(unpack, file, target)
        return target

    async def _load(self, directory: Path, ref: TaskRef, context: Path | None) -> Task:
        given = ref.has_world_image
        return await asyncio.to_thread(load_task, directory, context_root=context, name=ref.name, has_manifest=given)

    def _check(self, task: Task, directory: Path) -> set[str]:
        """Return the names of the variables that a task needs.

        Raises:
            TaskError: It names code or variables that it may not have.
        """
        file = str(directory / task.config_file)
        if task.reward is not None and self._allow_code is not None:
            for key, target in check_declared(task.reward, file=file):
                if not is_allowed(target, self._allow_code):
                    raise TaskError(
                        f"{target!r} is code of this host that no installed package declares for tasks",
                        file=file,
                        key=key,
                        remedy=allowing(target),
                    )
        named = {*list_task_variables(task), *(name for name, _ in list_own_judges(task))}
        taken = [name for name in named if name in os.environ]
        if taken and not self._take_variables:
            raise TaskError(
                f"takes variables of your environment: {', '.join(sorted(taken))}",
                file=file,
                key="--yes",
                remedy="look whether it may have them, and give --yes (-y); or unset them",
            )
        return named


def _digest(directory: Path) -> str:
    return digest_tree(directory, exclude=find_ignored_files(directory))


def _has_digest(directory: Path, digest: str) -> bool:
    """Return whether a directory has exactly the files of the frozen task."""
    try:
        # A directory with ignored files is not a copy of the frozen one, which has none.
        return not find_ignored_files(directory) and digest_tree(directory) == digest
    except (TaskError, OSError):
        return False


def _make_missing_error(what: str, ref: TaskRef, error: StoreError) -> TaskError:
    """Return the error for a task of which the store has lost a part."""
    return TaskError(
        f"{what} cannot be had from the store: {error.message}",
        file=ref.source,
        key="--tasks",
        remedy="name a directory of tasks to score by: --tasks DIR",
    )
