"""A sandbox with databases in it, and a store that keeps them: what the tests of state stand on."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Mount, Sandbox, SandboxSpec
from benchflow.planes.agent.toolbox import PYTHON
from benchflow.planes.environment.world_helper import WorldHelper
from benchflow.planes.environment.world_state import SqliteStore
from benchflow.testing.sandbox_conformance.sandbox_fixtures import make_provider

PROVIDERS = {
    "local": "benchflow.planes.sandbox.local.local_driver:LocalDriver",
    "docker": "benchflow.planes.sandbox.docker:DockerDriver",
}


def _rooms(*rooms: str) -> pytest.MarkDecorator:
    """Run a test in these sandboxes, each the provider and whose Python runs the helper; in Docker in a long run."""

    def param(room: str) -> Any:
        where = room.partition("-")[0]
        marks = [getattr(pytest.mark, where), *([pytest.mark.long] if where == "docker" else [])]
        return pytest.param(room, marks=marks, id=room)

    return pytest.mark.parametrize("room", [param(room) for room in rooms], indirect=True)


by_the_images = _rooms("local-image", "docker-image")
by_both = _rooms("local-image", "local-mounted", "docker-image", "docker-mounted")
"""One test of each operation shows that a mounted Python has all that the helper needs."""

locally = _rooms("local-image")

_SQL = """
import json, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
*scripts, last = sys.argv[2:]
for script in scripts:
    database.executescript(script)
print(json.dumps(database.execute(last).fetchall()))
database.close()
"""
_HOLD = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    database.execute(statement).fetchall()
print("held", flush=True)
time.sleep(600)
"""


@dataclass
class Room:
    """A sandbox, and a client of the helper in it. directory: where its snapshots are."""

    sandbox: Sandbox
    helper: WorldHelper
    directory: str = "/var/lib/benchflow/snapshots"

    def store(self, **options: Any) -> SqliteStore:
        return SqliteStore(self.helper, **({"patience": 60.0} | options))

    async def sh(self, script: str, *args: str) -> str:
        """What a shell script of root's prints; it must succeed."""
        said = await self.sandbox.control(f"set -e\n{script}", *args)
        assert said.return_code == 0, (said.stdout, said.stderr)
        return said.stdout

    async def python(self, script: str, *args: str) -> str:
        said = await self.sandbox.exec(["python3", "-I", "-S", "-c", script, *args], cwd="/", timeout=600)
        assert said.return_code == 0, said.stderr
        return said.stdout

    async def sql(self, path: str, *statements: str) -> Any:
        """Run scripts and a last statement in a database, made if missing; the rows of the last."""
        await self.sh('mkdir -p "$(dirname "$1")"', path)
        return json.loads(await self.python(_SQL, path, *statements))

    async def names(self, directory: str) -> set[str]:
        return set((await self.sh('ls -A "$1"', directory)).split())

    @asynccontextmanager
    async def holding(self, path: str, *statements: str, user: int | None = None) -> AsyncIterator[None]:
        """Have another process keep a database open, after these statements."""
        chunks = self.sandbox.exec_stream(["python3", "-I", "-S", "-c", _HOLD, path, *statements], cwd="/", user=user)
        said = await anext(chunks)
        assert said.data == b"held\n", said
        try:
            yield
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]
            await self.sh(
                'for p in /proc/[0-9]*; do if tr "\\0" " " <"$p/cmdline" | grep -q "sleep[(]600"; then '
                'kill -9 "${p#/proc/}"; fi; done 2>/dev/null || true'
            )


@dataclass
class Ledger:
    """The world of `ledger_service.py` in a room."""

    room: Room
    home: str = "/ledger"

    @property
    def paths(self) -> list[str]:
        return [f"{self.home}/{name}.db" for name in "abc"]

    async def start(self) -> None:
        file = Path(__file__).with_name("ledger_service.py")
        await self.room.sandbox.write_file("/opt/ledger_service.py", file.read_bytes())
        script = (
            'mkdir -p "$1" && rm -f "$1/pid" && '
            '(setsid python3 /opt/ledger_service.py "$1" &) >/dev/null 2>&1 </dev/null'
        )
        await self.room.sandbox.exec(["sh", "-c", script, "sh", self.home], cwd="/")
        await self.room.sh('until [ -s "$1/pid" ]; do sleep 0.01; done', self.home)

    async def stop(self) -> None:
        """Kill it, in the middle of whatever it does."""
        await self.room.sh(
            'p=$(cat "$1/pid"); kill -9 $p; while [ -d /proc/$p/fd ] && ls /proc/$p/fd/ | grep -q .; '
            "do sleep 0.005; done",
            self.home,
        )

    async def tell(self, do: str, **order: Any) -> Any:
        script = 'printf "%s\\n" "$2" >"$1/in" && cat "$1/out"'
        return json.loads(await self.room.sh(script, self.home, json.dumps({"do": do, **order})))

    async def read(self) -> tuple[dict[str, dict[int, str]], list[int]]:
        """Its notes and numbers, as the process sees them."""
        answer = await self.tell("read")
        notes = {name: {int(id): text for id, text in rows.items()} for name, rows in answer["notes"].items()}
        return notes, answer["ticks"]


def untorn(ticks: Sequence[int]) -> bool:
    """Whether the three numbers were there at one moment: they are written in turn."""
    return list(ticks) == sorted(ticks, reverse=True) and ticks[0] - ticks[-1] <= 1


@asynccontextmanager
async def room_in(where: str, image: str, mounted: Mount | None = None) -> AsyncIterator[Room]:
    """A room of a provider. mounted: the Python that runs the helper; that of the image if None."""
    provider = make_provider(PROVIDERS[where])
    stack = uuid.uuid4().hex
    spec = SandboxSpec(
        name=f"benchflow-test-{uuid.uuid4().hex[:12]}",
        image=ImageRef(reference="host" if where == "local" else image),
        labels={"benchflow.stack": stack},
        network_mode="no-network",
        mounts=(mounted,) if mounted else (),
    )
    try:
        sandbox = await provider.start(spec, host_id="host", queue="queue")
        yield Room(sandbox, WorldHelper(sandbox, PYTHON if mounted else "python3"))
    finally:
        await asyncio.shield(provider.remove(spec.name))
        await provider.sweep(stack)
        await provider.close()


@asynccontextmanager
async def attached(room: Room) -> AsyncIterator[Room]:
    """A room's sandbox, by a connection of its own."""
    provider = make_provider(PROVIDERS[room.sandbox.ref.provider])
    try:
        yield Room(await provider.attach(room.sandbox.ref), room.helper)
    finally:
        await provider.close()
