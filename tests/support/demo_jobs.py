"""Jobs of the demo agent that all processes of a run share: submitted once, their results read by several modules.

A module has tasks in them if it has a function `demo_tasks(root)`, which writes them and returns them by job. The jobs
of a provider are submitted by whoever comes first; a test that is run again reads those that are submitted again, under
other names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import run
from support.agent_world import Json, Seen, declare, submit_tasks

from benchflow.jobs import open_job

DemoTasks = Mapping[str, Sequence[Path]]
"""Tasks by the name of their job, one of `JOBS`."""

SILENT_SEC = 20
"""How long an agent may say nothing in the job `deny`."""

JOBS: Mapping[str, Json] = {
    # Those whose agents are silent until a limit is reached first.
    "mute": {"agents": ["mute"], "sandbox_setup_timeout": 20},
    "deny": {"permissions": "deny", "agent_idle_timeout_sec": SILENT_SEC},
    "auto": {"concurrency": 6},
    "client": {"agents": ["dependent"]},
    "unready": {"agents": ["leaves", "absent"]},
    "docker": {"sandbox": "docker"},
}
"""Their options. Each is of the demo agent in local sandboxes, unless they say otherwise."""

AGENTS: Mapping[str, Json] = {
    "demo": {},
    "dependent": {"session": {"client": ["fs", "terminal"]}},
    "leaves": {"launch": ["sh", "-c", "echo no gateway here >&2; exit 9"]},
    "absent": {"launch": ["/opt/no-such-agent"]},
    "mute": {"launch": ["sleep", "72001"]},
}
"""The demo agent, and agents that have no session; by the name of these their rollouts are found."""

VARIABLES = {"BF_TEST_DESK_TOKEN": "desk-t0k3n-77f2"}
"""Of the process that submits them."""


class DemoJobs:
    """The jobs of one run. writers: what modules call `demo_tasks`."""

    def __init__(self, directory: Path, state: Path, writers: Sequence[Callable[[Path], DemoTasks]]) -> None:
        self._directory = directory
        self._state = state
        self._writers = writers
        self._seen: dict[tuple[str, int], dict[str, Seen]] = {}

    def submit(self, sandbox: str, attempt: int = 1) -> list[tuple[str, Path]]:
        """Submit the jobs of a provider, unless a process of this run has. Returns their names and directories."""
        name = f"demo-{sandbox}-{attempt}"

        def make() -> dict[str, object]:
            # Beside what the run removes in the end: a failed test may have to be looked into.
            root = self._directory.parent / name
            tasks: dict[str, list[Path]] = {}
            for writer in self._writers:
                for job, written in writer(root / "tasks").items():
                    if JOBS[job].get("sandbox", "local") == sandbox:
                        tasks.setdefault(job, []).extend(written)
            with pytest.MonkeyPatch.context() as patch:
                self._use_stack(patch)
                patch.setenv("BENCHFLOW_AGENTS_DIR", str(root / "agents"))
                for agent, record in AGENTS.items():
                    declare(root / "agents", agent, **record)
                for variable, value in VARIABLES.items():
                    patch.setenv(variable, value)
                for job in JOBS:
                    if job in tasks:
                        asyncio.run(submit_tasks(tasks[job], root / "jobs", job_name=job, **JOBS[job]))
            return {"jobs": sorted(tasks), "directory": str(root / "jobs")}

        made: Any = run.once(self._directory, name, make)
        return [(job, Path(made["directory"])) for job in made["jobs"]]

    def seen(self, sandbox: str, attempt: int) -> dict[str, Seen]:
        """Return the rollouts of these jobs, once they are over, by the name of their task, or of their agent."""
        if (sandbox, attempt) not in self._seen:
            jobs = self.submit(sandbox, attempt)

            async def wait() -> dict[str, Seen]:
                found: dict[str, Seen] = {}
                for job in [await open_job(*one) for one in jobs]:
                    await job.wait()
                    agents = len(job.spec.agents) > 1 or job.name == "mute"
                    for result in job.results():
                        found[result.agent if agents else result.task_name] = Seen(result)
                return found

            with pytest.MonkeyPatch.context() as patch:
                self._use_stack(patch)
                self._seen[sandbox, attempt] = asyncio.run(wait())
        return self._seen[sandbox, attempt]

    def _use_stack(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "BENCHFLOW_STORE"):
            patch.delenv(name, raising=False)
        patch.setenv("BENCHFLOW_STATE_DIR", str(self._state))
