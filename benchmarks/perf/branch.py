"""What a branch costs, and what it saves, on each sandbox.

Each figure is a median. A checkpoint is all that is taken while the parent waits: counters, files, fence. A child is
from the request to a sandbox that is proved to be of the checkpoint's moment; its agent's start comes on top of it.
By depth: of a chain in which each is the child of the one before. A group is eight attempts with a prefix in common, as
one tree and as rollouts of their own.
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
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from branch_groups import AGENTS, Sizes, measure_groups

from benchflow.checkpoints import Captured, capture, discard, prove
from benchflow.contracts.checkpoint import Checkpoint
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import BenchFlowError
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.local.local_images import BARE

SANDBOXES = ("local", "docker")
STACK = "branch-measurement"
CHANGED_MB = (0, 10, 500)
CHILDREN = 16

# $1: MiB, in 200 files.
_CHANGE = """mkdir -p /changed && i=0 && while [ $i -lt 200 ]; do
  head -c "$(( $1 * 1048576 / 200 ))" /dev/urandom > /changed/$i; i=$((i + 1)); done"""


PARTS = ("capture", "fork", "depth", "group")
DEPTHS = (1, 5, 20, 64, 124, 125, 126, 130)
"""Of which depths of a chain figures are told; from 125 layers on, an image of Docker's is begun anew."""

MOST = {
    "local": {"fork_ms_per_child": 25.0},
    "docker": {"fork_ms_per_child": 350.0, "capture_10mb_ms": 250.0},
}
AHEAD_FROM = 2
"""Turns in common from which on a tree has to be ahead of rollouts of their own."""


@dataclass(frozen=True)
class Measurement:
    """What is measured, on each sandbox. changed: MB before a checkpoint; depth: of the chain."""

    parts: Collection[str]
    runs: int
    depth: int
    changed: Sequence[int]
    groups: Sizes


async def measure(name: str, image: str, asked: Measurement) -> dict[str, Any]:
    """What is measured without an engine."""
    provider = get_provider(name)
    try:
        await provider.check()
        found = ImageRef(reference=BARE) if name == "local" else await provider.build(ImageConfig(image=image))
        told: dict[str, Any] = {}
        if "capture" in asked.parts:
            told |= await _captures(provider, found, asked.changed, asked.runs)
        if "fork" in asked.parts:
            told["fork_ms_per_child"] = _median([await _forked(provider, found) for _ in range(asked.runs)])
            told["children"] = CHILDREN
        if "depth" in asked.parts:
            told["by_depth"] = await _by_depth(provider, found, asked.depth)
        return told | {"runs": asked.runs}
    finally:
        for owned in await provider.owned(STACK):
            await provider.remove(owned.name)
        await provider.sweep(STACK)
        await provider.close()


async def _captures(provider: SandboxProvider, image: ImageRef, sizes: Sequence[int], runs: int) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for megabytes in sizes:
        took = [await _captured(provider, image, megabytes) for _ in range(runs)]
        told[f"capture_{megabytes}mb_ms"] = _median([seconds for seconds, _ in took])
        if megabytes == 10:
            layers = [captured.by_layer for _, captured in took]
            told["by_layer"] = {layer: _median([each[layer] for each in layers]) for layer in layers[0]}
    return told


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


async def _by_depth(provider: SandboxProvider, image: ImageRef, depth: int) -> dict[str, dict[str, float]]:
    """Of a chain as deep as that: each one changes a file of 64 KiB, is captured, and gives way to its only child."""
    told: dict[str, dict[str, float]] = {}
    images: list[ImageRef] = []
    sandbox = await _started(provider, image)
    try:
        for reached in range(1, depth + 1):
            await sandbox.exec(["sh", "-c", "head -c 65536 /dev/urandom > /changed"], cwd="/")
            began = time.perf_counter()
            captured = await capture(f"bf-branch-{uuid.uuid4().hex[:8]}", sandbox, provider)
            between = time.perf_counter()
            images.append(captured.files.image)
            child = await _started(provider, captured.files.image)
            parent, sandbox = sandbox, child
            await prove(_checkpoint(captured, parent), child, None)
            ended = time.perf_counter()
            await parent.stop()
            if reached in (*DEPTHS, depth):
                told[str(reached)] = {"capture_ms": _median([between - began]), "fork_ms": _median([ended - between])}
    finally:
        await sandbox.stop()
        for each in reversed(images):
            await discard(provider, each)
    return told


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


def judged(name: str, found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What was to be reached, of what was measured."""
    most = {key: limit for key, limit in MOST[name].items() if key in found}
    targets = {key: {"limit": limit, "met": found[key] <= limit} for key, limit in most.items()}
    for agent, lengths in found.get("group8", {}).items():
        for length, values in lengths.items():
            if int(length) >= AHEAD_FROM:
                targets[f"group8.{agent}.{length}"] = {"ahead": True, "met": values["ahead"]}
    return targets


def show(found: dict[str, Any]) -> str:
    """The measurement for people."""
    lines = []
    for name in SANDBOXES:
        told = found.get(name, {})
        targets = told.get("targets", {})
        for key, value in told.items():
            if key == "group8":
                rows = [(f"{key}.{agent}.{length}", row) for agent, of in value.items() for length, row in of.items()]
                lines += [f"{name:8}{row:34}{_flat(values)}{_verdict(targets.get(row))}" for row, values in rows]
            elif key == "by_depth":
                lines += [f"{name:8}{key + '.' + depth:34}{_flat(values)}" for depth, values in value.items()]
            elif key != "targets":
                shown = _flat(value) if isinstance(value, dict) else value
                lines.append(f"{name:8}{key:34}{shown}{_verdict(targets.get(key))}")
    return "\n".join(lines)


def _flat(values: dict[str, Any]) -> str:
    return "  ".join(f"{key} {value}" for key, value in values.items())


def _verdict(target: dict[str, Any] | None) -> str:
    if target is None:
        return ""
    limit = f"≤ {target['limit']:g}" if "limit" in target else "ahead"
    return f"  {limit} {'met' if target['met'] else 'NOT MET'}"


def _listed(known: Collection[str]) -> Callable[[str], list[str]]:
    """The type of an option that takes some of these words, with commas between them."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        if unknown := [word for word in words if word not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return words

    return parse


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_listed(PARTS), default=[*PARTS], metavar="PART,…", help=", ".join(PARTS))
    parser.add_argument("--sandbox", type=_listed(SANDBOXES), default=[*SANDBOXES], metavar="NAME,…")
    parser.add_argument(
        "--agents", type=_listed(AGENTS), default=[*Sizes.agents], metavar="NAME,…", help="of the groups"
    )
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    parser.add_argument("--runs", **number, default=5, help="of captures and forks (default: %(default)s)")
    parser.add_argument("--group-runs", **number, default=Sizes.runs, help="of the groups (default: %(default)s)")
    parser.add_argument("--depth", **number, default=DEPTHS[-1], help="of the chain (default: %(default)s)")
    parser.add_argument("--latency", type=float, default=Sizes.latency, metavar="SEC", help="of a call (default: 1)")
    parser.add_argument("--quick", action="store_true", help="everything once, and small: to see that it works")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if min(options.runs, options.group_runs, options.depth) < 1 or options.latency < 0:
        parser.error("--runs, --group-runs and --depth are at least 1, --latency is no less than 0")
    sizes = Sizes(options.agents, latency=options.latency, runs=options.group_runs)
    measured = Measurement(options.only, options.runs, options.depth, CHANGED_MB, sizes)
    if options.quick:
        sizes = Sizes(sizes.agents[:1], prefixes=(1,), latency=0.0)
        measured = Measurement(options.only, 1, 2, CHANGED_MB[:2], sizes)
    found = measure_all(options.sandbox, measured)
    print(json.dumps(found) if options.json else show(found))


def measure_all(sandboxes: Sequence[str], asked: Measurement) -> dict[str, dict[str, Any]]:
    """The measurement as the one object that `--json` prints."""
    image = os.environ.get("BENCHFLOW_PERF_IMAGE", "debian:bookworm-slim")
    load_before = os.getloadavg()[0]
    found: dict[str, dict[str, Any]] = {}
    for name in sandboxes:
        try:
            with tempfile.TemporaryDirectory(prefix="bf-branch-") as state:
                os.environ["BENCHFLOW_STATE_DIR"] = state
                found[name] = asyncio.run(measure(name, image, asked))
            if "group" in asked.parts:
                found[name]["group8"] = measure_groups(name, asked.groups, image)
            found[name]["targets"] = judged(name, found[name])
        except BenchFlowError as error:
            found[name] = {"left_out": error.message}
    if "group" in asked.parts:
        groups = asked.groups
        found["group8"] = {"call_s": groups.latency, "at_a_time": groups.concurrency, "runs": groups.runs}
    found["machine"] = {"cores": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]}
    return found


if __name__ == "__main__":
    main()
