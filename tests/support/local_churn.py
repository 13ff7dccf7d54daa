"""What the children of the debris tests do until they are killed: sandboxes begin, work, divide, are kept and end.

A child is forked from a server that has imported all this, so that it is at work within milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxRef, SandboxSpec
from benchflow.errors import BenchFlowError
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.local.local_driver import LocalDriver
from benchflow.planes.sandbox.local.store.volume_store import VolumeStore

STACK = "debris"
KEPT = "kept-by-{}"


def spec_of(name: str) -> SandboxSpec:
    labels = {"benchflow.stack": STACK}
    return SandboxSpec(name=name, image=ImageRef(reference="host"), labels=labels, network_mode="public")


def churn(environment: dict[str, str], names: Sequence[str]) -> None:
    """For ever. What the death of a helper or a fork brings is a typed error, and life goes on."""
    os.environ.update(environment)
    asyncio.run(_churn(names))


async def _churn(names: Sequence[str]) -> None:
    provider = DrivenProvider(LocalDriver())
    await asyncio.gather(*(_live_again_and_again(provider, name) for name in names))


async def _live_again_and_again(provider: DrivenProvider, name: str) -> None:
    while True:
        with suppress(BenchFlowError):
            await live(provider, name)


async def live(provider: DrivenProvider, name: str) -> None:
    """One sandbox's life, with two children."""
    sandbox = await provider.start(spec_of(name), host_id="host", queue="queue")
    await sandbox.exec(["sh", "-c", "(setsid sleep 600 &) ; echo something > /root/file"])
    await sandbox.exec_once(f"turn-{time.monotonic_ns()}", ["sh", "-c", "sleep 0.02"])
    children = [f"{name}-{letter}" for letter in "ab"]
    await sandbox.fork(children)
    image = await sandbox.snapshot(KEPT.format(name))
    await sandbox.restore(image)
    await sandbox.kill_processes(keep="nothing")
    await provider.remove_image(image)
    for child in children:
        await provider.remove(child)
    await sandbox.stop()


def stop_in_a_capture(environment: dict[str, str], ref: SandboxRef, frozen: Connection) -> None:
    """Capture a sandbox, and stand still for ever where it is frozen."""
    os.environ.update(environment)

    def clone(self: VolumeStore, source: str, target: str) -> None:
        frozen.send(source)
        while True:
            time.sleep(600)

    VolumeStore.clone = clone  # type: ignore[method-assign]

    async def capture() -> None:
        sandbox = await DrivenProvider(LocalDriver()).attach(ref)
        await sandbox.snapshot("never")

    asyncio.run(capture())
