"""Other processes that work on a world and can be killed at any moment, as workers can."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any

from support.small_worlds import keeper_of

from benchflow.contracts.environment import Manifest, StateSnapshot
from benchflow.contracts.sandbox import SandboxRef
from benchflow.planes.environment.environment import ManifestEnvironment
from benchflow.testing.sandbox_conformance.fixtures import make_provider
from benchflow.testing.sandbox_conformance.others import Caller


def call(
    provider_path: str, ref: SandboxRef, manifest: Manifest, method: str, snapshot: StateSnapshot | None = None
) -> Caller:
    """Let another process call a method of a world; the answer is that it is done. snapshot: the method's argument."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([ManifestEnvironment.__module__, provider_path.partition(":")[0]])
    here, there = context.Pipe(duplex=False)
    told = (ref.model_dump_json(), manifest.model_dump_json(), method, snapshot and snapshot.model_dump_json())
    process = context.Process(target=_work, args=(dict(os.environ), there, provider_path, *told), daemon=True)
    process.start()
    there.close()
    return Caller(process, here)


def _work(
    env: dict[str, str], answers: Connection, path: str, ref: str, manifest: str, method: str, snapshot: str | None
) -> None:
    os.environ.update(env)

    async def work() -> None:
        provider = make_provider(path)
        sandbox = await provider.attach(SandboxRef.model_validate_json(ref))
        world = ManifestEnvironment(
            Manifest.model_validate_json(manifest), sandbox, provider, keeper=keeper_of(sandbox), task="task-1"
        )
        words: list[Any] = [StateSnapshot.model_validate_json(snapshot)] if snapshot else []
        answers.send("begun")
        await getattr(world, method)(*words)
        answers.send({"done": method})
        await provider.close()

    try:
        asyncio.run(work())
    except Exception as error:
        answers.send(f"{type(error).__name__}: {error}")
