"""Workbench of a stored rollout in this process, for reward functions that are objects of this process."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow.contracts.failures import error_of
from benchflow.contracts.operator_options import WorkerOptions
from benchflow.contracts.reward import Workbench
from benchflow.errors import UntrustedJobError, VerifierError
from benchflow.host import HostSlots, SlotOwner, read_host_id
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.stored_step import StoredStep
from benchflow.hosting.stored_workbench import open_workbench
from benchflow.hosting.worker_host import Host
from benchflow.paths import StatePaths
from benchflow.planes.sandbox.owners import OF_A_PROCESS, make_owner_labels
from benchflow.rescoring.found_tasks import Tasks
from benchflow.rescoring.own_rollouts import read_own_rollout
from benchflow.results.stored_rollouts import read_rollout
from benchflow.secrets import Secrets
from benchflow.store import Store


@asynccontextmanager
async def open_stored_workbench(
    directory: Path, *, step: int | None = None, trust: bool = False
) -> AsyncIterator[Workbench]:
    """Yield the workbench of a stored rollout; a sandbox that it started is removed at the end.

    Args:
        directory: `<jobs_dir>/<job>/<task>__<id>`.
        step: Index of a finished step; None for the last one.
        trust: Whether to use the configuration of a job that this user did not submit.

    Raises:
        JobNotFoundError: The directory has no ended rollout.
        VerifierError: The rollout did not finish the step. The workbench raises it, too, for evidence that was not
            retained.
    """
    rollout, refusal = read_rollout(directory), None
    try:
        rollout = read_own_rollout(directory, trust=trust)
    except UntrustedJobError as error:
        # Raised only if a scorer runs something: scorers that only read use nothing that the configuration names.
        refusal = error
    steps = [one for one in rollout.result.steps if step in (None, one.step.index)]
    if not steps:
        raise VerifierError("no step of this rollout was finished, so there is nothing to score", file=str(directory))
    state, store, options = StatePaths.default(), Store.open(), WorkerOptions()
    host = Host(
        paths=state,
        store=store,
        host_id=read_host_id(state),
        queue="",
        stack=OF_A_PROCESS,
        slots=HostSlots(state.slots, options.capacity, options.slot_wait_sec),
        options=options,
    )
    tasks, found = Tasks(store, state, None), list[Hosted]()

    async def find() -> Hosted:
        """Return the hosted rollout, found on first use. Raise the refusal of an untrusted job."""
        if refusal is not None:
            raise refusal
        if not found:
            by = (await tasks.find(rollout.spec.task)).by
            if by.failure is not None:
                raise error_of(by.failure)
            assert by.ref is not None
            hosted = await Hosted.load(host, rollout.spec.model_copy(update={"task": by.ref}))
            # No job has stored secrets for this process.
            hosted.secrets = Secrets(os.environ, "in this environment")
            found.append(hosted)
        return found[0]

    def labels(hosted: Hosted) -> dict[str, str]:
        deadline = int(time.time() + hosted.spec.run.deadline_sec)
        return {"benchflow.stack": OF_A_PROCESS, "benchflow.deadline": str(deadline), **make_owner_labels()}

    with tempfile.TemporaryDirectory(prefix="benchflow-rescore-") as scratch:
        run = SlotOwner(f"process-{os.getpid()}", os.urandom(8).hex())
        logs, notes = Path(scratch) / "logs", Path(scratch) / "rooms"
        stored = StoredStep(rollout, steps[-1], find, find, logs, notes, labels, run)
        async with open_workbench(stored) as bench:
            yield bench
