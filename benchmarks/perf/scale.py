"""What many rollouts do to the engine: a job on the no-op sandbox, so that nothing but the engine is measured.

    python benchmarks/perf/scale.py [--rollouts N] [--concurrency N] [--synchronous normal|full] [--json]

A stack of its own. Reported are the throughput, the length of the histories (a job continues as new, so the longest
of its runs counts), the memory of worker and server while the job goes on, the size of the database, and errors.
The memory at the start is that after a short job has warmed the stack up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured_stack import MeasuredStack, measured_stack
from temporalio.client import Client, WorkflowExecutionDescription
from trivial_task import write_trivial_task

from benchflow.contracts.config import JobConfig
from benchflow.contracts.operator_options import CAPACITY_VARIABLE
from benchflow.jobs import Job, plan_job, submit
from benchflow.stack import SYNCHRONOUS_VARIABLE

MAX_EVENTS = 4096
"""A run of a workflow that is longer is asked by the server to continue as new."""

WARM_UP = 20
SAMPLE_EVERY = 1.0
LOOKED_AT = 50
"""Rollouts whose history is measured."""


@dataclass(frozen=True)
class Sample:
    """The stack at a moment. at: seconds since submit; rss: MB by process."""

    at: float
    finished: int
    rss: dict[str, float]


class Sampler:
    """Looks at the stack while a job runs. It reads /proc and lists a directory, to disturb neither."""

    def __init__(self, made: MeasuredStack, job: Job) -> None:
        self._made = made
        self._job = job
        self._began = time.perf_counter()
        self.samples: list[Sample] = []

    def look(self) -> None:
        finished = 0
        with contextlib.suppress(FileNotFoundError):
            finished = self._job.directory.results.read_bytes().count(b"\n")
        self.samples.append(Sample(time.perf_counter() - self._began, finished, self._made.rss_mb()))

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(SAMPLE_EVERY)

    def at_share(self, share: float) -> Sample:
        """The first sample by which this share of the rollouts had finished."""
        wanted = share * self._job.spec.total
        return next((sample for sample in self.samples if sample.finished >= wanted), self.samples[-1])


async def measure_job(made: MeasuredStack, task: Path, rollouts: int, concurrency: int) -> dict[str, Any]:
    await _run(made, task, min(WARM_UP, rollouts), concurrency, "warm-up")
    made.wait_until_quiet()
    database_before, cpu_before = made.database_mb(), made.cpu()
    began = time.perf_counter()
    job, sampler = await _run(made, task, rollouts, concurrency, "scale")
    took = time.perf_counter() - began
    sampler.look()
    began = time.perf_counter()
    results = job.results()
    reading = time.perf_counter() - began
    made.wait_until_quiet()
    cpu = {name: (seconds - cpu_before[name]) / rollouts for name, seconds in made.cpu().items()}
    job_runs = await _runs(job)
    lengths = await _rollout_lengths(job, [result.workflow_id for result in results])
    statuses = Counter(result.status for result in results)
    return {
        "rollouts": rollouts,
        "concurrency": concurrency,
        "seconds": round(took, 2),
        "rollouts_per_s": round(rollouts / took, 2),
        "rollouts_per_s_by_quarter": [_rate(sampler, quarter / 4) for quarter in range(4)],
        "cpu_s_per_rollout": {name: round(seconds, 4) for name, seconds in cpu.items()},
        "job_runs": len(job_runs),
        "job_events_max": max(run.history_length for run in job_runs),
        "job_history_kb_max": round(max(_history_bytes(run) for run in job_runs) / 1e3, 1),
        "job_events_limit": MAX_EVENTS,
        "rollout_events_max": max(lengths),
        "rollout_events_median": statistics.median(lengths),
        "rss_mb": _memory(sampler),
        "database_mb": round(made.database_mb(), 1),
        "database_kb_per_rollout": round((made.database_mb() - database_before) * 1e3 / rollouts, 1),
        "read_results_s": round(reading, 2),
        "statuses": dict(statuses),
        "errors": rollouts - statuses["passed"],
        "error_categories": dict(Counter(r.error_category for r in results if r.error_category)),
        "repeated_attempts": sum(result.attempt > 1 for result in results),
        "restarts": made.restarts(),
        "worker_log_warnings": _warnings(made),
        "machine": {"cores": os.cpu_count(), "load_after": os.getloadavg()[0]},
    }


async def _run(made: MeasuredStack, task: Path, rollouts: int, concurrency: int, name: str) -> tuple[Job, Sampler]:
    config = JobConfig(
        paths=[task],
        sandbox="noop",
        jobs_dir=made.root / "jobs",
        job_name=name,
        repeats=rollouts,
        concurrency=concurrency,
    )
    job = await submit(plan_job(config))
    sampler = Sampler(made, job)
    sampling = asyncio.create_task(sampler.run())
    try:
        await job.wait()
    finally:
        sampling.cancel()
    return job, sampler


# --- from the samples --------------------------------------------------------------------------------------


def _rate(sampler: Sampler, first: float) -> float | None:
    """Rollouts per second over the quarter of the job that begins at this share; None if it was too short."""
    before, after = sampler.at_share(first), sampler.at_share(first + 0.25)
    if after.at - before.at < SAMPLE_EVERY / 2:
        return None
    return round((after.finished - before.finished) / (after.at - before.at), 2)


def _memory(sampler: Sampler) -> dict[str, dict[str, float]]:
    moments = {
        "start": sampler.samples[0],
        "quarter": sampler.at_share(0.25),
        "middle": sampler.at_share(0.5),
        "end": sampler.samples[-1],
    }
    names = sampler.samples[0].rss
    table = {name: {when: round(sample.rss[name], 1) for when, sample in moments.items()} for name in names}
    for name, row in table.items():
        row["max"] = round(max(sample.rss[name] for sample in sampler.samples), 1)
    return table


# --- from the server ---------------------------------------------------------------------------------------


async def _runs(job: Job) -> list[WorkflowExecutionDescription]:
    """Every run of the job's workflow, the ones that continued as new included: from the last back to the first."""
    client: Client = job.engine.client
    runs = [await client.get_workflow_handle(job.id).describe()]
    while runs[-1].run_id != runs[-1].raw_description.workflow_execution_info.first_run_id:
        before = await _run_before(client, runs[-1])
        runs.append(await client.get_workflow_handle(job.id, run_id=before).describe())
    return runs


async def _run_before(client: Client, run: WorkflowExecutionDescription) -> str:
    async for event in client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history_events(page_size=1):
        return event.workflow_execution_started_event_attributes.continued_execution_run_id
    raise RuntimeError(f"run {run.run_id} has no history")


def _history_bytes(run: WorkflowExecutionDescription) -> int:
    return run.raw_description.workflow_execution_info.history_size_bytes


async def _rollout_lengths(job: Job, rollouts: list[str]) -> list[int]:
    chosen = rollouts[:: max(1, len(rollouts) // LOOKED_AT)]
    return [(await job.engine.client.get_workflow_handle(rollout).describe()).history_length for rollout in chosen]


def _warnings(made: MeasuredStack) -> int:
    """Lines of the worker's log at warning or above."""
    log = made.paths.logs / "worker.log"
    levels = ('"level": "warning"', '"level": "error"', '"level": "critical"')
    return sum(any(level in line for level in levels) for line in log.read_text().splitlines())


# --- the command -------------------------------------------------------------------------------------------


def measure(rollouts: int, concurrency: int, synchronous: str) -> dict[str, Any]:
    """The measurement as the one object that `--json` prints."""
    with (
        measured_stack({CAPACITY_VARIABLE: str(concurrency), SYNCHRONOUS_VARIABLE: synchronous}) as made,
        tempfile.TemporaryDirectory() as scratch,
    ):
        found = asyncio.run(measure_job(made, write_trivial_task(Path(scratch)), rollouts, concurrency))
    return {"synchronous": synchronous, **found}


def show(found: dict[str, Any]) -> str:
    """The measurement for people."""
    lines = []
    for name, value in found.items():
        if name == "rss_mb":
            for process, row in value.items():
                lines.append(f"{'rss_mb ' + process:28}" + "  ".join(f"{when} {mb:.0f}" for when, mb in row.items()))
        elif isinstance(value, dict):
            lines.append(f"{name:28}" + "  ".join(f"{key} {entry}" for key, entry in value.items()))
        else:
            lines.append(f"{name:28}{value}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=2000, metavar="N", help="rollouts of the job (default: 2000)")
    parser.add_argument("--concurrency", type=int, default=64, metavar="N", help="open at a time (default: 64)")
    parser.add_argument(
        "--synchronous", choices=["normal", "full"], default="normal", help="of the server's database (default: normal)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if not 1 <= options.rollouts <= 10_000:
        parser.error("--rollouts is a number from 1 to 10000")
    if not 1 <= options.concurrency <= 500:
        parser.error("--concurrency is a number from 1 to 500")
    found = measure(options.rollouts, options.concurrency, options.synchronous)
    print(json.dumps(found, indent=2) if options.json else show(found))


if __name__ == "__main__":
    main()
