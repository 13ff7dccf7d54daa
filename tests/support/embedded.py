"""An embedded stack under test: its processes as the kernel sees them, and the world of its sandboxes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest
from support.counted_task import enough
from support.worlds import Seen, make_world

from benchflow import stack
from benchflow.paths import StatePaths
from benchflow.temporal import connect, make_stack_target, read_stack_id
from benchflow.testing.waiting import until

Role = Literal["worker", "server", "enclosure", "supervisor", "gateway", "helper", "waiter"]
"""The last two are the provider's: beside each worker, and beside each command."""

_COMMANDS: dict[Role, bytes] = {
    "worker": b"\0benchflow.worker\0",
    "server": b"/temporal\0server\0start-dev\0",
    "enclosure": b"/enclosure.py\0",
    "supervisor": b"\0benchflow.supervisor\0",
    "gateway": b"\0benchflow.gateway\0",
}


def chance_of_this_run() -> random.Random:
    """What a failed test printed makes the same choices again."""
    seed = int(os.environ.get("BENCHFLOW_TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"\nBENCHFLOW_TEST_SEED={seed}")
    return random.Random(seed)


class EmbeddedStack:
    """The stack of one state directory. id: what its sandboxes are labelled with. sandbox: the provider of its jobs."""

    def __init__(self, root: Path, sandbox: str) -> None:
        self.paths = StatePaths(root)
        self.id = ""
        self.sandbox = sandbox
        self.world = make_world(sandbox, root)

    async def start(self) -> None:
        record = await asyncio.to_thread(stack.ensure_stack, self.paths)
        self.id = await read_stack_id(await connect(make_stack_target(record)))
        self.world.watch(self.id)

    async def close(self) -> None:
        """Stop the stack and everything that a failed test may have left of it."""
        with suppress(Exception):
            await asyncio.to_thread(stack.stop_stack, self.paths)
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self.world.close()

    def processes(self, role: Role | None = None) -> list[int]:
        """The processes that were started for this state directory, whether or not anything knows of them."""
        if role == "helper":
            return self.world.helpers()
        if role == "waiter":
            return self.world.waiters()
        mark = f"BENCHFLOW_STATE_DIR={self.paths.root}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark not in (process / "environ").read_bytes().split(b"\0"):
                    continue
                command = (process / "cmdline").read_bytes()
                # The enclosure's arguments have the server's among them.
                is_server_within = role == "server" and _COMMANDS["enclosure"] in command
                if role is None or (_COMMANDS[role] in command and not is_server_within):
                    found.append(int(process.name))
        return found if role else found + self.world.processes()

    async def in_step(self, step: str, count: int = 1) -> list[Seen]:
        """Wait until a counted step has begun in so many sandboxes, and return these."""

        def begun() -> list[Seen]:
            found = self.world.with_file(step)
            return found if len(found) >= count else []

        return await until(begun, every=0.1)

    def let_go(self, step: str, among: Iterable[Seen] | None = None) -> None:
        """End a held step in these sandboxes, or in all."""
        self.world.make_file(enough(step), among)

    def kill(self, *roles: Role, with_signal: int = signal.SIGKILL) -> list[int]:
        """Signal every process of these roles; the pids."""
        victims = [pid for role in roles for pid in self.processes(role)]
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, with_signal)
        return victims

    async def worker(self, *, other_than: list[int] | None = None) -> int:
        """The pid of the worker that asks for work now."""

        def ready() -> int | None:
            for pid in self.processes("worker"):
                if pid not in (other_than or []) and any(self.paths.running.glob(f"{pid}-*/ready")):
                    return pid
            return None

        # To look through all processes costs something, which what is looked for could use.
        return await until(ready, every=0.1)

    async def strike(self, *roles: Role, with_signal: int = signal.SIGKILL) -> None:
        """Signal the processes of these roles, and wait for others in their place; a worker that asks for work."""

        def victims() -> list[int]:
            return self.kill(*roles, with_signal=with_signal)

        # Of those before, the last may be gone, and the next not there yet.
        struck = await until(victims, every=0.1)

        def others_are_there() -> bool:
            return all({*self.processes(role)} - {*struck} for role in roles)

        await until(others_are_there, every=0.1)
        if "worker" in roles:
            await self.worker(other_than=struck)


@contextmanager
def engine_of(stack: EmbeddedStack) -> Iterator[None]:
    """Submit to this stack, and wait for its jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHFLOW_STATE_DIR", str(stack.paths.root))
        yield
