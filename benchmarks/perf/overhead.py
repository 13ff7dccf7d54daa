"""What the engine costs on top of the work: a trivial task with the oracle, against plain Docker calls.

On local sandboxes the same, and the steps of a sandbox's life by themselves.

    python benchmarks/perf/overhead.py [--runs N] [--warm-up N] [--json]

A warm stack of its own, the kinds of run one after another in each round so that a noisy machine disturbs all of
them alike, medians over the rounds; the first round warms up and does not count.

    floor_s            the task by plain Docker API calls
    one_s              one rollout as a user runs it: the whole process of `bench submit`
    one_api_s          one rollout by `benchflow.run` in a process that is warm
    eight_at_four_s    a job of eight rollouts, four at a time: the whole process
    cpu_s_per_rollout  CPU of command, worker, server and supervisor over such a job, divided by eight
    worker_rss_mb      memory of the worker after all that

And under `local`, on a machine and for a user that can have local sandboxes (elsewhere `left_out` says why not):

    one_s              one rollout as above, with `--sandbox local`
    eight_at_four_s    a job of eight rollouts as above, with `--sandbox local`
    start_ms           from asking for a sandbox over the bare host, with a network, until it runs; one after another
    exec_ms            the command `true` in it, until its result is there
    fork_ms_per_child  from asking for sixteen children of a sandbox in which a program goes on writing a database, a
                       log and a mapped file, until all of them run, divided by sixteen
    stop_ms            the end of a sandbox, with the removal of all that it had
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from local_steps import LocalSteps, why_left_out
from measured_stack import MeasuredStack, measured_stack
from plain_docker import run_plainly
from trivial_task import write_trivial_task

import benchflow
from benchflow.contracts.config import RuntimeConfig

TARGETS = {"one_s": 1.5, "one_to_floor": 3.0, "eight_at_four_s": 6.0, "cpu_s_per_rollout": 0.6}
LOCAL_TARGETS = {"one_s": 0.8, "fork_ms_per_child": 25.0}
"""Upper limits, for eight rollouts at four."""


@dataclass
class Command:
    """One run of the command line: wall and CPU seconds, and what it printed."""

    wall: float
    cpu: dict[str, float]
    rollouts: list[dict[str, Any]]


@dataclass
class Samples:
    """Every measured value by its name, and phase seconds by kind of run."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    phases: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def add_command(self, kind: str, command: Command, rollouts: int) -> None:
        for name, seconds in command.cpu.items():
            self.cpu[kind][name].append(seconds / rollouts)
        for rollout in command.rollouts:
            for phase, seconds in rollout["timing"].items():
                self.phases[kind][phase].append(seconds)


class Overhead:
    """The measurement: rounds of each kind of run on one stack."""

    def __init__(self, made: MeasuredStack, tasks: Path, rollouts: int, concurrency: int, local: bool) -> None:
        self.made = made
        self.task = write_trivial_task(tasks / "docker")
        self.local_task = write_trivial_task(tasks / "local", ready_image=False)
        self.rollouts = rollouts
        self.concurrency = concurrency
        self.jobs_dir = made.root / "jobs"
        self.docker = docker.from_env()
        self.steps = LocalSteps() if local else None
        self.samples = Samples()
        self.local = Samples()
        self._jobs = 0

    def round(self, samples: Samples, local: Samples) -> None:
        """Each kind of run once."""
        samples.values["floor_s"].append(run_plainly(self.docker))
        one = self._command(self.task, "docker", 1, 1)
        samples.values["one_s"].append(one.wall)
        samples.values["cpu_s_one"].append(sum(one.cpu.values()))
        inside = sum(one.rollouts[0]["timing"].values())
        samples.values["one_outside_workflow_s"].append(one.wall - inside)
        samples.add_command("one", one, 1)
        samples.values["one_api_s"].append(self._api())
        many = self._command(self.task, "docker", self.rollouts, self.concurrency)
        samples.values["eight_at_four_s"].append(many.wall)
        samples.values["cpu_s_per_rollout"].append(sum(many.cpu.values()) / self.rollouts)
        samples.add_command("eight_at_four", many, self.rollouts)
        if self.steps is not None:
            self._local_round(local, self.steps)

    def _local_round(self, samples: Samples, steps: LocalSteps) -> None:
        one = self._command(self.local_task, "local", 1, 1)
        samples.values["one_s"].append(one.wall)
        samples.add_command("one", one, 1)
        many = self._command(self.local_task, "local", self.rollouts, self.concurrency)
        samples.values["eight_at_four_s"].append(many.wall)
        samples.add_command("eight_at_four", many, self.rollouts)
        self.made.wait_until_quiet()
        for name, milliseconds in steps.round().items():
            samples.values[name].append(milliseconds)

    def close(self) -> None:
        if self.steps is not None:
            self.steps.close()

    def _command(self, task: Path, sandbox: str, rollouts: int, concurrency: int) -> Command:
        arguments = ["submit", str(task), "--agent", "oracle", "--sandbox", sandbox, "--json"]
        arguments += ["--jobs-dir", str(self.jobs_dir), "--job-name", self._job_name()]
        arguments += ["-k", str(rollouts), "-n", str(concurrency)]
        self.made.wait_until_quiet()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            before, began = self.made.cpu(), time.perf_counter()
            process = subprocess.Popen([sys.executable, "-m", "benchflow.cli", *arguments], stdout=out, stderr=err)
            # wait4 rather than wait: it tells what this one process used.
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            said, complained = out.read(), err.read()
        self.made.wait_until_quiet()
        after = self.made.cpu()
        cpu = {"command": usage.ru_utime + usage.ru_stime} | {name: after[name] - before[name] for name in after}
        if process.returncode:
            raise RuntimeError(f"bench submit ended with {process.returncode}:\n{complained.decode(errors='replace')}")
        answer = json.loads(said)
        if answer["summary"]["passed"] != rollouts:
            raise RuntimeError(f"not every rollout passed: {answer['summary']}")
        return Command(wall, cpu, answer["rollouts"])

    def _api(self) -> float:
        config = RuntimeConfig(jobs_dir=self.jobs_dir, job_name=self._job_name())
        self.made.wait_until_quiet()
        began = time.perf_counter()
        result = asyncio.run(benchflow.run("oracle", task_path=self.task, config=config))
        wall = time.perf_counter() - began
        if result.reward != 1.0:
            raise RuntimeError(f"the rollout did not pass: {result.error or result.verifier_error}")
        return wall

    def _job_name(self) -> str:
        self._jobs += 1
        return f"perf-{self._jobs}"


def measure(runs: int, rollouts: int, concurrency: int, warm_up: int = 1) -> dict[str, Any]:
    """The measurement as the one object that `--json` prints."""
    load_before = os.getloadavg()[0]
    with measured_stack() as made, tempfile.TemporaryDirectory() as scratch:
        problem = why_left_out()
        overhead = Overhead(made, Path(scratch), rollouts, concurrency, local=problem is None)
        with contextlib.closing(overhead):
            for _ in range(warm_up):
                overhead.round(Samples(), Samples())
            for _ in range(runs):
                overhead.round(overhead.samples, overhead.local)
            idle, rss, restarts = made.wait_until_quiet(), made.rss_mb(), made.restarts()
    found: dict[str, Any] = {name: _median(values) for name, values in overhead.samples.values.items()}
    found["worker_rss_mb"] = round(rss["worker"], 1)
    found["one_to_floor"] = round(found["one_s"] / found["floor_s"], 2)
    comparable = (rollouts, concurrency) == (8, 4)
    if problem is None:
        local = {name: _median(values) for name, values in overhead.local.values.items()}
        found["local"] = local | {
            "range": _ranges(overhead.local),
            "by_phase": _medians(overhead.local.phases),
            "targets": _judged(local, LOCAL_TARGETS) if comparable else {},
        }
    return found | {
        "left_out": {"local": problem} if problem else {},
        "range": _ranges(overhead.samples),
        "cpu_by_process": _medians(overhead.samples.cpu),
        "by_phase": _medians(overhead.samples.phases),
        "rss_mb": {name: round(value, 1) for name, value in rss.items()},
        "idle_cores": round(idle, 3),
        "targets": _judged(found, TARGETS) if comparable else {},
        "runs": runs,
        "rollouts": rollouts,
        "concurrency": concurrency,
        "machine": {"cores": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]},
        "restarts": restarts,
    }


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 3)


def _medians(table: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    return {kind: {name: _median(values) for name, values in row.items()} for kind, row in table.items()}


def _ranges(samples: Samples) -> dict[str, list[float]]:
    return {name: [round(min(values), 3), round(max(values), 3)] for name, values in samples.values.items()}


def _judged(found: dict[str, Any], targets: dict[str, float]) -> dict[str, dict[str, Any]]:
    return {name: {"limit": limit, "met": found[name] <= limit} for name, limit in targets.items()}


def show(found: dict[str, Any]) -> str:
    """The measurement for people."""
    lines = [f"{'':24}{'median':>9}{'min':>9}{'max':>9}  target", *_rows(found)]
    verdict = _verdict(found, "one_to_floor")
    lines.append(f"{'one_to_floor':24}{found['one_to_floor']:9.2f}{'':18}  {verdict}")
    lines.append(f"{'worker_rss_mb':24}{found['worker_rss_mb']:9.1f}")
    lines += _rows(found["local"], "local ") if "local" in found else []
    lines += [f"{what} is left out: {why}" for what, why in found["left_out"].items()]
    lines += _parts("CPU s a rollout", found["cpu_by_process"])
    lines += _parts("seconds by phase", found["by_phase"])
    lines += _parts("seconds by phase, local", found["local"]["by_phase"]) if "local" in found else []
    return "\n".join(lines)


def _rows(found: dict[str, Any], prefix: str = "") -> list[str]:
    return [
        f"{prefix + name:24}{found[name]:9.3f}{low:9.3f}{high:9.3f}  {_verdict(found, name)}"
        for name, (low, high) in found["range"].items()
    ]


def _verdict(found: dict[str, Any], name: str) -> str:
    target = found["targets"].get(name)
    return f"≤ {target['limit']:g} {'met' if target['met'] else 'NOT MET'}" if target else ""


def _parts(title: str, table: dict[str, dict[str, float]]) -> list[str]:
    return [
        f"{title}, {kind}: " + "  ".join(f"{name} {seconds:.3f}" for name, seconds in row.items())
        for kind, row in table.items()
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7, metavar="N", help="rounds that count (default: 7)")
    parser.add_argument("--warm-up", type=int, default=1, metavar="N", help="rounds before them (default: 1)")
    parser.add_argument("--rollouts", type=int, default=8, metavar="N", help="rollouts of the job (default: 8)")
    parser.add_argument("--concurrency", type=int, default=4, metavar="N", help="at a time (default: 4)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if min(options.runs, options.rollouts, options.concurrency) < 1:
        parser.error("--runs, --rollouts and --concurrency are at least 1")
    if options.warm_up < 0:
        parser.error("--warm-up is at least 0")
    found = measure(options.runs, options.rollouts, options.concurrency, options.warm_up)
    print(json.dumps(found, indent=2) if options.json else show(found))


if __name__ == "__main__":
    main()
