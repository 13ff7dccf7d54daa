"""Other processes that work on a world, and may die at any step of it, as workers do."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support.small_worlds import make_helper

from benchflow.contracts.environment import Manifest, StateSnapshot
from benchflow.contracts.sandbox import SandboxRef
from benchflow.planes.environment.exports import WorldContext
from benchflow.planes.environment.manifest_environment import ManifestEnvironment
from benchflow.testing.environment_conformance import Mortal, WorldCaller
from benchflow.testing.sandbox_conformance.sandbox_fixtures import make_provider


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
        context = WorldContext(sandbox, "task-1", Path(env["BENCHFLOW_STATE_DIR"]) / "world-records")
        world = ManifestEnvironment(
            Manifest.model_validate_json(manifest), context, provider, helper=make_helper(sandbox)
        )
        words: list[Any] = [StateSnapshot.model_validate_json(snapshot)] if snapshot else []
        await getattr(world, method)(*words)
        answers.send({"calls": sandbox.calls})
        await provider.close()

    try:
        asyncio.run(work())
    except Exception as error:
        answers.send(f"{type(error).__name__}: {error}")
