"""A worker that is ended while an agent talks: how long until the next one writes down what the agent says.

A real job on a stack of its own. The agent says something every 20 ms, also while nobody listens; the time stamps in
the trajectory are those of its writing.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from agent_streams import AGENT, INSIDE
from measured_stack import MeasuredStack, measured_stack
from trivial_task import IMAGE

from benchflow.stack import StackProcess

EVERY_MS = 20
STEADY_SEC = 1.5
"""How long events must have come since the longest pause, and PAUSE_SEC how lately, for somebody to be following."""

PAUSE_SEC = 0.5
LIVED_SEC = 11.0
"""How long a worker has lived before it is ended: one that dies young is not started again at once."""

PATIENCE_SEC = 90.0
JOB = "reattach"

_AGENT = f"""
name = "stream"
description = "Says something every so often."
protocol = "acp"
version = "1.0.0"
launch = ["node", "{INSIDE}"]

[install]
runtime = "node"
"""


def measure_reattachment(sandbox: str, runs: int) -> dict[str, list[float]]:
    """Seconds from a signal to the worker until the next one writes events: by SIGTERM, by SIGKILL, one a run."""
    with measured_stack() as made:
        agents = made.root / "agents"
        agents.mkdir()
        os.environ["BENCHFLOW_AGENTS_DIR"] = str(agents)
        (agents / "stream.toml").write_text(_AGENT)
        job = _Job(made, _write_task(made.root / "task"), sandbox)
        try:
            job.wait_until_followed(time.time(), instead_of=None)
            found: dict[str, list[float]] = {"reattach_s": [], "reattach_kill_s": []}
            for _ in range(runs):
                found["reattach_s"].append(job.end_worker(signal.SIGTERM))
                found["reattach_kill_s"].append(job.end_worker(signal.SIGKILL))
            return found
        finally:
            job.cancel()


def _write_task(task: Path) -> Path:
    prompt = json.dumps({"count": 10**9, "every_ms": EVERY_MS})
    files = {
        "task.toml": 'version = "1.0"\n',
        "environment/Dockerfile": f"FROM {IMAGE}\nCOPY {AGENT.name} {INSIDE}\n",
        f"environment/{AGENT.name}": AGENT.read_text(),
        "instruction.md": f"{prompt}\n",
        "tests/test.sh": "#!/bin/sh\necho 1 >/logs/verifier/reward.txt\n",
    }
    for name, text in files.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return task


class _Job:
    """One rollout that goes on until it is cancelled. since: when somebody last began to follow its agent."""

    def __init__(self, made: MeasuredStack, task: Path, sandbox: str) -> None:
        self._made = made
        self._jobs = made.root / "jobs"
        self._since = time.time()
        options = ["--agent", "stream", "--sandbox", sandbox, "--detach", "--job-name", JOB]
        self._bench("submit", str(task), *options, "--sandbox-setup-timeout", "600")

    def _bench(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "benchflow.cli", *arguments, "--jobs-dir", str(self._jobs)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"bench {arguments[0]} ended with {done.returncode}:\n{done.stderr}")

    def end_worker(self, how: signal.Signals) -> float:
        """Seconds from the signal until there are events again after the longest pause."""
        worker = StackProcess.of(self._made.pids()["worker"])
        time.sleep(max(0.0, self._since + LIVED_SEC - time.time()))
        at = time.time()
        os.kill(worker.pid, how)
        self._since = self.wait_until_followed(at, instead_of=worker)
        return self._since - at

    def wait_until_followed(self, since: float, *, instead_of: StackProcess | None) -> float:
        """Wait until this worker is gone and events have come for a while. When that began: after the longest pause."""
        deadline = time.monotonic() + PATIENCE_SEC
        while time.monotonic() < deadline:
            time.sleep(0.2)
            if instead_of is not None and instead_of.alive:
                continue
            moments = self._moments(since)
            pauses = [(later - moment, later) for moment, later in itertools.pairwise(moments) if later > since]
            if pauses and moments[-1] - max(pauses)[1] > STEADY_SEC and time.time() - moments[-1] < PAUSE_SEC:
                return max(pauses)[1]
        raise RuntimeError(f"no worker followed the agent: {self._state()}")

    def _moments(self, since: float) -> list[float]:
        """The times of the events from shortly before a moment on."""
        found: list[float] = []
        for path in self._jobs.glob(f"{JOB}/*/trajectory/acp_trajectory.jsonl"):
            with path.open("rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        event: dict[str, Any] = json.loads(line)
                        found.append(datetime.fromisoformat(event["ts"]).timestamp())
        return [moment for moment in found if moment > since - 2 * PAUSE_SEC]

    def _state(self) -> str:
        results = [path.read_text()[:2000] for path in self._jobs.glob(f"{JOB}/*/result.json")]
        return "\n".join(results) or f"see {self._made.paths.logs}"

    def cancel(self) -> None:
        """The sandbox has to be gone before the stack is."""
        self._bench("job", "cancel", JOB)
        deadline = time.monotonic() + PATIENCE_SEC
        while time.monotonic() < deadline and not any(self._jobs.glob(f"{JOB}/*/result.json")):
            time.sleep(0.1)
