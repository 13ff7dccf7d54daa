"""The worker: one process with the workflows, this host's activities, and the reaper.

`bench worker`, or `python -m benchflow.worker`, joins the cluster that the environment names; the embedded stack's
supervisor runs it with `--embedded`. SIGTERM hands everything that runs over to the next worker and ends at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import structlog
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from benchflow.activities.attempts import OngoingWork
from benchflow.activities.boundary import BoundaryInterceptor
from benchflow.activities.deciding import DecidingActivities
from benchflow.activities.handover import RunningActivities
from benchflow.activities.job_activities import JobActivities
from benchflow.activities.leftovers import Leftovers
from benchflow.activities.lost_activities import LostActivities
from benchflow.activities.preflight_activities import PreflightActivities
from benchflow.activities.reaper import Reaper
from benchflow.activities.rollout_activities import RolloutActivities
from benchflow.activities.worker_context import WorkerContext
from benchflow.contracts.operator_options import WorkerOptions
from benchflow.errors import BenchFlowError, ConfigError, ServerUnavailableError
from benchflow.gateway.gateway_process import (
    GATEWAY_ROUND_SEC,
    LOOK_AT_GATEWAY_SEC,
    ensure_gateway,
    has_rollouts,
    is_running,
)
from benchflow.host import HostSlots, make_state_private, read_host_id
from benchflow.log import configure_logging
from benchflow.paths import PRIVATE_UMASK, StatePaths
from benchflow.planes.sandbox import close_providers
from benchflow.rounds import Failures, repeat
from benchflow.store import Store, check_reach
from benchflow.temporal import (
    Target,
    connect,
    ensure_search_attributes,
    find_cluster_target,
    make_stack_target,
    read_stack_id,
)
from benchflow.workflows.activity_options import SHARED_QUEUE, format_host_queue
from benchflow.workflows.job_workflow import JobWorkflow
from benchflow.workflows.preflight_workflow import PreflightWorkflow
from benchflow.workflows.rollout_workflow import RolloutWorkflow

REAP_ROUND_SEC = 3600.0
"""Timeout of a round of the reaper, in seconds; each of its items has a timeout of its own."""
HAND_OVER_ROUND_SEC = 600.0
"""Timeout of a hand-over, in seconds; it may query the server about each open workflow."""

log = structlog.get_logger("benchflow.worker")


async def make_context(client: Client, paths: StatePaths, store: Store, options: WorkerOptions) -> WorkerContext:
    """Return the context of this process's activities: client, store, host, slots and options."""
    host = read_host_id(paths)
    return WorkerContext(
        client=client,
        paths=paths,
        store=store,
        host_id=host,
        queue=format_host_queue(host),
        stack=await read_stack_id(client),
        slots=HostSlots(paths.slots, options.capacity, options.slot_wait_sec),
        options=options,
    )


def make_workers(context: WorkerContext, records: RunningActivities, work: OngoingWork) -> list[Worker]:
    """Return one Temporal worker for the shared queue and one for this host's.

    Args:
        context: Context of the activities.
        records: Task tokens of running activities, on disk.
        work: Work of the activities, which outlives single attempts; the caller closes it after the workers.
    """
    rollout, job, deciding = RolloutActivities(context), JobActivities(context), DecidingActivities()
    shared_activities: list[Callable[..., Any]] = [
        *(rollout.plan, rollout.provision, rollout.wait_for_slot, rollout.release, rollout.report_without_sandbox),
        *(rollout.rescore, rollout.try_world),
        *(deciding.decide, deciding.aggregate, PreflightActivities(context).preflight),
        *(job.name_rollouts, job.rollout_states, job.host_status, job.finish_job),
        LostActivities(context).report_lost,
    ]
    host_activities: list[Callable[..., Any]] = [
        *(rollout.provision, rollout.wait_for_slot, rollout.readiness, rollout.connect, rollout.execute),
        *(rollout.checkpoint, rollout.release, rollout.write_tree, rollout.undo, rollout.retain, rollout.recall),
        *(rollout.verify, rollout.soft_verify, rollout.report, rollout.teardown),
    ]
    options = context.options
    common: dict[str, Any] = {
        "identity": records.identity,
        "interceptors": [BoundaryInterceptor(records, work, options)],
        # The interceptor decides how often heartbeats are sent: the SDK must not throttle them.
        "max_heartbeat_throttle_interval": timedelta(milliseconds=100),
        "default_heartbeat_throttle_interval": timedelta(milliseconds=100),
        "max_concurrent_activities": options.max_activities,
        # No activity is awaited: it hands its work over, and the next worker resumes it.
        "graceful_shutdown_timeout": timedelta(0),
    }
    return [
        Worker(
            context.client,
            task_queue=SHARED_QUEUE,
            workflows=[JobWorkflow, RolloutWorkflow, PreflightWorkflow],
            workflow_runner=make_workflow_runner(),
            workflow_failure_exception_types=[BenchFlowError],
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=options.sticky_timeout_sec),
            activities=shared_activities,
            **common,
        ),
        Worker(context.client, task_queue=context.queue, activities=host_activities, **common),
    ]


def make_workflow_runner() -> SandboxedWorkflowRunner:
    """Return the runner of workflows: it reloads their modules for each run, and shares the pure modules they use."""
    shared = SandboxRestrictions.default.with_passthrough_modules(
        "pydantic",
        "pydantic_core",
        "benchflow.branching",
        "benchflow.contracts",
        "benchflow.errors",
        "benchflow.trajectories",
        "benchflow.workflows.activity_options",
        "structlog",
    )
    return SandboxedWorkflowRunner(restrictions=shared)


async def serve(target: Target, options: WorkerOptions) -> None:
    """Run the worker until SIGTERM or SIGINT.

    Args:
        target: The server.
        options: Options of the worker.

    Raises:
        ServerUnavailableError: The server does not respond in time.
        ConfigError: The store cannot be used with this server, or search attributes cannot be registered.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    # For blocking file access; sandboxes have threads of their own.
    loop.set_default_executor(ThreadPoolExecutor(max_workers=16, thread_name_prefix="files"))
    paths, store = StatePaths.default(), Store.open()
    check_reach(store, target.embedded or target.is_loopback)
    client = await _connect_with_retries(target, stopping, options.server_wait_sec)
    if client is None:
        return
    if not target.embedded:
        await ensure_search_attributes(client)
    context = await make_context(client, paths, store, options)
    records = RunningActivities(paths.running, context.host_id)
    records.open()
    work = OngoingWork(client, records.identity, options.heartbeat_every_sec)
    reaping = repeat("reaper", Reaper(context).reap, every_sec=options.reap_every_sec, limit_sec=REAP_ROUND_SEC)
    background = [asyncio.create_task(reaping), asyncio.create_task(_remove_leftovers_forever(context))]
    if not target.embedded:
        background.append(asyncio.create_task(_keep_gateway_forever(paths)))
    try:
        async with contextlib.AsyncExitStack() as running:
            for worker in make_workers(context, records, work):
                await running.enter_async_context(worker)
            records.mark_ready()
            background.append(asyncio.create_task(_hand_over_forever(client, records, options)))
            log.info("working", host=context.host_id, stack=context.stack)
            await stopping.wait()
            log.info("stopping")
    finally:
        await work.close()
        for task in background:
            task.cancel()
        await close_providers(context.stack)


async def _remove_leftovers_forever(context: WorkerContext) -> None:
    # Soon, since a stack may not live as long as the interval; but not at once, when a client waits for its job.
    every_sec = context.options.leftovers_every_sec
    await asyncio.sleep(min(60.0, every_sec))
    await repeat("leftovers", Leftovers(context).remove, every_sec=every_sec, limit_sec=REAP_ROUND_SEC)


async def _keep_gateway_forever(paths: StatePaths) -> None:
    """Restart the gateway if it has ended, on a cluster's host, where no supervisor does so."""

    async def look() -> None:
        if has_rollouts(paths) and not is_running(paths):
            log.warning("the model gateway does not run")
            await ensure_gateway(paths)

    await repeat("gateway", look, every_sec=LOOK_AT_GATEWAY_SEC, limit_sec=GATEWAY_ROUND_SEC)


async def _hand_over_forever(client: Client, records: RunningActivities, options: WorkerOptions) -> None:
    """Hand over the activities of worker processes of this host that have ended, killed or stopped."""
    failures = Failures("hand-over")

    async def look() -> None:
        await records.hand_over(client, failures)

    await repeat("hand-over", look, every_sec=options.dead_worker_poll_sec, limit_sec=HAND_OVER_ROUND_SEC)


async def _connect_with_retries(target: Target, stopping: asyncio.Event, seconds: float) -> Client | None:
    """Return a client, retrying for `seconds` since the server may be restarting; None if stopped meanwhile."""
    deadline = time.monotonic() + seconds
    while not stopping.is_set():
        try:
            return await connect(target)
        except ServerUnavailableError:
            if time.monotonic() > deadline:
                raise
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), 0.2)
    return None


def main(arguments: list[str] | None = None) -> int:
    """Run the worker until it is stopped. Return the exit status."""
    # Imported objects live as long as the process: freeze them, so that no collection scans them. The last collection,
    # at exit, would take longer than all else.
    gc.freeze()
    parser = argparse.ArgumentParser(prog="benchflow.worker", description=__doc__)
    parser.add_argument("--embedded", action="store_true", help="serve the embedded stack of the state directory")
    arguments_given = parser.parse_args(arguments)
    os.umask(PRIVATE_UMASK)
    paths = StatePaths.default()
    try:
        make_state_private(paths)
        if arguments_given.embedded:
            from benchflow.stack import read_record

            configure_logging(file=paths.logs / "worker.log")
            record = read_record(paths)
            if record is None:
                raise ConfigError("there is no embedded stack", remedy="bench stack start")
            target = make_stack_target(record)
        else:
            configure_logging(verbose=True)
            found = find_cluster_target()
            if found is None:
                raise ConfigError(
                    "a worker joins a cluster, and none is named",
                    key="TEMPORAL_ADDRESS",
                    remedy="set TEMPORAL_ADDRESS=host:port; the embedded stack brings its own worker",
                )
            target = found
        worker_options = WorkerOptions.from_environment(os.environ)
        asyncio.run(serve(target, worker_options))
    except BenchFlowError as error:
        log.error("the worker cannot run", error=str(error))
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
