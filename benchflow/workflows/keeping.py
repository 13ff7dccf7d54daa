"""The checkpoints that a rollout keeps: how they go, and what a rollout takes along that goes back to one of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.activities import ReleaseInput, UndoInput
    from benchflow.contracts.checkpoint import Checkpoint
    from benchflow.contracts.rollout import AgentSession, StepOutcome
    from benchflow.workflows import options
    from benchflow.workflows.branching import Branches
    from benchflow.workflows.hosts import HostLost, on_host


@dataclass(frozen=True)
class PutBack:
    """A rollout in a state that it has been in. steps: those that led there; kept: of the nodes until there.

    checkpoint: of the state; None for that of the root before its first step, which is made again. undo: what is still
    to be undone, where its files may be.
    """

    branches: Branches
    checkpoint: Checkpoint | None = None
    steps: list[StepOutcome] = field(default_factory=list)
    sessions: list[AgentSession] = field(default_factory=list)
    kept: list[Checkpoint] = field(default_factory=list)
    later: list[Checkpoint] = field(default_factory=list)
    undo: UndoInput | None = None

    @property
    def node(self) -> str:
        return self.branches.node(len(self.steps))


async def release(
    checkpoints: Iterable[Checkpoint], *, before: Callable[[], None] = lambda: None, lost: Collection[str] = ()
) -> None:
    """Let go of checkpoints, on their hosts; of a lost one's, what the store has. before: as in `on_host`.

    lost: queues that nobody answers. What this misses the reapers of those hosts remove, once the root is over.
    """
    by_queue: dict[str, list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        by_queue.setdefault(checkpoint.queue, []).append(checkpoint)
    for queue, those in by_queue.items():
        name, work = names.RELEASE_CHECKPOINT, ReleaseInput(checkpoints=those)
        total = options.current().teardown_total_sec
        try:
            try:
                if queue not in lost:
                    await on_host(queue, name, work, None, total=total, before=before)
                    continue
            except HostLost:
                workflow.logger.warning("checkpoints on a lost host are left to its reaper: %s", queue)
            if any(checkpoint.is_portable for checkpoint in those):
                before()
                await workflow.execute_activity(name, work, **options.shared(total_sec=total))
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("checkpoints could not be let go of: %s", error.cause)
