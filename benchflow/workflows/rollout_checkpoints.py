"""The checkpoints of a rollout: take, retain and release them, and restore the rollout to one of them.

A restore reverts everything after the checkpoint: the rollout no longer has those steps, nodes and rewards, but their
model usage still counts. It follows a user's request (a roll-back), or the loss of the sandbox's host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import temporal_names
    from benchflow.contracts.activities import CheckpointInput, ReleaseInput
    from benchflow.contracts.branch import ChildOutcome
    from benchflow.contracts.checkpoint import Checkpoint
    from benchflow.contracts.ended import EndedState, Restart, RetainInput
    from benchflow.contracts.failures import failure_of
    from benchflow.contracts.rollback import Restored, UndoInput, Undone
    from benchflow.contracts.rollout_records import Rollback, Usage, total
    from benchflow.errors import HostLostError, NotRestorableError
    from benchflow.workflows import activity_options
    from benchflow.workflows.clock import Phases
    from benchflow.workflows.hosts import HostGoneError, RolloutSandbox, run_on_host, tear_down
    from benchflow.workflows.rollout_state import RolloutState
    from benchflow.workflows.workflow_cancellation import run_to_end


async def release(
    checkpoints: Iterable[Checkpoint], *, before: Callable[[], None] = lambda: None, lost: Collection[str] = ()
) -> None:
    """Remove checkpoints from their hosts and the store. Missing ones are success; a failure is logged.

    Of a lost host, only the portable ones are removed, from the store; the host's reaper removes its local data once
    the workflow of the root has ended.

    Args:
        checkpoints: Checkpoints that are no longer needed.
        before: Called before each scheduling of an activity; what it raises is raised.
        lost: Queues of hosts that are known to be lost.
    """
    by_queue: dict[str, list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        by_queue.setdefault(checkpoint.queue, []).append(checkpoint)
    for queue, those in by_queue.items():
        name, work = temporal_names.RELEASE_CHECKPOINT, ReleaseInput(checkpoints=those)
        limit = activity_options.get_options().teardown_total_sec
        try:
            try:
                if queue not in lost:
                    await run_on_host(queue, name, work, None, total=limit, before=before)
                    continue
            except HostGoneError:
                workflow.logger.warning("checkpoints on a lost host are left to its reaper: %s", queue)
            if any(checkpoint.is_portable for checkpoint in those):
                before()
                await workflow.execute_activity(name, work, **activity_options.make_shared_options(total_sec=limit))
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("checkpoints could not be released: %s", error.cause)


async def retain(state: RolloutState, *, lost: Collection[str] = ()) -> None:
    """Retain the checkpoints of an ending rollout beyond its end, each on its host, and release its children's.

    Args:
        state: State of the rollout. Each host also stores the part of it that a later roll-back needs.
        lost: Queues of lost hosts, whose checkpoints are not retained. Another lost host raises `HostGoneError`.
    """
    await release([*state.release_at_end, *state.retained_below], lost=lost)
    kept = [*state.retained, *state.session_checkpoints]
    for queue in dict.fromkeys(one.queue for one in kept if one.queue not in lost):
        those = [one for one in kept if one.queue == queue]
        work = RetainInput(rollout=state.spec.id, checkpoints=those, state=state.make_ended_state())
        await run_on_host(
            queue, temporal_names.RETAIN, work, None, total=activity_options.get_options().teardown_total_sec
        )


class Checkpoints:
    """The checkpoints of one rollout: taken in its sandbox, retained and released."""

    def __init__(self, state: RolloutState, phases: Phases, sandbox: RolloutSandbox) -> None:
        """Make it for one rollout.

        Args:
            state: State of the rollout, shared by its modules; the fields about checkpoints are set here.
            phases: Phases of the rollout.
            sandbox: Sandbox of the rollout, which is captured.
        """
        self._state = state
        self._phases = phases
        self._sandbox = sandbox

    async def take(self, *, freezes: bool = False, steps_done: int | None = None, name: str = "") -> Checkpoint:
        """Capture the sandbox as a checkpoint of the present node, and return it. A retry returns the same capture.

        Args:
            freezes: Whether the sandbox stays frozen afterwards, with its slot of the host lent, while children run.
            steps_done: Number of steps that led to the node; by default, the number of outcomes so far.
            name: Suffix to the name of the node.
        """
        state, origin = self._state, self._state.branch_origin
        if freezes:
            self._phases.begin("branch")
        done = len(state.steps) if steps_done is None else steps_done
        work = CheckpointInput(
            **self._sandbox.fields,
            run_id=origin.run_id if origin is not None else state.run_id,
            goes_on=not freezes,
            node=state.find_node(done) + name,
            steps_done=done,
            session=state.session,
            baseline=state.baseline,
            begun=state.session_begin if state.session is not None else None,
        )
        limit = state.spec.options.checkpoint_limit_sec
        checkpoint: Checkpoint = await self._sandbox.run(temporal_names.CHECKPOINT, work, Checkpoint, limit, work.node)
        return checkpoint

    def start_from(self, checkpoint: Checkpoint | None) -> None:
        """Set the state's `base_checkpoint` before the next sandbox is provisioned.

        Args:
            checkpoint: Checkpoint to start from. The one of a child's origin is not set: its parent owns and releases
                it.
        """
        origin = self._state.branch_origin
        is_parents = origin is not None and checkpoint == origin.checkpoint
        self._state.base_checkpoint = None if is_parents else checkpoint

    async def take_session_begin(self) -> Checkpoint:
        """Take a checkpoint at the origin of a session, from which children may replay the session, and return it."""
        checkpoint = await self.take(name="-session")
        self._state.session_checkpoints.append(checkpoint)
        return checkpoint

    async def take_leaf(self) -> None:
        """Take a checkpoint of a child after its last step, before the verifier changes the sandbox.

        Its parent may continue from it. It is stored as the state's `leaf`.
        """
        self._state.leaf = await self.take(steps_done=len(self._state.steps) + 1)

    def has_retained(self, node: str) -> bool:
        """Return whether a checkpoint of the node with this id is retained."""
        return any(one.node == node for one in self._state.retained)

    def retain(self, checkpoint: Checkpoint) -> None:
        """Retain a checkpoint until the root ends."""
        self._state.retained.append(checkpoint)

    async def release(self, *checkpoints: Checkpoint | None) -> None:
        """Release checkpoints of this rollout and its children, except those that are retained or in use.

        Args:
            checkpoints: Checkpoints that may be released; None is ignored. Portable ones are released at the root's
                end.
        """
        state = self._state
        used = [one for one in (*state.retained, *state.retained_below, state.base_checkpoint) if one is not None]
        ids = {one.id for one in used}
        unneeded = [one for one in checkpoints if one is not None and one.id not in ids]
        # A portable checkpoint in the store may be the base of a later one: all are released together at the end.
        state.release_at_end += [one for one in unneeded if one.is_portable]
        await release([one for one in unneeded if not one.is_portable], before=state.check_stop)

    async def release_after_work(self, *, is_resumable: bool) -> None:
        """Release the checkpoints that only the work has needed: the base checkpoint, and those of session origins.

        Args:
            is_resumable: Whether other rollouts may still resume sessions of this one: their checkpoints then stay.
        """
        state = self._state
        begins = [] if is_resumable else state.session_checkpoints
        base, state.base_checkpoint = state.base_checkpoint, None
        await self.release(*begins, base)


@dataclass(frozen=True)
class RestorePoint:
    """State from which a rollout starts, or starts again after a restore."""

    checkpoint: Checkpoint | None
    """Checkpoint to start from; None to start a root from the task's image."""

    revert: UndoInput | None = None
    """Input of the revert that is still to run, on the new sandbox's host; None if nothing is left to revert."""


class RolloutRestores:
    """Restores of one rollout to its checkpoints, on a user's request or after the loss of its host."""

    def __init__(self, state: RolloutState, sandbox: RolloutSandbox) -> None:
        """Make it for one rollout, whose state a restore rewinds, and whose sandbox it discards."""
        self._state = state
        self._sandbox = sandbox
        self._n_losses = 0
        self.lost_queues: set[str] = set()
        """Queues of the hosts that were lost."""

    def check(self, node: str, *, is_over: bool, has_started: bool) -> None:
        """Check that the rollout can be restored to a node now.

        Args:
            node: Id of the node.
            is_over: Whether the rollout has ended.
            has_started: Whether the rollout runs in a sandbox, with nothing left to revert there.

        Raises:
            ApplicationError: It can't be restored (`NotRestorableError`); the message has the reason.
        """
        state = self._state
        if not has_started:
            _refuse("it has not begun yet: ask again in a moment")
        if is_over:
            _refuse("it is over, and its checkpoints with it: it can only be run again")
        if state.restore_to is not None:
            _refuse(f"it is about to be put back to {state.restore_to.node}")
        restorable = state.restorable
        if node in restorable:
            return
        have = f"those that have one: {', '.join(restorable)}" if restorable else "no node of it has one"
        if node in state.list_path():
            _refuse(f"no checkpoint of {node} is kept; {have}")
        _refuse(f"it has not come by {node}; {have}")

    def request(self, node: str) -> int:
        """Request a roll-back to a node that `check` has accepted. Return the number of this roll-back, from 1."""
        self._state.restore_to = self._state.restorable[node]
        return len(self._state.rollbacks) + 1

    def is_done(self, number: int) -> bool:
        """Return whether the roll-back of this number was carried out, and the rollout has a sandbox again."""
        return len(self._state.rollbacks) >= number and self._state.sandbox is not None

    def record_revert(self, undone: Undone) -> None:
        """Record the result of a pending revert (`RestorePoint.revert`) that was carried out."""
        state = self._state
        if state.is_restarting:
            state.rollbacks[-1] = state.rollbacks[-1].model_copy(update={"directory": undone.directory})
        state.is_restarting = False

    def get_result(self, number: int) -> Restored:
        """Return the result of the completed roll-back of this number: its node, and the nodes that it has reverted."""
        done = self._state.rollbacks[number - 1]
        return Restored(rollout=self._state.spec.id, node=done.node, undone=done.undone)

    async def roll_back(self) -> RestorePoint:
        """Carry out the requested roll-back: revert results and state to its checkpoint, and remove the sandbox.

        The caller has ended the work in the sandbox before.

        Returns:
            The point from which to start again, with nothing left to revert.
        """
        state = self._state
        checkpoint, sandbox = state.restore_to, state.sandbox
        assert checkpoint is not None
        # Children that began at the checkpoint are run again with it.
        gone = state.find_children_beside(state.list_path(checkpoint.steps_done - 1))
        revert, undone = self._make_revert_input(checkpoint, gone, str(len(state.rollbacks) + 1)), None
        if sandbox is not None:
            try:
                limit = state.spec.options.restore_limit_sec
                undone = await run_on_host(sandbox.queue, temporal_names.UNDO, revert, Undone, limit)
            except HostGoneError:
                workflow.logger.warning("what is reverted stays on the lost host %s", sandbox.host_id)
            # To its end, even if the rollout is cancelled now: it then has no other sandbox to remove.
            await run_to_end(tear_down(state.spec, sandbox))
        usage = self._list_reverted_usage(checkpoint, gone)
        usage += [undone.used] if undone is not None and undone.used is not None else []
        directory = undone.directory if undone is not None else None
        state.rollbacks.append(Rollback(node=revert.node, undone=revert.undone, used=total(usage), directory=directory))
        unneeded = self._rewind(checkpoint, gone)
        state.reverted_usage += usage
        state.release_at_end += [one for one in unneeded if one.is_portable]
        # `check` refuses another roll-back until this one is done.
        await release(one for one in unneeded if not one.is_portable)
        state.restore_to = None
        return RestorePoint(checkpoint)

    async def rewind_ended(self, restart: Restart) -> RestorePoint:
        """Load the recorded state of a rollout that had ended, and rewind it to a node.

        The results stay as they are until the new sandbox is provisioned.

        Args:
            restart: The node, and the queue of the host that retains the checkpoints.

        Returns:
            The point from which to start again, with the revert of the results that is still to run.

        Raises:
            ApplicationError: The rollout can't be restored to that node, or the host is lost.
        """
        state, node = self._state, restart.node
        try:
            state.recall(await run_on_host(restart.queue, temporal_names.RECALL, state.spec.id, EndedState))
        except HostGoneError:
            raise make_lost_checkpoints_error(restart.queue) from None
        try:
            self.check(node, is_over=False, has_started=True)
        except ApplicationError as error:
            refusal = NotRestorableError(f"it cannot go back to {node}: {error.message}", key="NODE")
            failure = failure_of(refusal, "plan")
            raise ApplicationError(failure.message, failure) from error
        checkpoint = state.restorable[node]
        gone = state.find_children_beside(state.list_path(checkpoint.steps_done - 1))
        label = str(len(state.rollbacks) + 1)
        update = {"sandbox": None, "interrupted": None, "session": None}
        revert = self._make_revert_input(checkpoint, gone, label).model_copy(update=update)
        usage = self._list_reverted_usage(checkpoint, gone)
        # No step is running: after the last step there is at most the node of a question.
        undone = [one for one in revert.undone if one in state.list_path()]
        undone += [one.id for outcome in gone for one in outcome.nodes]
        done = Rollback(node=node, undone=undone, used=total(usage), directory=f"rollbacks/{label}")
        state.rollbacks.append(done)
        state.reverted_usage += usage
        state.release_at_end += self._rewind(checkpoint, gone)
        return RestorePoint(checkpoint, revert)

    def rewind_lost(self) -> RestorePoint:
        """Rewind the state of a rollout whose host is lost.

        Returns:
            The point from which to start again on another host: the newest portable checkpoint of the rollout's own
            nodes; else the rollout's start, with all results discarded.
        """
        state, origin = self._state, self._state.branch_origin
        assert state.sandbox is not None
        self.lost_queues.add(state.sandbox.queue)
        portable = [checkpoint for checkpoint in state.restorable.values() if checkpoint.is_portable]
        checkpoint, revert = portable[-1] if portable else None, None
        if checkpoint is None or (origin is not None and checkpoint == origin.checkpoint):
            # Back to the rollout's start, without any results.
            checkpoint, gone, state.reverted_usage = None, list(state.outcomes), []
        else:
            # No user has requested this: if the rollout continues after its children, those that started at the
            # checkpoint stay.
            gone = state.find_children_beside(state.list_path(checkpoint.steps_done - (not state.continues_itself)))
            self._n_losses += 1
            revert = self._make_revert_input(checkpoint, gone, f"lost-{self._n_losses}").model_copy(
                update={"sandbox": None}
            )
            state.reverted_usage += self._list_reverted_usage(checkpoint, gone)
        unneeded = [*self._rewind(checkpoint, gone), *state.session_checkpoints]
        state.session_checkpoints = []
        # The others are on the lost host, whose reaper removes them.
        state.release_at_end += [one for one in unneeded if one.is_portable]
        return RestorePoint(checkpoint or (origin.checkpoint if origin is not None else None), revert)

    def _make_revert_input(self, checkpoint: Checkpoint, gone: Sequence[ChildOutcome], label: str) -> UndoInput:
        """Return the input of the activity that moves results after a checkpoint to the roll-back directory `label`."""
        state, steps, done = self._state, self._state.plan.steps, checkpoint.steps_done
        last = min(len(state.steps) + 1, len(steps))
        return UndoInput(
            spec=state.spec,
            sandbox=state.sandbox,
            label=label,
            node=state.find_node(done),
            steps=steps[done : len(state.steps) + 1],
            undone=[state.find_node(number) for number in range(done + 1, last + 1)],
            chains=[*(outcome.chain for outcome in gone), *state.pending],
            untold=[*(outcome.chain for outcome in gone if outcome.used is None), *state.pending],
            interrupted=next(iter(steps[len(state.steps) :]), None),
            session=state.session,
            run_id=state.run_id,
        )

    def _list_reverted_usage(self, checkpoint: Checkpoint, gone: Sequence[ChildOutcome]) -> list[Usage]:
        """Return the model usage after a checkpoint, of the rollout's own steps and of the children that are gone."""
        adopted, after = self._state.adopted, self._state.steps[checkpoint.steps_done :]
        own = [outcome.turn.usage for outcome in after if outcome.step.index not in adopted]
        return [usage for usage in (*own, *(outcome.used for outcome in gone)) if usage is not None]

    def _rewind(self, checkpoint: Checkpoint | None, gone: Sequence[ChildOutcome]) -> list[Checkpoint]:
        """Rewind the state and forget the sandbox. Return the checkpoints that are no longer needed.

        Args:
            checkpoint: The checkpoint to rewind to; None for the rollout's start.
            gone: Children that the rollout no longer has.
        """
        state = self._state
        gone_below = [one for outcome in gone for one in (*outcome.kept, outcome.checkpoint)]
        known = {one.id: one for one in (*gone_below, *state.retained, state.base_checkpoint) if one is not None}
        session = checkpoint.session.session if checkpoint is not None and checkpoint.session is not None else None
        # The session of the checkpoint is not among those that stay: it is opened again.
        state.rewind(
            checkpoint.steps_done if checkpoint is not None else state.origin_steps,
            session.index if session is not None else 0,
            gone,
        )
        if checkpoint is None:
            state.retained = []
        state.base_checkpoint = None
        self._sandbox.discard(keeps_results=checkpoint is not None)
        stays = {one.id for one in (*state.retained, *state.retained_below, checkpoint) if one is not None}
        return [one for one in known.values() if one.id not in stays]


def make_lost_checkpoints_error(queue: str) -> ApplicationError:
    """Return the error for a roll-back of an ended rollout whose checkpoints are on the lost host of `queue`."""
    message = f"the host of its checkpoints does not answer: {queue}"
    return ApplicationError(message, failure_of(HostLostError(message)))


def _refuse(why: str) -> NoReturn:
    raise ApplicationError(why, type=NotRestorableError.__name__, non_retryable=True)
