"""A worker in the test's own process, with a provider that the test controls, and jobs to run on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.fake_provider import FakeProvider
from temporalio.api.enums.v1 import EventType
from temporalio.service import RPCError, RPCStatusCode

from benchflow.activities.attempts import OngoingWork
from benchflow.activities.handover import RunningActivities
from benchflow.activities.worker_context import WorkerContext
from benchflow.contracts.config import JobConfig
from benchflow.contracts.job import JobProgress
from benchflow.contracts.operator_options import WorkflowOptions
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.jobs import Job, plan_job, submit
from benchflow.temporal import Target
from benchflow.testing.waiting import until

T = TypeVar("T")


@dataclass
class InProcessWorker:
    """A worker in this process, and what it takes to run jobs on it. jobs: that were submitted."""

    provider: FakeProvider
    root: Path
    target: Target
    context: WorkerContext
    records: RunningActivities
    patch: pytest.MonkeyPatch
    jobs: list[Job] = field(default_factory=list)

    def ongoing_work(self) -> OngoingWork:
        """Return the work of another worker process, which has none yet."""
        return OngoingWork(self.context.client, self.records.identity, self.context.options.heartbeat_every_sec)

    def task(self, name: str = "play", config: str = "") -> Path:
        """A task that any provider can be given."""
        task = self.root / "tasks" / name
        for directory in ("environment", "tests", "solution"):
            (task / directory).mkdir(parents=True, exist_ok=True)
        (task / "task.toml").write_text(f'{config}\n[environment]\ndocker_image = "nothing"\n')
        (task / "instruction.md").write_text("Play.\n")
        for script in ("tests/test.sh", "solution/solve.sh"):
            (task / script).write_text("#!/bin/sh\n")
        return task

    def stepped(self, count: int = 3, *, name: str = "play", final: bool = False) -> Path:
        """A task of several steps, `s0` and so on. final: its reward is that of the last, not their mean."""
        config = 'multi_step_reward_strategy = "final"\n' if final else ""
        task = self.task(name, config + "".join(f'[[steps]]\nname = "s{number}"\n' for number in range(count)))
        for number in range(count):
            solution = task / "steps" / f"s{number}" / "solution"
            solution.mkdir(parents=True)
            (solution.parent / "instruction.md").write_text("Play on.\n")
            (solution / "solve.sh").write_text("#!/bin/sh\n")
        return task

    def options(self, **options: float) -> None:
        """Have jobs that are submitted from now on begin with these `WorkflowOptions`."""
        for name, value in options.items():
            self.patch.setenv(WorkflowOptions.variables()[name], str(value))

    async def begun(self, count: int) -> None:
        """Until so many turns have begun, of all rollouts."""

        async def are_begun() -> bool:
            return sum(self.provider.turns.values()) >= count

        await until(are_begun)

    async def submit(self, *tasks: Path, again: tuple[str, ...] = (), **options: Any) -> Job:
        values = {"paths": list(tasks or [self.task()]), "jobs_dir": self.root / "jobs", "sandbox": "hall"}
        # Many have rollouts that all fail alike.
        values |= {"job_name": "show", "retry": {"min_wait_sec": 0.01}, "stop_after_errors": 0}
        job = await submit(plan_job(JobConfig.model_validate(values | options)), again=again)
        self.jobs.append(job)
        return job

    async def progress(self, job: Job, holds: Callable[[JobProgress], bool]) -> JobProgress:
        """The job's progress once it is as it should be."""

        async def asked() -> JobProgress | None:
            progress = await job.progress()
            return progress if progress is not None and holds(progress) else None

        return await until(asked)

    async def in_turn(self, count: int) -> list[str]:
        """The rollouts whose agent works, once there are so many."""

        async def found() -> list[str]:
            return self.provider.in_turn if len(self.provider.in_turn) == count else []

        return await until(found)

    async def events(self, job: Job, rollout: str = "") -> list[str]:
        """The types of the events in the history of the job, or of one of its rollouts; none before it starts."""
        handle = job.engine.client.get_workflow_handle(job.id + rollout)
        try:
            return [EventType.Name(event.event_type) async for event in handle.fetch_history_events()]
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return []

    async def activities(self, rollout: str) -> list[str]:
        """The names of the activities that the history of a rollout has, in their order."""
        events = self.context.client.get_workflow_handle(rollout).fetch_history_events()
        found = [event.activity_task_scheduled_event_attributes.activity_type.name async for event in events]
        return [name for name in found if name]

    async def results(self, job: Job) -> list[RolloutResult]:
        await job.wait()
        return job.results()
