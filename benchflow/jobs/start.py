"""Start of a job: freeze its tasks and configuration, claim its directory, start its workflow."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from benchflow import secrets
from benchflow.contracts import ids, temporal_names
from benchflow.contracts.base import MAX_MESSAGE_BYTES
from benchflow.contracts.error_limit import ErrorLimit
from benchflow.contracts.job import JobInput, JobSpec, Origin
from benchflow.errors import ServerUnavailableError
from benchflow.host import make_state_private, read_host_id
from benchflow.host_files import hold_lock
from benchflow.jobs.engine_connection import Engine
from benchflow.jobs.identity import (
    check_jobs_dir,
    check_results,
    claim,
    list_pending_indices,
    record_options,
    require_fitting,
    require_space,
    unclaim,
)
from benchflow.jobs.job_client import Job
from benchflow.jobs.job_plan import JobPlan, freeze
from benchflow.jobs.model_preflight import check_models
from benchflow.paths import JobPaths, StatePaths
from benchflow.planes.reward.needs import check_scoring
from benchflow.planes.sandbox import get_provider
from benchflow.sanitise import sanitise_markdown
from benchflow.store import Store, check_reach
from benchflow.temporal import find_cluster_target
from benchflow.workflows.activity_options import SHARED_QUEUE
from benchflow.workflows.job_details import make_job_attributes

JOB_TASK_TIMEOUT = timedelta(minutes=1)
"""Timeout of a job's workflow task: it may start a thousand rollouts on a busy host."""

ANY_RESULT = ("passed", "failed", "scored", "errored", "cancelled", "not_started")
"""All statuses of results: as `JobStart.again`, they have every rollout of the start run again."""


@dataclass
class JobStart:
    """A job to be started, with everything that its specification does not contain."""

    spec: JobSpec
    id: str
    """Workflow id."""
    directory: JobPaths
    """Paths of its results."""
    limit: ErrorLimit
    """When equal errors stop the job."""
    concurrency: int
    """Maximum number of sandboxes at a time."""
    variables: Iterable[str] = ()
    """Names of variables of this process's environment whose values the workers are given."""

    values: Mapping[str, str] = field(default_factory=dict)
    """Further values that the workers are given, by name."""

    again: Sequence[str] = ()
    """Statuses and error categories: a rollout with such a result is run again."""

    only: Collection[int] | None = None
    """Indices of the rollouts to start; None for all."""

    puts_aside: bool = True
    """Whether, on a cluster, earlier results of these rollouts are moved aside, so that the new ones are fetched."""

    check: Callable[[Engine], Awaitable[list[str]]] | None = None
    """Called before the start. Returns warnings; an exception keeps the job from starting."""


async def submit(plan: JobPlan, *, again: Sequence[str] = (), asks: bool = False) -> Job:
    """Start a job, or attach to it if it is running.

    Args:
        plan: The checked job.
        again: Statuses and error categories: a rollout with such a result is run again.
        asks: Whether the job asks its user whether to continue, when its first rollouts fail with equal errors.

    Returns:
        The job. `started` is the number of rollouts that were started.

    Raises:
        JobConflictError: The name belongs to a job with another specification.
        BenchFlowError: Something that the job needs is missing, or its workflow cannot be started.
    """
    check_jobs_dir(plan.directory, plan.config.jobs_dir)
    paths, store = StatePaths.default(), Store.open()
    make_state_private(paths)
    target = find_cluster_target()
    if target is None:
        await check_host(plan)
    else:
        check_reach(store, target.is_loopback)
    branch = plan.config.branch
    needs_scalar = branch is not None and branch.has_children
    return await start(
        JobStart(
            await freeze(plan, store),
            plan.id,
            plan.directory,
            ErrorLimit(errors=plan.config.stop_after_errors, asks=asks, needs_scalar=needs_scalar),
            plan.config.concurrency,
            plan.variables,
            plan.values,
            again,
            check=lambda engine: check_models(engine, plan),
        ),
        store,
    )


async def check_host(plan: JobPlan) -> None:
    """Raise the typed error of the first sandbox or secret that a job needs and this host or environment lacks."""
    await get_provider(plan.config.sandbox).check()
    here = secrets.Secrets(os.environ, "in this environment")
    for _, task in plan.tasks:
        here.check(task)
        if plan.config.judge.base_url is None:
            here.check_judges(check_scoring(task, plan.config.judge, plan.config.allow_code), task)
    given = secrets.Secrets({**os.environ, **plan.values}, "in this environment")
    for agent in plan.config.agents:
        given.check_agent(agent)


async def start(wanted: JobStart, store: Store) -> Job:
    """Start a job with those of its rollouts that lack a result, or attach to it if it is running."""
    paths, target = StatePaths.default(), find_cluster_target()
    spec, directory = wanted.spec, wanted.directory
    origin = Origin(host_id=await asyncio.to_thread(read_host_id, paths), job_dir=str(directory.root))
    require_fitting(spec, wanted.id, origin, MAX_MESSAGE_BYTES)
    lock = paths.root / "locks" / f"job-{ids.short_hash(wanted.id, 16)}"
    with contextlib.ExitStack() as held:
        # Of two simultaneous submits of one name, one starts the job and the other attaches to it.
        await asyncio.to_thread(held.enter_context, hold_lock(lock))
        is_new = not directory.config.exists()
        claim(directory, spec)
        engine = await Engine.reach()
        job = Job(engine, wanted.id, spec.name, directory, spec)
        if await job.is_running():
            job.attached = True
            return job
        await job.fetch()
        pending = list_pending_indices(spec, wanted.id, directory, again=wanted.again, only=wanted.only)
        if not pending:
            return job
        check_results(spec, wanted.id, directory, pending)
        require_space(directory)
        if target is None:
            secrets.store_secrets(paths, wanted.id, set(wanted.variables), wanted.values)
        elif wanted.puts_aside:
            job.expect(pending)
        try:
            job.warnings = await wanted.check(engine) if wanted.check is not None else []
        except BaseException:
            secrets.remove_secrets(paths, wanted.id)
            if is_new:
                # So that the name can be used again with another key or model.
                unclaim(directory)
            raise
        job.started = sum(end - first for first, end in pending)
        record_options(directory, spec)
        await _start(job, spec, origin, pending, wanted.concurrency, wanted.limit, store)
        return job


async def _start(
    job: Job,
    spec: JobSpec,
    origin: Origin,
    pending: list[tuple[int, int]],
    concurrency: int,
    limit: ErrorLimit,
    store: Store,
) -> None:
    """Store the specification and start the job's workflow; mark the job as attached if it was started meanwhile."""
    ref = await store.put_bytes(spec.model_dump_json().encode())
    job_input = JobInput(
        id=job.id,
        name=spec.name,
        spec=ref,
        origin=origin,
        total=spec.total,
        pending=pending,
        concurrency=concurrency,
        one_at_a_time=spec.is_persistent,
        retry=spec.retry,
        error_limit=limit,
        options=spec.options,
        agents=[agent.label for agent in spec.agents],
    )
    agents = ", ".join(sanitise_markdown(agent.label) for agent in spec.agents)
    try:
        await job.engine.client.start_workflow(
            temporal_names.JOB_WORKFLOW,
            job_input,
            id=job.id,
            task_queue=SHARED_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            task_timeout=JOB_TASK_TIMEOUT,
            search_attributes=make_job_attributes(spec.name),
            static_summary=f"{len(spec.tasks)} tasks × {agents} × {spec.repeats}",
        )
    except WorkflowAlreadyStartedError:
        job.attached, job.started = True, 0
    except RPCError as error:
        raise ServerUnavailableError(f"the job could not be started: {error.message}") from error
