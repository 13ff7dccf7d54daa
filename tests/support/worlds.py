"""What a crash test asks of a provider's sandboxes, seen from outside of the engine: one class for each provider."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

DOCKER = pytest.param("docker", marks=pytest.mark.docker)
LOCAL = pytest.param("local", marks=pytest.mark.local)

everywhere = pytest.mark.parametrize("sandbox", [DOCKER, LOCAL], indirect=True)

on_docker = pytest.mark.parametrize("sandbox", [DOCKER], indirect=True)
"""For what the other tests of the same thing show on the local provider."""

on_local = pytest.mark.parametrize("sandbox", [LOCAL], indirect=True)
"""For what only the local provider has."""

seldom_on_local = pytest.mark.parametrize(
    "sandbox", [DOCKER, pytest.param("local", marks=[pytest.mark.local, pytest.mark.long])], indirect=True
)
"""In Docker in every run, and in both in a long one."""

seldom_on_docker = pytest.mark.parametrize(
    "sandbox", [pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.long]), LOCAL], indirect=True
)
"""On local sandboxes in every run, and in both in a long one: what is about the provider's own processes is here."""


@dataclass(frozen=True)
class Seen:
    """A sandbox as the kernel or the daemon has it. identity: another one if it was started anew under its name."""

    name: str
    identity: str
    workflow: str = ""


class World(Protocol):
    """The sandboxes of one stack. started: a name each time that a sandbox was started under it."""

    sandbox: str
    started: list[str]

    def watch(self, stack_id: str) -> None:
        """Write down from now on what is started for this stack."""
        ...

    def sandboxes(self) -> list[Seen]:
        """All of the stack's, running or not."""
        ...

    def shared(self) -> set[str]:
        """What the sandboxes of the stack share: networks, rules, mounts."""
        ...

    def with_file(self, path: str) -> list[Seen]:
        """The running ones in which this file exists."""
        ...

    def make_file(self, path: str, among: Iterable[Seen] | None = None) -> None:
        """Make this file, empty, in each of these, or in each of the stack's that runs."""
        ...

    def repeated(self, files: Sequence[str]) -> list[str]:
        """Those of these files, in running sandboxes, that have more than a line."""
        ...

    def commands(self, sandbox: Seen) -> list[str]:
        """The command lines of all that runs in it."""
        ...

    def kill(self, sandbox: Seen) -> None:
        """End it from outside, as a crash would."""
        ...

    def frozen(self) -> AbstractContextManager[None]:
        """Stop all that runs in sandboxes, for as long as the context is open."""
        ...

    def builds(self, mark: str, *, begun: bool = False) -> list[Seen]:
        """Return where a step with this text is built. begun: only those in which it runs by now."""
        ...

    def helpers(self) -> list[int]:
        """The provider's own process beside each worker; none where a daemon does the work."""
        ...

    def waiters(self) -> list[int]:
        """The provider's own processes that each wait for a command to end."""
        ...

    def processes(self) -> list[int]:
        """All processes of the provider's own."""
        ...

    async def leftovers(self) -> list[str]:
        """Everything of the stack that is still there, in words."""
        ...

    async def remove_built(self, mark: str) -> None:
        """Remove the images in which a step has this text, where they are kept outside of the state directory."""
        ...

    async def close(self) -> None:
        """Remove whatever a failed test may have left."""
        ...


def make_world(sandbox: str, root: Path) -> World:
    """The world of a provider. root: the stack's state directory."""
    from support.docker_world import DockerWorld
    from support.local_world import LocalWorld

    return DockerWorld() if sandbox == "docker" else LocalWorld(root)
