"""What a branch costs: a checkpoint by how much has changed, and a child by how many begin at once, on each sandbox.

Each figure is a median. A checkpoint is all that is taken while the parent waits: counters, files, fence. A child is
from the request to a sandbox that is proved to be of the checkpoint's moment; its agent's start comes on top of it.
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
from datetime import UTC, datetime
from typing import Any

from benchflow.checkpoints import Captured, capture, discard, prove
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.contracts.sandbox import ImageConfig, ImageRef, Sandbox, SandboxProvider, SandboxSpec
from benchflow.errors import BenchFlowError
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.local.images import BARE

STACK = "branch-measurement"
CHANGED_MB = (0, 10, 500)
CHILDREN = 16

# $1: MiB, in 200 files.
_CHANGE = """mkdir -p /changed && i=0 && while [ $i -lt 200 ]; do
  head -c "$(( $1 * 1048576 / 200 ))" /dev/urandom > /changed/$i; i=$((i + 1)); done"""


async def measure(name: str, image: str, runs: int) -> dict[str, Any]:
    provider = get_provider(name)
    try:
        await provider.check()
        found = ImageRef(reference=BARE) if name == "local" else await provider.build(ImageConfig(image=image))
        told: dict[str, Any] = {}
        for megabytes in CHANGED_MB:
            took = [await _captured(provider, found, megabytes) for _ in range(runs)]
            told[f"capture_{megabytes}mb_ms"] = _median([seconds for seconds, _ in took])
            if megabytes == 10:
                layers = [captured.by_layer for _, captured in took]
                told["by_layer"] = {layer: _median([each[layer] for each in layers]) for layer in layers[0]}
        told["fork_ms_per_child"] = _median([await _forked(provider, found) for _ in range(runs)])
        return told | {"children": CHILDREN, "runs": runs}
    except BenchFlowError as error:
        return {"left_out": error.message}
    finally:
        for owned in await provider.owned(STACK):
            await provider.remove(owned.name)
        await provider.sweep(STACK)
        await provider.close()


async def _started(provider: SandboxProvider, image: ImageRef) -> Sandbox:
    name = f"bf-branch-{uuid.uuid4().hex[:8]}"
    spec = SandboxSpec(name=name, image=image, workdir="/app", labels={"benchflow.stack": STACK})
    return await provider.start(spec, host_id="", queue="")


async def _captured(provider: SandboxProvider, image: ImageRef, megabytes: int) -> tuple[float, Captured]:
    """Seconds of a checkpoint of a sandbox in which so much has changed."""
    sandbox = await _started(provider, image)
    try:
        await sandbox.exec(["sh", "-c", _CHANGE, "sh", str(megabytes)], cwd="/")
        began = time.perf_counter()
        captured = await capture(f"bf-branch-{uuid.uuid4().hex[:8]}", sandbox, provider)
        seconds = time.perf_counter() - began
        await discard(provider, captured.files.image)
        return seconds, captured
    finally:
        await sandbox.stop()


async def _forked(provider: SandboxProvider, image: ImageRef) -> float:
    """Seconds a child, of as many as begin at once from one checkpoint."""
    sandbox = await _started(provider, image)
    children: list[Sandbox] = []
    try:
        await sandbox.exec(["sh", "-c", _CHANGE, "sh", "10"], cwd="/")
        captured = await capture(f"bf-branch-{uuid.uuid4().hex[:8]}", sandbox, provider)
        checkpoint = _checkpoint(captured, sandbox)

        async def child() -> None:
            begun = await _started(provider, captured.files.image)
            children.append(begun)
            await prove(checkpoint, begun, None)

        began = time.perf_counter()
        await asyncio.gather(*(child() for _ in range(CHILDREN)))
        seconds = time.perf_counter() - began
    finally:
        await asyncio.gather(*(each.stop() for each in (sandbox, *children)))
    await discard(provider, captured.files.image)
    return seconds / CHILDREN


def _checkpoint(captured: Captured, sandbox: Sandbox) -> Checkpoint:
    ref = sandbox.ref
    return Checkpoint(
        id="measured",
        rollout="measured",
        node="n0",
        provider=ref.provider,
        host_id=ref.host_id,
        queue=ref.queue,
        workdir=ref.workdir,
        created_at=datetime.now(UTC),
        fence=captured.fence,
        steps_done=0,
        files=captured.files,
    )


def _median(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1000, 1)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    image = os.environ.get("BENCHFLOW_PERF_IMAGE", "debian:bookworm-slim")
    with tempfile.TemporaryDirectory(prefix="benchflow-branch-") as state:
        os.environ["BENCHFLOW_STATE_DIR"] = state
        found = {name: await measure(name, image, options.runs) for name in ("local", "docker")}
    if options.json:
        print(json.dumps(found))
        return
    for name, values in found.items():
        print(name, *(f"{key} {value}" for key, value in values.items()))


if __name__ == "__main__":
    asyncio.run(main())
