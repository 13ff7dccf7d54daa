"""Trial of a world in a job of its own: checks, on a host that runs rollouts, that it does what it declares."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from benchflow import secrets
from benchflow.contracts import ids
from benchflow.contracts.error_limit import ErrorLimit
from benchflow.contracts.failures import error_of
from benchflow.contracts.job import AgentSpec, JobSpec, RunConfig, TaskRef
from benchflow.contracts.job_retries import RetryConfig
from benchflow.contracts.operator_options import WorkflowOptions
from benchflow.contracts.task import Task
from benchflow.contracts.trial import TrialSpec
from benchflow.errors import StackError
from benchflow.host import make_state_private
from benchflow.jobs.job_client import Job
from benchflow.jobs.job_plan import pack_directory
from benchflow.jobs.job_worlds import TaskWorld, compute_image_digest
from benchflow.jobs.start import JobStart, start
from benchflow.paths import TRIAL_FILE, JobPaths, StatePaths
from benchflow.planes.environment.environment_manifest import read_manifest
from benchflow.planes.environment.environment_trial import EnvironmentCheck
from benchflow.planes.environment.proofs import record_proofs
from benchflow.planes.environment.task_fit import check_task_fits
from benchflow.planes.environment.writing import parse_post
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.sandbox_choice import AUTO, choose_sandbox
from benchflow.store import Store
from benchflow.stored_files import read_stored
from benchflow.tasks import digest_tree, find_ignored_files, load_task, require_supported

NO_TASK = "check"
"""Task id that the world is given if no task was given."""


@dataclass(frozen=True)
class TrialPlan:
    """A checked trial, of which nothing has been started."""

    world: TaskWorld
    sandbox: str
    """Name of the sandbox provider."""
    directory: Path | None
    """Directory of the task, if one was given."""

    task: Task | None
    posts: tuple[str, ...]
    """Requests with which the trial changes the world's state, as `URL[:BODY]`."""

    @property
    def task_name(self) -> str:
        """Return the task id that the world is given."""
        return self.task.name if self.task is not None else NO_TASK


def plan_trial(manifest: Path, task_directory: Path | None, sandbox: str, posts: Sequence[str]) -> TrialPlan:
    """Check everything that can be checked without a sandbox. Raise the typed error of the first problem.

    Args:
        manifest: File of the world's manifest.
        task_directory: Directory of a task to try the world with, if any.
        sandbox: Name of the sandbox provider, or `auto`.
        posts: Requests to send that change the world's state.
    """
    for post in posts:
        parse_post(post)
    directory = task_directory.absolute() if task_directory is not None else None
    world, task = TaskWorld(read_manifest(manifest), manifest), None
    if directory is not None:
        task = load_task(directory, has_manifest=True)
        check_task_fits(world.manifest, task, source=manifest, directory=directory)
    provider = get_provider(choose_sandbox().sandbox if sandbox == AUTO else sandbox)
    values = secrets.Secrets(os.environ, "in this environment")
    values.check_world(world.ref(None))
    if task is not None:
        require_supported(task, provider.capabilities())
        values.check(task)
    return TrialPlan(world, provider.name, directory, task, tuple(posts))


async def try_world(plan: TrialPlan, on_start: Callable[[Job], None] = lambda job: None) -> EnvironmentCheck:
    """Try the world in a job of its own, and record the proofs about copies of it.

    Args:
        plan: The trial.
        on_start: Called with the job once it is started.

    Raises:
        StackError: The job ended without a finding.
        BenchFlowError: The error that ended the job.
    """
    state = StatePaths.default()
    make_state_private(state)
    name = f"{ids.cut(ids.slug(plan.world.manifest.name), 40)}-{token_hex(6)}"
    directory = JobPaths.of(state.checks, name)
    store = Store.open()
    spec = await freeze_trial(plan, name, store)
    variables = set(plan.world.manifest.forward_env.keys)
    variables |= set(secrets.list_task_variables(plan.task)) if plan.task is not None else set()
    wanted = JobStart(spec, ids.job_id(name, str(directory.root.parent)), directory, ErrorLimit(), 1, variables)
    job = await start(wanted, store)
    on_start(job)
    try:
        return await _wait_for_finding(plan, job)
    except asyncio.CancelledError:
        await job.abort()
        raise
    finally:
        await asyncio.to_thread(shutil.rmtree, directory.root, ignore_errors=True)


async def _wait_for_finding(plan: TrialPlan, job: Job) -> EnvironmentCheck:
    """Wait for a trial and return its finding; record the proofs about copies of the world."""
    results = job.directory.rollout(job.spec.rollout_name(job.id, 0)).root
    await job.wait()
    found = await asyncio.to_thread(_read_finding, job, results)
    of = {}
    if plan.task is not None and plan.directory is not None:
        of = {"task": plan.task.name, "task_image": compute_image_digest(plan.directory, plan.task)}
    proofs = [proof.model_copy(update=of) for proof in found.urls]
    record_proofs(StatePaths.default(), plan.world.ref(None).digest, proofs)
    return found.model_copy(update={"source": str(plan.world.source)})


def _read_finding(job: Job, results: Path) -> EnvironmentCheck:
    """Return the finding of an ended trial. Raise its error if it has none."""
    try:
        return EnvironmentCheck.model_validate_json(read_stored(results / TRIAL_FILE))
    except FileNotFoundError:
        failure = next((result.error for result in job.results() if result.error is not None), None)
        if failure is not None:
            raise error_of(failure) from None
        raise StackError("the trial ended without a finding", remedy="try it again") from None


async def freeze_trial(plan: TrialPlan, name: str, store: Store) -> JobSpec:
    """Pack the task and its world into the store, and return the specification of the trial's job."""
    image = await pack_directory(plan.world.image, store) if plan.world.image else None
    environment = plan.world.ref(image)
    context = None
    with tempfile.TemporaryDirectory() as scratch:
        directory = plan.directory or _write_stand_in(Path(scratch))
        if plan.task is not None and plan.task.context_root is not None:
            context = await pack_directory(Path(plan.task.context_root), store)
        left_out = await asyncio.to_thread(find_ignored_files, directory)
        digest = await asyncio.to_thread(digest_tree, directory, exclude=left_out)
        pack = await pack_directory(directory, store, left_out)
    task = TaskRef(
        name=plan.task_name,
        digest=digest,
        pack=pack,
        context=context,
        source=str(plan.directory) if plan.directory is not None else None,
        environment=environment,
    )
    return JobSpec(
        name=name,
        tasks=[task],
        agents=[AgentSpec(name="nop")],
        run=RunConfig(sandbox=plan.sandbox),
        retry=RetryConfig(max_retries=0),
        options=WorkflowOptions.from_environment(os.environ),
        concurrency=1,
        trial=TrialSpec(posts=plan.posts, has_task=plan.task is not None),
    )


def _write_stand_in(root: Path) -> Path:
    """Write a minimal task for a trial without one, since a world belongs to a task, and return its directory."""
    task = root / NO_TASK
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text("")
    (task / "instruction.md").write_text("Nobody acts.\n")
    (task / "tests" / "test.sh").write_text("#!/bin/sh\n")
    return task
