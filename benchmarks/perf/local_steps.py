"""The steps of a local sandbox's life, each by itself, through the provider that the worker uses too."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
import uuid

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.errors import BenchFlowError
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.local.local_driver import STACK_LABEL, LocalDriver
from benchflow.planes.sandbox.local.local_images import BARE

CHILDREN = 16
STARTS = 4
COMMANDS = 12

WRITER = """
import mmap, os, sqlite3, struct
os.makedirs('/world')
os.chdir('/world')
db = sqlite3.connect('world.db', isolation_level=None)
db.execute('PRAGMA journal_mode=WAL')
db.execute('CREATE TABLE t (n INTEGER)')
log = open('log', 'ab', buffering=0)
file = open('counter', 'w+b')
file.truncate(4096)
counter = mmap.mmap(file.fileno(), 4096)
n = 0
while True:
    n += 1
    db.execute('INSERT INTO t VALUES (?)', (n,))
    log.write(b'%08d\\n' % n)
    counter[0:8] = struct.pack('<Q', n)
"""

_BEGIN = f"""
python3 -c "$1" >/dev/null 2>&1 &
until [ "$(stat -c %s /world/log 2>/dev/null || echo 0)" -gt {9 * 200} ]; do sleep 0.01; done
"""


def why_left_out() -> str | None:
    """Why local sandboxes cannot be measured on this machine; None when they can."""
    if sys.platform != "linux":
        return "local sandboxes need Linux"
    if os.geteuid() != 0:
        return "local sandboxes need root, and this measurement does not run as root"
    try:
        asyncio.run(_check())
    except BenchFlowError as error:
        return error.message
    return None


async def _check() -> None:
    provider = DrivenProvider(LocalDriver())
    try:
        await provider.check()
    finally:
        await provider.close()


class LocalSteps:
    """Starts, commands, a fork and stops, over and over, in the state directory of the measured stack."""

    def __init__(self) -> None:
        self.provider = DrivenProvider(LocalDriver())
        self._mark = uuid.uuid4().hex

    def round(self) -> dict[str, float]:
        """Each step once or a few times in a row: the median of the row, in milliseconds."""
        return asyncio.run(self._round())

    def close(self) -> None:
        """Remove what a failure left, and let go."""
        asyncio.run(self._close())

    async def _round(self) -> dict[str, float]:
        starts, commands, stops = [], [], []
        sandboxes: list[Sandbox] = []
        for _ in range(STARTS):
            began = time.perf_counter()
            sandboxes.append(await self._start())
            starts.append(time.perf_counter() - began)
        world = sandboxes[0]
        for _ in range(COMMANDS):
            began = time.perf_counter()
            await world.exec(["true"])
            commands.append(time.perf_counter() - began)
        forked = await self._fork(world)
        for sandbox in sandboxes:
            began = time.perf_counter()
            await sandbox.stop()
            stops.append(time.perf_counter() - began)
        return {
            "start_ms": _ms(starts),
            "exec_ms": _ms(commands),
            "fork_ms_per_child": 1000 * forked / CHILDREN,
            "stop_ms": _ms(stops),
        }

    async def _start(self) -> Sandbox:
        spec = SandboxSpec(
            name=f"perf-{uuid.uuid4().hex[:12]}", image=ImageRef(reference=BARE), labels={STACK_LABEL: self._mark}
        )
        return await self.provider.start(spec, host_id="", queue="")

    async def _fork(self, world: Sandbox) -> float:
        """Seconds from asking for the children of a world that is being written to until all of them run."""
        said = await world.exec(["sh", "-c", _BEGIN, "sh", WRITER], timeout=30)
        if said.return_code:
            raise RuntimeError(f"the writer did not begin: {said.stderr or said}")
        names = [f"perf-{uuid.uuid4().hex[:12]}" for _ in range(CHILDREN)]
        began = time.perf_counter()
        children = await world.fork(names)
        took = time.perf_counter() - began
        for child in children:
            await self.provider.remove(child.name)
        return took

    async def _close(self) -> None:
        for owned in await self.provider.owned(self._mark):
            await self.provider.remove(owned.name)
        await self.provider.sweep(self._mark)
        await self.provider.close()


def _ms(seconds: list[float]) -> float:
    return 1000 * statistics.median(seconds)
