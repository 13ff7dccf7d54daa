"""What it costs to keep a world's state and to go back to it.

    python benchmarks/perf/state.py [--sizes 1,100,1000] [--runs N] [--warm-up N] [--sandbox local|docker] [--json]

A service with a database of so many MB open, which goes on writing to it, in a real sandbox. Medians over the runs:

    snapshot_ms      by size: the database captured, hashed and written down, while the service writes
    restore_ms       by size: put back in its place and proven, the service having ended
    restore_live_ms  by size: put back into the open file while the service writes
    reset_ms         the smallest world back at its baseline: service ended, state put back, service ready again
    fresh_ms         instead of that: the sandbox removed, another one started, its service ready

and of the office world, from the start of its services until all five are healthy:

    provision_to_ready_s        of an image that is known to have them
    first_provision_to_ready_s  with the probes that find that out
    slowest_service_s           the slowest of them, alone in a sandbox; provision_ratio: the first over this
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_steps import why_left_out
from office_world import Office

from benchflow.contracts.environment import Manifest, Readiness, Service, StateTable
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.planes.environment.exports import WorldContext
from benchflow.planes.environment.helper_interpreter import has_python
from benchflow.planes.environment.manifest_environment import ManifestEnvironment
from benchflow.planes.environment.world_helper import WorldHelper
from benchflow.planes.environment.world_state import SNAPSHOTS, SqliteStore
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.local.local_driver import STACK_LABEL, LocalDriver
from benchflow.planes.sandbox.local.local_images import BARE

WRITER = Path(__file__).with_name("world_writer.py")
PROGRAM, DATABASE, PORT = "/opt/world_writer.py", "/data/world.db", 9100
PATIENCE = 120.0
MANIFEST = Manifest(
    name="writer",
    base_image="any",
    owns_lifecycle=False,
    services=(Service(name="writer", command=f"python3 {PROGRAM} {DATABASE} {PORT}", port=PORT, health_path="/"),),
    readiness=Readiness(timeout_sec=60),
    state=StateTable(paths=(DATABASE,)),
)


@dataclass
class World:
    """A sandbox with the service in it, ready."""

    sandbox: Sandbox
    environment: ManifestEnvironment
    store: SqliteStore


class Worlds:
    """Starts them, and removes what was started."""

    def __init__(self, kind: str) -> None:
        self.provider: SandboxProvider = (
            DrivenProvider(LocalDriver()) if kind == "local" else DrivenProvider(DockerDriver())
        )
        name = os.environ.get("BENCHFLOW_PERF_IMAGE", "debian:bookworm-slim")
        self._image = ImageRef(reference=BARE if kind == "local" else name)
        self._labels = {STACK_LABEL: uuid.uuid4().hex}
        self._records = tempfile.TemporaryDirectory(prefix="benchflow-perf-")

    @asynccontextmanager
    async def world(self, megabytes: int) -> AsyncIterator[World]:
        """A world whose database has this size; gone afterwards."""
        sandbox = await self.start()
        try:
            await self.fill(sandbox, megabytes)
            world = await self.ready(sandbox)
            yield world
        finally:
            await self.provider.remove(sandbox.ref.name)

    async def start(self) -> Sandbox:
        name = f"perf-{uuid.uuid4().hex[:12]}"
        spec = SandboxSpec(name=name, image=self._image, labels=self._labels, network_mode="no-network")
        return await self.provider.start(spec, host_id="", queue="")

    async def fill(self, sandbox: Sandbox, megabytes: int) -> None:
        await sandbox.write_file(PROGRAM, WRITER.read_bytes())
        await sandbox.control("mkdir -p /data")
        said = await sandbox.exec(["python3", PROGRAM, DATABASE, "--fill", str(megabytes)], cwd="/", timeout=600)
        if said.return_code:
            raise RuntimeError(f"the database could not be filled: {said.stderr}")

    async def ready(self, sandbox: Sandbox) -> World:
        """Start the service in a sandbox that has its files, and wait for it."""
        if not await has_python(self.provider, self._image, labels=self._labels):
            raise RuntimeError("the image has no python3, which the measured service needs")
        helper = WorldHelper(sandbox, "python3")
        context = WorldContext(sandbox, "perf", Path(self._records.name) / sandbox.ref.name)
        environment = ManifestEnvironment(MANIFEST, context, self.provider, helper=helper)
        await environment.start()
        await environment.readiness()
        return World(sandbox, environment, SqliteStore(helper, patience=PATIENCE, timeout=600))

    async def close(self) -> None:
        for owned in await self.provider.owned(self._labels[STACK_LABEL]):
            await self.provider.remove(owned.name)
        await self.provider.sweep(self._labels[STACK_LABEL])
        await self.provider.close()
        self._records.cleanup()


async def timed(work: Awaitable[Any]) -> float:
    """Milliseconds that it takes."""
    began = time.perf_counter()
    await work
    return 1000 * (time.perf_counter() - began)


async def measure_state(world: World, runs: int, warm_up: int) -> dict[str, float]:
    """Snapshots and restores of one world, each over and over; the median of each, those of the warm-up left out."""
    found = defaultdict(list)
    for run in range(warm_up + runs):
        found["snapshot_ms"].append(await timed(world.store.snapshot(f"run-{run}", [DATABASE])))
        # It is there, and only asked for.
        taken = await world.store.snapshot(f"run-{run}", [DATABASE])
        found["restore_live_ms"].append(await timed(world.store.restore(taken, live=True)))
        await world.environment.teardown()
        found["restore_ms"].append(await timed(world.store.restore(taken, live=False)))
        await world.environment.start()
        await world.environment.readiness()
        await world.sandbox.control('rm -r "$1"', f"{SNAPSHOTS}/run-{run}", timeout=120)
    return {name: statistics.median(values[warm_up:]) for name, values in found.items()}


async def measure_reset(worlds: Worlds, megabytes: int, runs: int, warm_up: int) -> dict[str, float]:
    """A reset of a small world, and in turn with it the start of a fresh one. Filling that is not counted."""
    resets, fresh = [], []
    async with worlds.world(megabytes) as world:
        await world.environment.capture_baseline()
        for _ in range(warm_up + runs):
            resets.append(await timed(world.environment.reset()))
            began = time.perf_counter()
            sandbox = await worlds.start()
            started = time.perf_counter() - began
            await worlds.fill(sandbox, megabytes)
            ready = await timed(worlds.ready(sandbox))
            fresh.append(1000 * started + ready + await timed(worlds.provider.remove(sandbox.ref.name)))
    return {"reset_ms": statistics.median(resets[warm_up:]), "fresh_ms": statistics.median(fresh[warm_up:])}


async def measure(kind: str, sizes: list[int], runs: int, warm_up: int) -> dict[str, Any]:
    """All of it, in one object."""
    found: dict[str, Any] = {"sandbox": kind, "runs": runs}
    by_size: dict[str, dict[str, float]] = defaultdict(dict)
    worlds = Worlds(kind)
    try:
        for size in sizes:
            async with worlds.world(size) as world:
                for name, value in (await measure_state(world, runs, warm_up)).items():
                    by_size[name][str(size)] = round(value, 1)
        found |= by_size
        reset = await measure_reset(worlds, min(sizes), runs, warm_up)
        found |= {name: round(value, 1) for name, value in reset.items()}
        found |= {name: round(value, 3) for name, value in (await Office(kind).measure(runs, warm_up)).items()}
    finally:
        await worlds.close()
    return found


def show(found: dict[str, Any]) -> None:
    for name, value in found.items():
        if isinstance(value, dict):
            value = "  ".join(f"{size} MB: {each}" for size, each in value.items())
        print(f"{name:16} {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,100,1000", help="MB of the databases")
    parser.add_argument("--runs", type=int, default=5, help="rounds that count (default: 5)")
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before them (default: 1)")
    parser.add_argument("--sandbox", choices=["local", "docker"], default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kind = options.sandbox or ("docker" if why_left_out() else "local")
    with tempfile.TemporaryDirectory(prefix="benchflow-perf-") as state:
        os.environ["BENCHFLOW_STATE_DIR"] = state
        sizes = [int(size) for size in options.sizes.split(",")]
        found = asyncio.run(measure(kind, sizes, options.runs, options.warm_up))
    print(json.dumps(found)) if options.json else show(found)


if __name__ == "__main__":
    main()
