"""Other processes that work on a world, and may die at any step of it, as workers do."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from typing import Any

from support.small_worlds import keeper_of

from benchflow.contracts.environment import Manifest, StateSnapshot
from benchflow.contracts.sandbox import SandboxRef
from benchflow.planes.environment.environment import ManifestEnvironment
from benchflow.testing.sandbox_conformance.fixtures import make_provider
from benchflow.testing.sandbox_conformance.others import Caller


class WorldCaller(Caller):
    """A process that calls a method of a world. Its answer says how many calls of the sandbox that took."""

    async def died(self) -> bool:
        """Wait until the process has ended; return whether it was killed before it was done, which it else must be."""
        await asyncio.to_thread(self._process.join)
        if self._process.exitcode == -signal.SIGKILL:
            return True
        await self.answer()
        return False


class Mortal:
    """A sandbox whose user is killed instead of making its call number `fatal`, counted from 1."""

    def __init__(self, sandbox: Any, fatal: int | None) -> None:
        self._sandbox = sandbox
        self._fatal = fatal
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._sandbox, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def called(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self._fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return await found(*args, **options)

        return called


def call(
    provider_path: str,
    ref: SandboxRef,
    manifest: Manifest,
    method: str,
    snapshot: StateSnapshot | None = None,
    fatal: int | None = None,
) -> WorldCaller:
    """Let another process call a method of a world. snapshot: the method's argument. fatal: see `Mortal`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([ManifestEnvironment.__module__, provider_path.partition(":")[0]])
    here, there = context.Pipe(duplex=False)
    told = (ref.model_dump_json(), manifest.model_dump_json(), method, snapshot and snapshot.model_dump_json())
    process = context.Process(target=_work, args=(dict(os.environ), there, provider_path, *told, fatal), daemon=True)
    process.start()
    there.close()
    return WorldCaller(process, here)


def _work(
    env: dict[str, str],
    answers: Connection,
    path: str,
    ref: str,
    manifest: str,
    method: str,
    snapshot: str | None,
    fatal: int | None,
) -> None:
    os.environ.update(env)

    async def work() -> None:
        provider = make_provider(path)
        sandbox: Any = Mortal(await provider.attach(SandboxRef.model_validate_json(ref)), fatal)
        world = ManifestEnvironment(
            Manifest.model_validate_json(manifest), sandbox, provider, keeper=keeper_of(sandbox), task="task-1"
        )
        words: list[Any] = [StateSnapshot.model_validate_json(snapshot)] if snapshot else []
        await getattr(world, method)(*words)
        answers.send({"calls": sandbox.calls})
        await provider.close()

    try:
        asyncio.run(work())
    except Exception as error:
        answers.send(f"{type(error).__name__}: {error}")
