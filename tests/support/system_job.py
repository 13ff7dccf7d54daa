"""Jobs that all system tests of a run share: submitted once, when the run begins, their results read by many modules.

A module has tasks in them if it has a function `system_tasks(root)`, which writes them below a directory and returns
them by job; `long_system_tasks(root)` writes those that only its `long` tests read. Names of tasks are unique over all
modules. A test that is run again, because it failed, reads the results of jobs that are submitted again, with the
tasks of its own module alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import run
from support.agent_world import declare
from support.paths import BENCHMARKS
from support.running import job_config

from benchflow.contracts.rollout_records import RolloutResult
from benchflow.jobs import open_job, plan_job, submit

SystemTasks = Mapping[str, Sequence[Path]]
"""Tasks, and packages of tasks, by the name of their job, one of `JOBS`."""

Results = Mapping[str, RolloutResult]
"""Of one job, by the names of their tasks."""

SILENT_SEC = 20
"""How long an agent may say nothing in the job `denied`."""

JOBS: Mapping[str, Mapping[str, Any]] = {
    # The slowest comes first: its rollout waits for a limit.
    "late": {"sandbox": "docker", "agents": ["nop"], "sandbox_setup_timeout": 30, "retry": {"max_retries": 0}},
    "local": {"sandbox": "local", "concurrency": 6},
    "docker": {"sandbox": "docker", "concurrency": 4, "retry": {"max_retries": 0}},
    # Its images begin with the same layer, which a daemon that has none would make for each of those that it is asked
    # for at the same time.
    "packages": {"sandbox": "docker", "concurrency": 1},
    "idle": {"sandbox": "docker", "agents": ["nop"]},
    "office": {"sandbox": "docker", "environment_manifest": BENCHMARKS / "office" / "environment.toml"},
    "attacks": {"sandbox": "docker", "agents": ["attacker"], "concurrency": 2},
    # A job whose tasks share a world has no others.
    "persistent": {"sandbox": "local", "concurrency": 3},
    "rooms": {"sandbox": "local", "verify_in": "separate", "keep": "workspace"},
    "groups": {"sandbox": "local", "keep": "workspace", "mode": {"kind": "grpo", "n": 2, "at": 1}},
    "mute": {"sandbox": "local", "agents": ["mute"], "sandbox_setup_timeout": 30},
    "denied": {"sandbox": "local", "agents": ["demo"], "permissions": "deny", "agent_idle_timeout_sec": SILENT_SEC},
    "turns": {"sandbox": "local", "agents": ["demo"], "concurrency": 6},
    "turns_in_docker": {"sandbox": "docker", "agents": ["demo"]},
    "served": {"sandbox": "local", "agents": ["dependent"]},
    "leaves": {"sandbox": "local", "agents": ["leaves"]},
    "absent": {"sandbox": "local", "agents": ["absent"]},
}
"""What the run's jobs are asked for with. Their agent is the oracle, unless they say otherwise."""

AGENTS: Mapping[str, Mapping[str, Any]] = {
    "demo": {},
    "dependent": {"session": {"client": ["fs", "terminal"]}},
    "leaves": {"launch": ["sh", "-c", "echo no gateway here >&2; exit 9"]},
    "absent": {"launch": ["/opt/no-such-agent"]},
    "mute": {"launch": ["sleep", "72001"]},
}
"""Agents of a user's own beside those of `benchmarks/attacks`: what the record of each has beyond the demo agent's."""

VARIABLES = {"WORLD_KEY": "w0rld-k3y-55e01c9b", "BF_TEST_DESK_TOKEN": "desk-t0k3n-77f2"}
"""Of the process that submits them."""


class SystemJobs:
    """The jobs of one run. modules: the test modules that have tasks in them, by whether their `long` ones count."""

    def __init__(self, directory: Path, state: Path, modules: Mapping[ModuleType, bool]) -> None:
        self._directory = directory
        self._state = state
        self._modules = dict(sorted(modules.items(), key=lambda item: item[0].__name__))
        self._results: dict[Path, Results] = {}

    def submit(self, again: ModuleType | None = None, attempt: int = 1) -> dict[str, Any]:
        """Submit all jobs, unless a process of this run has. Returns their directory, and why some were refused.

        again: the module of a test that is run again; its tasks alone are submitted.
        """
        key = "system" if again is None else f"system-{again.__name__.removeprefix('test_')}-{attempt}"

        def make() -> dict[str, object]:
            # Beside what the run removes in the end: a failed test may have to be looked into.
            root = self._directory.parent / key
            # Of a process that was interrupted before it had submitted all.
            shutil.rmtree(root, ignore_errors=True)
            tasks = self._write(root / "tasks", list(self._modules) if again is None else [again])
            agents = shutil.copytree(BENCHMARKS / "attacks" / "agents", root / "agents")
            for name, record in AGENTS.items():
                declare(agents, name, **record)
            with self._on_stack(BENCHFLOW_AGENTS_DIR=str(agents)):
                refused = asyncio.run(_submit({name: tasks[name] for name in JOBS if name in tasks}, root / "jobs"))
            return {"jobs_dir": str(root / "jobs"), "refused": refused}

        return run.once(self._directory, key, make)

    def job(self, name: str, module: ModuleType, attempt: int) -> Path:
        """Return the directory of a job, once it is over. attempt: how often the module's test is run by now."""
        submitted = self.submit(module if attempt > 1 else None, attempt)
        assert name not in submitted["refused"], submitted["refused"][name]
        directory = Path(submitted["jobs_dir"]) / name
        if directory not in self._results:
            with self._on_stack():
                self._results[directory] = asyncio.run(_finished(directory))
        return directory

    def results(self, name: str, module: ModuleType, attempt: int) -> Results:
        """Return the results of a job, once it is over, by the names of their tasks."""
        return self._results[self.job(name, module, attempt)]

    def _write(self, root: Path, modules: Iterable[ModuleType]) -> dict[str, list[Path]]:
        tasks: dict[str, list[Path]] = {}
        for module in modules:
            for name in ("system_tasks", "long_system_tasks") if self._modules[module] else ("system_tasks",):
                writer: Callable[[Path], SystemTasks] = getattr(module, name, lambda root: {})
                for job, written in writer(root / module.__name__.removeprefix("test_")).items():
                    tasks.setdefault(job, []).extend(written)
        return tasks

    @contextlib.contextmanager
    def _on_stack(self, **variables: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "BENCHFLOW_STORE"):
                patch.delenv(name, raising=False)
            for name, value in (VARIABLES | variables | {"BENCHFLOW_STATE_DIR": str(self._state)}).items():
                patch.setenv(name, value)
            yield


async def _submit(tasks: Mapping[str, Sequence[Path]], jobs_dir: Path) -> dict[str, str]:
    """Submit a job for each entry. Returns why some cannot be: their provider may not work on this machine."""
    refused = {}
    for name, paths in tasks.items():
        try:
            await submit(plan_job(job_config(paths, jobs_dir, job_name=name, **JOBS[name])))
        except Exception as error:
            refused[name] = f"the job {name!r} was refused: {error!r}"
    return refused


async def _finished(directory: Path) -> Results:
    job = await open_job(directory.name, directory.parent)
    await job.wait()
    results = {result.task_name: result for result in job.results()}
    assert len(results) == job.spec.total
    return results
