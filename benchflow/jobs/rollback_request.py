"""Rollback of a rollout to a node: of one that runs, or of one that has ended and kept its checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError

from benchflow.contracts import ids, temporal_names
from benchflow.contracts.ended import Restart
from benchflow.contracts.error_limit import ErrorLimit
from benchflow.contracts.failures import error_of
from benchflow.contracts.rollback import Restore, Restored
from benchflow.contracts.rollout_records import Rollback, RolloutOutcome, RolloutResult
from benchflow.errors import NotRestorableError, ServerUnavailableError, StackError
from benchflow.host import read_host_id
from benchflow.hosting.checkpoint_records import recall
from benchflow.jobs.engine_connection import Engine
from benchflow.jobs.job_client import Job
from benchflow.jobs.job_plan import JobPlan
from benchflow.jobs.start import ANY_RESULT, JobStart, check_host, start
from benchflow.paths import StatePaths
from benchflow.provenance import read_own_spec
from benchflow.store import Store
from benchflow.temporal import find_cluster_target
from benchflow.trajectories.stored import load_tree, read_model
from benchflow.workflow_executions import find_last_poll, read_outcome, require_not_found
from benchflow.workflows.activity_options import format_host_queue

_POLL_INTERVAL_SEC = 0.3


async def roll_back_running(client: Client, rollout: str, node: str) -> Restored:
    """Restore a running rollout, or a child in its tree, to one of its nodes, from which it then continues.

    Returns once the world is restored.

    Args:
        client: Client of the server.
        rollout: Workflow id of the root rollout.
        node: Id of the node.

    Raises:
        NotRestorableError: The rollout does not run, or has no checkpoint of the node.
        ServerUnavailableError: The server does not answer in time.
    """
    # The id of a node begins with the branch path of the child that it belongs to.
    chain = node.rpartition("/")[0]
    target = ids.child_id(rollout, chain) if chain else rollout
    handle = client.get_workflow_handle(target)
    try:
        said: Restored = await handle.execute_update(temporal_names.RESTORE, Restore(node=node), result_type=Restored)
    except WorkflowUpdateFailedError as error:
        raise _make_error(rollout, node, getattr(error.cause, "message", str(error.cause))) from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise ServerUnavailableError("the Temporal server has not answered in time", remedy="ask again") from error
    except RPCError as error:
        require_not_found(error)
        whose = f"the child {chain}" if chain else "it"
        raise _make_error(rollout, node, f"{whose} does not run, and has kept no checkpoints") from error
    return said


async def roll_back_ended(plan: JobPlan, index: int, node: str) -> Restored:
    """Restart an ended rollout, and for that its job, from one of the rollout's own nodes.

    Returns once the world is restored.

    Args:
        plan: Plan of its job, made again.
        index: Index of the rollout.
        node: Id of a node on the rollout's own branch path, with a checkpoint.

    Raises:
        NotRestorableError: There is no checkpoint of this node any more, its host is away, or the job runs.
        BenchFlowError: As from `submit`, or the error that ended the rollout before it was restored.
    """
    spec = read_own_spec(plan.directory)
    rollout, paths = spec.rollout_id(plan.id, index), plan.directory.rollout(spec.rollout_name(plan.id, index))
    if spec.run.keep != "checkpoints":
        raise _make_error(rollout, node, "it has ended, and its checkpoints are gone with it")
    result, here = read_model(RolloutResult, paths.result), await asyncio.to_thread(read_host_id, StatePaths.default())
    # A lost rollout names no host in its result, and may have checkpoints on this one.
    host = str(result.sandbox.get("host") or here)
    if host == here:
        kept = [one.node for one in (await recall(StatePaths.default(), rollout)).retained]
    else:
        kept = [one.id for one in load_tree(paths.root).tree.nodes if one.checkpoint is not None]
    if node not in kept:
        have = ", ".join(kept)
        raise _make_error(rollout, node, f"there is no checkpoint of it; those that have one: {have or 'none'}")

    async def check(engine: Engine) -> list[str]:
        if find_cluster_target() is None:
            await check_host(plan)
        if host != here and (
            find_cluster_target() is None or await find_last_poll(engine.client, format_host_queue(host)) is None
        ):
            raise _make_error(rollout, node, f"the host of its checkpoints, {host}, does not answer")
        return []

    restart = Restart(node=node, queue=format_host_queue(host))
    job = await start(
        JobStart(
            spec.model_copy(update={"restarts": {index: restart}}),
            plan.id,
            plan.directory,
            ErrorLimit(),
            plan.config.concurrency,
            plan.variables,
            plan.values,
            again=ANY_RESULT,
            only={index},
            puts_aside=False,
            check=check,
        ),
        Store.open(),
    )
    if job.attached:
        raise _make_error(rollout, node, "it has ended, and its job still runs: wait for the job's end")
    done = await _wait_for_rollback(job, rollout, result.run_id)
    return Restored(rollout=rollout, node=done.node, undone=done.undone)


async def _wait_for_rollback(job: Job, rollout: str, before: str | None) -> Rollback:
    """Wait until a restarted rollout is restored, and return the rollback. Raise the rollout's error if it failed.

    Args:
        job: Its job.
        rollout: Workflow id of the rollout.
        before: Run id of the workflow run that had ended.
    """
    async with contextlib.aclosing(job.watch(_POLL_INTERVAL_SEC)) as updates:
        async for _ in updates:
            if (done := await _query_rollback(job, rollout, before)) is not None:
                return done
    if (done := await _query_rollback(job, rollout, before)) is not None:
        return done
    handle: WorkflowHandle[Any, RolloutOutcome] = job.engine.client.get_workflow_handle(
        rollout, result_type=RolloutOutcome
    )
    try:
        outcome, _ = await read_outcome(handle)
    except WorkflowFailureError:
        outcome = None
    if outcome is not None and outcome.error is not None:
        raise error_of(outcome.error)
    raise StackError(f"{rollout} was ended before it was rolled back", remedy="roll it back again")


async def _query_rollback(job: Job, rollout: str, before: str | None) -> Rollback | None:
    """Return the rollback with which a new run of a rollout starts, once it was carried out; None before."""
    try:
        description = await job.engine.client.get_workflow_handle(rollout).describe()
    except RPCError as error:
        require_not_found(error)
        return None
    progress = await job.rollout_progress(rollout) if description.run_id != before else None
    return progress.rollback if progress is not None else None


def _make_error(rollout: str, node: str, why: str) -> NotRestorableError:
    return NotRestorableError(
        f"{rollout} cannot go back to {node}: {why}",
        key="NODE",
        remedy="name one that `bench tree show` marks with a checkpoint; --branch none:checkpoint=per_turn takes one "
        "of each while it runs, and --keep checkpoints keeps them after its end, for `bench rollout rollback`",
    )
