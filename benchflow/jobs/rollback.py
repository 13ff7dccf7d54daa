"""A rollout that runs is put back to a state that it has been in: asked for from the client's side."""

from __future__ import annotations

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from benchflow.contracts import ids, names
from benchflow.contracts.activities import Restore, Restored
from benchflow.errors import NotRestorableError, ServerUnavailableError
from benchflow.executions import require_not_found


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
        raise _not_restorable(rollout, node, f"{whose} does not run, and what was kept is gone with it") from error
    return said


def _not_restorable(rollout: str, node: str, why: str) -> NotRestorableError:
    return NotRestorableError(
        f"{rollout} cannot go back to {node}: {why}",
        key="NODE",
        remedy="name one that `bench tree show` marks with a checkpoint, while the rollout runs; "
        "--branch none:checkpoint=per_turn keeps one of each",
    )
