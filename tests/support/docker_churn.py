"""What the children of the debris tests do with Docker sandboxes until they are killed.

A child is forked from a server that has imported all this, so that it is at work within milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxRef, SandboxSpec
from benchflow.errors import BenchFlowError
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.docker.docker_daemon import RecordingClient
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider

KEPT = "kept"
CHILDREN = ("a", "b")


def spec_of(name: str, stack: str, image: str) -> SandboxSpec:
    labels = {"benchflow.stack": stack}
    return SandboxSpec(name=name, image=ImageRef(reference=image), labels=labels, network_mode="no-network")


def churn(environment: dict[str, str], ref: SandboxRef) -> None:
    """Keep, fork and restore a sandbox for ever."""
    os.environ.update(environment)
    asyncio.run(_churn(ref))


async def _churn(ref: SandboxRef) -> None:
    provider = DrivenProvider(DockerDriver())
    while True:
        # What one that was killed had under way in the daemon may come to its end only now.
        with suppress(BenchFlowError):
            await turn(provider, ref)


async def turn(provider: DrivenProvider, ref: SandboxRef) -> None:
    """All of it, once."""
    sandbox = await provider.attach(ref)
    image = await sandbox.snapshot(KEPT)
    for child in await sandbox.fork([f"{ref.name}-{letter}" for letter in CHILDREN]):
        await provider.remove(child.name)
    await sandbox.restore(image)
    await provider.remove_image(image)


def stop_in_a_capture(environment: dict[str, str], ref: SandboxRef, paused: Connection) -> None:
    """Capture a sandbox, and stand still for ever where it is paused."""
    os.environ.update(environment)

    def pause(self: RecordingClient, container: str) -> None:
        super(RecordingClient, self).pause(container)
        paused.send(container)
        while True:
            time.sleep(600)

    RecordingClient.pause = pause  # type: ignore[method-assign]

    async def capture() -> None:
        sandbox = await DrivenProvider(DockerDriver()).attach(ref)
        await sandbox.snapshot("never")

    asyncio.run(capture())
