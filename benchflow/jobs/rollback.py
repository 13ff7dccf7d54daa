"""Roll a rollout back to a node: one that runs, or one that has ended and kept its checkpoints."""

from __future__ import annotations

import asyncio

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from benchflow.contracts import ids, names
from benchflow.contracts.activities import Restore, Restored
from benchflow.contracts.ended import Restart
from benchflow.contracts.error_limit import ErrorLimit
from benchflow.contracts.rollout import RolloutResult
from benchflow.errors import NotRestorableError, ServerUnavailableError
from benchflow.executions import last_poll, require_not_found
from benchflow.host import host_id
from benchflow.hosting.kept import recall
from benchflow.jobs.engine import Engine
from benchflow.jobs.plan import JobPlan
from benchflow.jobs.start import ANY_RESULT, Start, start
from benchflow.paths import StatePaths
from benchflow.provenance import read_own_spec
from benchflow.store import Store
from benchflow.temporal import cluster_target
from benchflow.trajectories.growth import chain_of
from benchflow.trajectories.stored import load_tree, read_model
from benchflow.workflows.options import host_queue


async def put_back(client: Client, rollout: str, node: str) -> Restored:
    """Put a rollout back to a node that it, or a child in its tree, has come by, and have it go on from there.

    Returns once the world is as it was. Raises `NotRestorableError`.
    """
    # A node is called after the child in whose chain it is.
    chain = node.rpartition("/")[0]
    target = ids.child_id(rollout, chain) if chain else rollout
    handle = client.get_workflow_handle(target)
    try:
        said: Restored = await handle.execute_update(names.RESTORE, Restore(node=node), result_type=Restored)
    except WorkflowUpdateFailedError as error:
        raise _not_restorable(rollout, node, getattr(error.cause, "message", str(error.cause))) from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise ServerUnavailableError("the Temporal server has not answered in time", remedy="ask again") from error
    except RPCError as error:
        require_not_found(error)
        whose = f"the child {chain}" if chain else "it"
        raise _not_restorable(rollout, node, f"{whose} does not run, and has kept no checkpoints") from error
    return said


async def roll_back_ended(plan: JobPlan, index: int, node: str) -> list[str]:
    """Start a rollout again, which has ended, from a node of its own. Its job runs again for it.

    Args:
        plan: Its job, planned again.
        index: Of the rollout.
        node: Of its own branch path, with a checkpoint.

    Returns:
        The nodes of its own that are undone.

    Raises:
        NotRestorableError: There is no checkpoint of this node any more, its host is away, or the job runs.
    """
    spec = read_own_spec(plan.directory)
    rollout, paths = spec.rollout_id(plan.id, index), plan.directory.rollout(spec.rollout_name(plan.id, index))
    if spec.run.keep != "checkpoints":
        raise _not_restorable(rollout, node, "it has ended, and its checkpoints are gone with it")
    result, tree = read_model(RolloutResult, paths.result), load_tree(paths.root).tree
    own = {one.id: one for one in tree.nodes}
    if node not in own or own[node].checkpoint is None:
        have = ", ".join(one.id for one in tree.nodes if one.checkpoint is not None)
        raise _not_restorable(rollout, node, f"there is no checkpoint of it; those that have one: {have or 'none'}")
    host, checkpoint = str(result.sandbox.get("host")), own[node].checkpoint

    async def check(engine: Engine) -> list[str]:
        if host != await asyncio.to_thread(host_id, StatePaths.default()):
            if cluster_target() is None or await last_poll(engine.client, host_queue(host)) is None:
                raise _not_restorable(rollout, node, f"the host of its checkpoints, {host}, does not answer")
            return []
        ended = await recall(StatePaths.default(), rollout)
        if checkpoint not in {one.id for one in ended.retained}:
            raise _not_restorable(rollout, node, f"its checkpoint {checkpoint} was removed")
        return []

    restart = Restart(node=node, queue=host_queue(host))
    job = await start(
        Start(
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
        raise _not_restorable(rollout, node, "it has ended, and its job still runs: wait for the job's end")
    path = [one.id for one in tree.nodes if not chain_of(one.id)]
    return path[path.index(node) + 1 :]


def _not_restorable(rollout: str, node: str, why: str) -> NotRestorableError:
    return NotRestorableError(
        f"{rollout} cannot go back to {node}: {why}",
        key="NODE",
        remedy="name one that `bench tree show` marks with a checkpoint; --branch none:checkpoint=per_turn takes one "
        "of each while it runs, and --keep checkpoints keeps them after its end, for `bench rollout rollback`",
    )
