"""What hardening adds to a verification, on Docker and on local sandboxes, beside the same one with every item off.

Each round verifies twice in a sandbox that an agent has worked in, once each way and in turns; medians are reported.
`room_ms` is what a clean room adds: each round runs an oracle twice, whose verifier runs where it worked and in a room.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measured_stack import MeasuredStack, measured_stack
from trivial_task import IMAGE, SOLVE, TEST, write_trivial_task

from benchflow.contracts.config import JobConfig
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.contracts.verifier import HardeningConfig, VerifierConfig
from benchflow.errors import BenchFlowError
from benchflow.jobs import plan_job, submit
from benchflow.planes.reward.hardening import HardeningBaseline, harden, take_baseline
from benchflow.planes.reward.verify import ScriptVerifier
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.local.local_images import BARE

AGENT = 61000
FILES = 2000
"""In the workspace: as many as a small project with its history has."""

OFF = HardeningConfig.model_validate(dict.fromkeys(HardeningConfig.model_fields, False))

_WORK = """
mkdir -p /app/src && cd /app && i=0
while [ $i -lt {files} ]; do echo $i >src/$i.py; i=$((i + 1)); done
echo >setup.py; echo >conftest.py; chown -R {agent} .
"""


async def measure(name: str, image: str, runs: int) -> dict[str, Any]:
    provider = get_provider(name)
    try:
        await provider.check()
        found = ImageRef(reference=BARE) if name == "local" else await provider.build(ImageConfig(image=image))
        added: dict[str, list[float]] = {"agent": [], "root": []}
        for who, values in added.items():
            for number in range(runs + 1):
                both = [await _once(provider, found, who == "root", on) for on in (number % 2 == 0, number % 2 != 0)]
                on, off = both if number % 2 == 0 else both[::-1]
                # The first round warms up.
                if number:
                    values.append((on - off) * 1000)
        return {
            "added_ms": round(statistics.median(added["agent"]), 1),
            "added_ms_root": round(statistics.median(added["root"]), 1),
            "runs": runs,
        }
    except BenchFlowError as error:
        return {"left_out": error.message}
    finally:
        await provider.close()


async def _once(provider: SandboxProvider, image: ImageRef, is_root: bool, on: bool) -> float:
    """Seconds from the agent's end to the reward."""
    labels = {"benchflow.stack": "hardening-measurement"}
    spec = SandboxSpec(name=f"bf-hardening-{uuid.uuid4().hex[:8]}", image=image, workdir="/app", labels=labels)
    sandbox = await provider.start(spec, host_id="", queue="")
    try:
        agent = 0 if is_root else AGENT
        await sandbox.exec(["sh", "-c", _WORK.format(files=FILES, agent=agent)], cwd="/")
        await sandbox.mark_baseline()
        baseline = await take_baseline(sandbox, agent=None if is_root else AGENT)
        await sandbox.exec(["sh", "-c", "cd /app && echo done >answer && echo >>setup.py"], user=agent, cwd="/")
        with tempfile.TemporaryDirectory() as directory:
            return await _verify(sandbox, baseline, Path(directory), on)
    finally:
        await sandbox.stop()


async def _verify(sandbox: Sandbox, baseline: HardeningBaseline, directory: Path, on: bool) -> float:
    tests = directory / "tests"
    tests.mkdir()
    (tests / "test.sh").write_text("#!/bin/sh\ngrep -q done /app/answer && echo 1 >/logs/verifier/reward.txt\n")
    hardening = HardeningConfig() if on else OFF
    verifier = ScriptVerifier(
        config=VerifierConfig(hardening=hardening),
        document=None,
        sources=[tests],
        target="/tests",
        key="verify-0",
        env={},
        trusted=False,
        baseline=baseline,
    )
    began = time.perf_counter()
    if not on:
        # What agents leave running ended before there was hardening, too.
        await sandbox.kill_processes()
    await harden(sandbox, baseline, hardening)
    result = await verifier.run(sandbox, directory / "logs")
    assert result.reward == 1.0
    return time.perf_counter() - began


async def measure_all(image: str, runs: int) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="benchflow-hardening-") as state:
        os.environ["BENCHFLOW_STATE_DIR"] = state
        found = {name: await measure(name, image, runs) for name in ("docker", "local")}
        local = get_provider("local")
        await local.sweep("hardening-measurement")
        await local.close()
    return found


def measure_rooms(providers: Sequence[str], runs: int) -> dict[str, float]:
    """Return the milliseconds that a clean room adds, by provider."""
    found = {}
    with measured_stack() as made:
        task = _room_task(made.root)
        for provider in providers:
            added = []
            for number in range(runs + 1):
                places = ["shared", "separate"] if number % 2 == 0 else ["separate", "shared"]
                took = {place: _verify_sec(made, task, provider, place, number) for place in places}
                # The first round warms up.
                if number:
                    added.append((took["separate"] - took["shared"]) * 1000)
            found[provider] = round(statistics.median(added), 1)
    return found


def _room_task(root: Path) -> Path:
    task = write_trivial_task(root, ready_image=False)
    (task / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\n")
    (task / "solution" / "solve.sh").write_text(SOLVE.replace("/root/", "/app/"))
    (task / "tests" / "test.sh").write_text(TEST.replace("/root/", "/app/"))
    return task


def _verify_sec(made: MeasuredStack, task: Path, provider: str, place: str, number: int) -> float:
    made.wait_until_quiet()
    name = f"{provider}-{place}-{number}"
    config = JobConfig(paths=[task], sandbox=provider, verify_in=place, jobs_dir=made.root / "jobs", job_name=name)
    [result] = asyncio.run(_run(config))
    if result.reward != 1.0:
        raise RuntimeError(f"the rollout was not rewarded: {result.error or result.verifier_error}")
    return float(result.timing["verify"])


async def _run(config: JobConfig) -> list[RolloutResult]:
    job = await submit(plan_job(config))
    await job.wait()
    return job.results()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(measure_all(IMAGE, options.runs))
    there = [name for name, values in found.items() if "left_out" not in values]
    for name, added in measure_rooms(there, options.runs).items():
        found[name]["room_ms"] = added
    if options.json:
        print(json.dumps(found))
        return
    for name, values in found.items():
        print(name, *(f"{key} {value}" for key, value in values.items()))


if __name__ == "__main__":
    main()
