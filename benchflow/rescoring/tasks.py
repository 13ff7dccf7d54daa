"""The tasks of stored rollouts: where they lay, if they are what they were; else from the store; or changed ones."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.code import allowing, is_allowed
from benchflow.contracts.job import TaskRef
from benchflow.contracts.task import Task
from benchflow.errors import StoreError, TaskError, TaskNotFoundError, TaskValueError
from benchflow.paths import StatePaths
from benchflow.planes.reward.functions import check_declared
from benchflow.planes.reward.needs import own_judges
from benchflow.secrets import references
from benchflow.store import Store, storage_errors
from benchflow.tasks import digest_tree, find_tasks, ignored_files, load_task, unpack, write_pack

Origin = Literal["source", "store", "given"]
"""Where a task was taken from: the place it was submitted from, the store, or the directory that was given now."""


@dataclass(frozen=True)
class FoundTask:
    """A task to score by. directory: of its files; context: of its image, where that is not the task's own."""

    task: Task
    directory: Path
    context: Path | None
    digest: str
    origin: Origin


@dataclass
class Tasks:
    """Finds each task once. given: a directory of tasks that are taken, by name, instead of the recorded ones.

    Raises `TaskNotFoundError` when the given directory holds none.
    """

    given: Path | None = None
    state: StatePaths = field(default_factory=StatePaths.default)
    take_variables: bool = True
    """Whether they may have the variables of this environment that they take."""
    allow_code: Sequence[str] | None = None
    """Modules that their reward functions may be of; None where these functions do not score."""
    _found: dict[str, FoundTask] = field(default_factory=dict)
    _locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    def __post_init__(self) -> None:
        self._paths = {path.name: path for path in find_tasks(self.given)} if self.given is not None else None

    def digests(self, refs: list[TaskRef]) -> dict[str, str | None]:
        """By name, the digest of what each task is scored by; None where there is nothing of its name."""
        if self._paths is None:
            return {ref.name: ref.digest for ref in refs}
        return {ref.name: _digest(self._paths[ref.name]) if ref.name in self._paths else None for ref in refs}

    async def find(self, ref: TaskRef) -> FoundTask:
        """Raises `TaskError` when it is nowhere, cannot be read, or takes what it may not have."""
        key = ref.model_dump_json()
        async with self._locks[key]:
            if key not in self._found:
                self._found[key] = await (self._recorded(ref) if self._paths is None else self._replaced(ref))
        return self._found[key]

    async def _replaced(self, ref: TaskRef) -> FoundTask:
        assert self._paths is not None
        path = self._paths.get(ref.name)
        if path is None:
            raise TaskNotFoundError(
                f"there is no task {ref.name!r}",
                file=str(self.given),
                key="--tasks",
                remedy=f"add it there, or leave its rollouts out: the tasks there are {', '.join(self._paths)}",
            )
        digest = await asyncio.to_thread(_digest, path)
        task = await self._load(path, ref, None)
        context = Path(task.context_root) if task.context_root is not None else None
        if context is None and ref.context is not None:
            # What was given for its image at submit is still what its image is made from.
            context = await unpacked(ref.context, self.state)
        return FoundTask(task, await asyncio.to_thread(self._frozen, path.absolute()), context, digest, "given")

    def _frozen(self, path: Path) -> Path:
        """Return a directory with a task's files but for those that it leaves out: its own, if it leaves out none."""
        left_out = ignored_files(path)
        if not left_out:
            return path
        target = self.state.tasks / digest_tree(path, exclude=left_out)[:32]
        with storage_errors(self.state.tasks), tempfile.TemporaryDirectory() as scratch:
            self.state.tasks.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_pack(path, Path(scratch) / "pack.tar", exclude=left_out)
            unpack(Path(scratch) / "pack.tar", target)
        return target

    async def _recorded(self, ref: TaskRef) -> FoundTask:
        source = Path(ref.source) if ref.source is not None else None
        context = await self._unpacked(ref.context, ref) if ref.context is not None else None
        if source is not None and await asyncio.to_thread(_has_digest, source, ref.digest):
            return FoundTask(await self._load(source, ref, context), source, context, ref.digest, "source")
        directory = await self._unpacked(ref.pack, ref)
        return FoundTask(await self._load(directory, ref, context), directory, context, ref.digest, "store")

    async def _load(self, directory: Path, ref: TaskRef, context: Path | None) -> Task:
        given = ref.environment is not None
        task = await asyncio.to_thread(load_task, directory, context_root=context, name=ref.name, has_manifest=given)
        if task.reward is not None and self.allow_code is not None:
            for key, target in check_declared(task.reward, file=str(directory / task.config_file)):
                if not is_allowed(target, self.allow_code):
                    raise TaskValueError(
                        f"{target!r} is code of this host that no installed package declares for tasks",
                        file=str(directory / task.config_file),
                        key=key,
                        remedy=allowing(target),
                    )
        named = {*references(task), *(name for name, _ in own_judges(task))}
        taken = [name for name in named if name in os.environ]
        if taken and not self.take_variables:
            raise TaskValueError(
                f"takes variables of your environment: {', '.join(sorted(taken))}",
                file=str(directory / task.config_file),
                key="--yes",
                remedy="look whether it may have them, and give --yes (-y); or unset them",
            )
        return task

    async def _unpacked(self, pack: ArtifactRef, ref: TaskRef) -> Path:
        try:
            return await unpacked(pack, self.state)
        except StoreError as error:
            raise TaskNotFoundError(
                f"task {ref.name!r} is not what it was, or gone, and it cannot be had from the store: {error.message}",
                file=ref.source,
                key="--tasks",
                remedy="name a directory of tasks to score by: --tasks DIR",
            ) from error


async def unpacked(pack: ArtifactRef, state: StatePaths) -> Path:
    """A packed directory on this host, where workers look for it too. Raises `StoreError`."""
    target = state.tasks / pack.sha256[:32]
    if target.is_dir():
        return target
    with storage_errors(state.tasks):
        state.tasks.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=state.tasks, prefix=f".{target.name}.{os.getpid()}.") as scratch:
            file = Path(scratch) / "pack.tar"
            await Store.open().fetch(pack, file)
            await asyncio.to_thread(unpack, file, target)
    return target


def _digest(directory: Path) -> str:
    return digest_tree(directory, exclude=ignored_files(directory))


def _has_digest(directory: Path, digest: str) -> bool:
    try:
        # A directory that leaves files out is no copy of the frozen one.
        return not ignored_files(directory) and digest_tree(directory) == digest
    except (TaskError, OSError):
        return False
