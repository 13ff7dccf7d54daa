"""What the tests of worlds stand on: sandboxes of both kinds with a small service in them, and ways to talk to it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.local_sandboxes import Economical

from benchflow.contracts.environment import Manifest, Service
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import ServiceDiedError
from benchflow.planes.environment.exports import WorldContext
from benchflow.planes.environment.manifest_environment import ManifestEnvironment
from benchflow.planes.environment.services import Services
from benchflow.planes.environment.world_helper import WorldHelper
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures, left_mounted
from benchflow.testing.waiting import until

SERVICE = Path(__file__).with_name("notes_service.py")
PROGRAM = "/usr/local/bin/notes"
DATABASE = "/data/notes.db"
PORT = 9101

MakeServices = Callable[..., Services]
MakeWorld = Callable[..., ManifestEnvironment]
Fresh = Callable[..., Awaitable[Sandbox]]


def notes(name: str = "notes", port: int = PORT, more: str = "", **fields: Any) -> Service:
    """A service that every sandbox of these tests has."""
    return Service(name=name, command=f"notes --db /data/{name}.db --port {port} {more}".strip(), port=port, **fields)


def make_helper(sandbox: Sandbox) -> WorldHelper:
    return WorldHelper(sandbox, "python3")


_ASK = """
import socket, sys
port, path, *note = sys.argv[1:]
with socket.create_connection(("127.0.0.1", int(port)), 600) as link:
    body = "".join(note).encode()
    method = "POST" if note else "GET"
    link.sendall(f"{method} {path} HTTP/1.0\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n".encode() + body)
    head, _, answer = link.makefile("rb").read().partition(b"\\r\\n\\r\\n")
if head.split()[1:2] != [b"200"]:
    sys.exit(f"no answer: {head}")
print(answer.decode())
"""


async def ask(sandbox: Sandbox, path: str = "/", port: int = PORT, note: str | None = None) -> Any:
    """Return what a service answers to somebody in the sandbox; raise `AssertionError` without an answer.

    note: is posted.
    """
    words = [str(port), path, *([] if note is None else [note])]
    said = await sandbox.exec(["python3", "-I", "-S", "-c", _ASK, *words], cwd="/")
    assert said.return_code == 0, said.stderr
    return json.loads(said.stdout)


async def death_of(world: ManifestEnvironment) -> ServiceDiedError:
    """Return the error that `check` raises for a dying world, once it does: a client sees it go before it has ended."""

    async def found() -> ServiceDiedError | None:
        try:
            await world.check()
        except ServiceDiedError as error:
            return error
        return None

    died = await until(found)
    assert died is not None
    return died


async def running(sandbox: Sandbox, words: str) -> int:
    """How many processes have these words in their command line."""
    said = await sandbox.exec(["ps", "-eo", "args"], cwd="/")
    return sum(words in line and "ps -eo" not in line for line in said.stdout.splitlines())


class Worlds(SandboxFixtures):
    """The fixtures of the tests of worlds, on any provider."""

    @pytest_asyncio.fixture
    async def fresh(self, start: Any) -> Fresh:
        """Starts sandboxes that have the service's program."""

        async def begin(**wanted: Any) -> Sandbox:
            sandbox: Sandbox = await start(**wanted)
            await equip(sandbox)
            return sandbox

        return begin

    @pytest_asyncio.fixture
    async def place(self, fresh: Fresh) -> Sandbox:
        """A sandbox with the service's program, for this test alone."""
        return await fresh()

    @pytest.fixture
    def services(self, place: Sandbox) -> MakeServices:
        """Makes the services of a sandbox, as any process would."""

        def make(*declared: Service, sandbox: Sandbox | None = None, **options: Any) -> Services:
            where = sandbox or place
            return Services(declared, where, ports=make_helper(where), source="world.toml", **options)

        return make

    @pytest.fixture
    def world(self, place: Sandbox, provider: SandboxProvider, tmp_path: Path) -> MakeWorld:
        """Makes a world of services that the framework starts. Keyword arguments are those of `Manifest`."""

        def make(
            *declared: Service, sandbox: Sandbox | None = None, env: dict[str, str] | None = None, **fields: Any
        ) -> ManifestEnvironment:
            where = sandbox or place
            wanted = {"name": "world", "base_image": "base", "owns_lifecycle": False, "services": declared} | fields
            context = WorldContext(where, "task-1", tmp_path / "records" / where.ref.name, env or {})
            return ManifestEnvironment(
                Manifest(**wanted), context, provider, helper=make_helper(where), source="world.toml"
            )

        return make


async def equip(sandbox: Sandbox) -> None:
    """Install the service's program."""
    await sandbox.write_file(PROGRAM, SERVICE.read_text(), mode=0o755)
    await sandbox.control("mkdir -p /data")


class OnDocker:
    provider_path = "benchflow.planes.sandbox.docker:DockerDriver"
    base_image = os.environ.get("BENCHFLOW_TEST_IMAGE", "debian:bookworm-slim")


class OnLocal(Economical):
    """Over the bare host, of which nothing may be left: no mount, no loop device."""

    provider_path = "benchflow.planes.sandbox.local.local_driver:LocalDriver"

    @pytest.fixture(scope="class")
    @classmethod
    def state_directory(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        directory = tmp_path_factory.mktemp("state")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BENCHFLOW_STATE_DIR", str(directory))
            yield directory
        left = left_mounted(cls.provider_path, directory)
        for line in left:
            subprocess.run(["umount", "--lazy", line.split()[1]], check=True)
        assert left == []

    @pytest.fixture(scope="class")
    @classmethod
    def image(cls, class_stack: str) -> ImageRef:
        from benchflow.planes.sandbox.local.local_images import BARE

        return ImageRef(reference=BARE)
