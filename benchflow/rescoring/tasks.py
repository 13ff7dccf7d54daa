"""Find the tasks that stored rollouts are scored by, and freeze them."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.code import allowing, is_allowed
from benchflow.contracts.failures import failure_of
from benchflow.contracts.job import TaskRef
from benchflow.contracts.scoring import ScoredBy
from benchflow.contracts.task import Task
from benchflow.errors import BenchFlowError, StoreError, TaskError, TaskNotFoundError, TaskValueError
from benchflow.jobs.plan import pack_directory
from benchflow.paths import StatePaths
from benchflow.planes.reward.functions import check_declared
from benchflow.planes.reward.needs import own_judges
from benchflow.secrets import references
from benchflow.store import Store, storage_errors
from benchflow.tasks import digest_tree, find_tasks, ignored_files, load_task, unpack


@dataclass
class FoundTask:
    """A task to score by, and the variables that it takes."""

    by: ScoredBy
    variables: set[str]
    task: Task | None
    """The task; None where it may not be used, or can't be had."""


class Tasks:
    """The tasks to score by.

    Raises `TaskNotFoundError` when the given directory holds none.
    """

    def __init__(
        self,
        store: Store,
        state: StatePaths,
        given: Path | None,
        *,
        take_variables: bool = True,
        allow_code: Sequence[str] | None = None,
    ) -> None:
        """Look for tasks.

        Args:
            store: Where frozen tasks are.
            state: State directory of this host, in which they are unpacked.
            given: A directory of tasks that are taken, by name, instead of the recorded ones.
            take_variables: Whether they may have the variables of this environment that they take.
            allow_code: Modules that their reward functions may be of; None where these functions do not score.
        """
        self._store = store
        self._state = state
        self._given = given
        self._take_variables = take_variables
        self._allow_code = allow_code
        self._paths = {path.name: path for path in find_tasks(given)} if given is not None else None

    def digest(self, ref: TaskRef) -> str | None:
        """Return the digest of what a task is scored by; None where there is nothing of its name."""
        if self._paths is None:
            return ref.digest
        return _digest(self._paths[ref.name]) if ref.name in self._paths else None

    async def find(self, ref: TaskRef) -> FoundTask:
        """Freeze the task that rollouts of `ref` are scored by. What is wrong with it is part of the answer."""
        try:
            by, task, directory = await (self._recorded(ref) if self._paths is None else self._replaced(ref))
            return FoundTask(by, self._check(task, directory), task)
        except BenchFlowError as error:
            if error.retryable:
                raise
            return FoundTask(ScoredBy(failure=failure_of(error, "verify")), set(), None)

    async def _replaced(self, ref: TaskRef) -> tuple[ScoredBy, Task, Path]:
        assert self._paths is not None
        path = self._paths.get(ref.name)
        if path is None:
            raise TaskNotFoundError(
                f"there is no task {ref.name!r}",
                file=str(self._given),
                key="--tasks",
                remedy=f"add it there, or leave its rollouts out: the tasks there are {', '.join(self._paths)}",
            )
        task = await self._load(path, ref, None)
        left_out = await asyncio.to_thread(ignored_files, path)
        digest = await asyncio.to_thread(digest_tree, path, exclude=left_out)
        # What was given for its image at submit is still what its image is made from.
        context = ref.context
        if task.context_root is not None:
            context = await pack_directory(Path(task.context_root), self._store)
        pack = await pack_directory(path.absolute(), self._store, left_out)
        update = {"digest": digest, "pack": pack, "context": context, "source": str(path.absolute())}
        return ScoredBy(ref=ref.model_copy(update=update), digest=digest, origin="given"), task, path

    async def _recorded(self, ref: TaskRef) -> tuple[ScoredBy, Task, Path]:
        source = Path(ref.source) if ref.source is not None else None
        if source is not None and await asyncio.to_thread(_has_digest, source, ref.digest):
            # The store may have lost it since.
            pack = await pack_directory(source, self._store)
            by = ScoredBy(ref=ref.model_copy(update={"pack": pack}), digest=ref.digest, origin="source")
            try:
                context = await self._unpacked(ref.context) if ref.context is not None else None
            except StoreError as error:
                raise _not_in_store(f"the build context of task {ref.name!r}", ref, error) from error
            return by, await self._load(source, ref, context), source
        try:
            directory = await self._unpacked(ref.pack)
            task = await self._load(directory, ref, await self._unpacked(ref.context) if ref.context else None)
        except StoreError as error:
            raise _not_in_store(f"task {ref.name!r} is not what it was, or gone, and it", ref, error) from error
        return ScoredBy(ref=ref, digest=ref.digest, origin="store"), task, directory

    async def _unpacked(self, pack: ArtifactRef) -> Path:
        """Return a packed directory on this host, where workers look for it, too. Raises `StoreError`."""
        root = self._state.tasks
        target = root / pack.sha256[:32]
        if not target.is_dir():
            with storage_errors(root):
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
        """Return the variables that a task takes. Raise `TaskValueError` for code or variables that it may not have."""
        file = str(directory / task.config_file)
        if task.reward is not None and self._allow_code is not None:
            for key, target in check_declared(task.reward, file=file):
                if not is_allowed(target, self._allow_code):
                    raise TaskValueError(
                        f"{target!r} is code of this host that no installed package declares for tasks",
                        file=file,
                        key=key,
                        remedy=allowing(target),
                    )
        named = {*references(task), *(name for name, _ in own_judges(task))}
        taken = [name for name in named if name in os.environ]
        if taken and not self._take_variables:
            raise TaskValueError(
                f"takes variables of your environment: {', '.join(sorted(taken))}",
                file=file,
                key="--yes",
                remedy="look whether it may have them, and give --yes (-y); or unset them",
            )
        return named


def _digest(directory: Path) -> str:
    return digest_tree(directory, exclude=ignored_files(directory))


def _has_digest(directory: Path, digest: str) -> bool:
    try:
        # A directory that leaves files out is no copy of the frozen one.
        return not ignored_files(directory) and digest_tree(directory) == digest
    except (TaskError, OSError):
        return False


def _not_in_store(what: str, ref: TaskRef, error: StoreError) -> TaskNotFoundError:
    """Return the error of a task of which the store has lost a part."""
    return TaskNotFoundError(
        f"{what} cannot be had from the store: {error.message}",
        file=ref.source,
        key="--tasks",
        remedy="name a directory of tasks to score by: --tasks DIR",
    )
