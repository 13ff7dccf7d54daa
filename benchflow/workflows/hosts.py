"""A rollout's sandbox on its host: provisioning, activities in it, teardown, and detection of a lost host."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import temporal_names
    from benchflow.contracts.activities import (
        HostQuery,
        HostStatus,
        ProvisionInput,
        Readied,
        ReadinessInput,
        ReleaseInput,
        Resumed,
        SandboxInput,
    )
    from benchflow.contracts.checkpoint import Checkpoint, SessionBegin
    from benchflow.contracts.failures import failure_of
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.sandbox import SandboxRef
    from benchflow.errors import HostFullError, HostLostError
    from benchflow.sanitise import sanitise_markdown
    from benchflow.workflows import activity_options, rollout_slots
    from benchflow.workflows.clock import Phases, pause_deadline
    from benchflow.workflows.rollout_state import RolloutState
    from benchflow.workflows.workflow_cancellation import await_result, run_to_end


class HostGoneError(Exception):
    """Error: the host of the sandbox takes no activity and has stopped polling. The sandbox is to be replaced."""


class RolloutSandbox:
    """The present sandbox of a rollout: provisioned, used by activities, frozen, and replaced by a new one."""

    def __init__(self, state: RolloutState, phases: Phases) -> None:
        """Make it for one rollout, without a sandbox.

        Args:
            state: State of the rollout, shared by its modules; `sandbox` and `readied` are set here.
            phases: Phases of the rollout.
        """
        self._state = state
        self._phases = phases
        self._generations = itertools.count()
        self._spec = state.spec
        self._keeps_results = False

    @property
    def fields(self) -> dict[str, Any]:
        """Return `spec` and `sandbox`, the fields that the inputs of all activities in the sandbox share."""
        return {"spec": self._spec, "sandbox": self._state.sandbox}

    async def run(
        self, name: str, arg: Any, result: Any, limit: float | None = None, summary: str | None = None
    ) -> Any:
        """Run an activity on the sandbox's host, and return its result.

        Args:
            name: Name of the activity.
            arg: Input of the activity.
            result: Type of its result.
            limit: Seconds of one attempt; `short_limit_sec` by default.
            summary: Text beside the activity's name in the Web UI.

        Raises:
            CancelledError: The rollout is to stop.
            HostGoneError: The sandbox's host is lost.
            ActivityError: The activity has failed.
        """
        sandbox = self._state.sandbox
        assert sandbox is not None
        return await run_on_host(sandbox.queue, name, arg, result, limit, summary, before=self._state.check_stop)

    def discard(self, *, keeps_results: bool) -> None:
        """Forget the sandbox, which was removed or lost.

        Args:
            keeps_results: Whether the results written so far remain valid in the next sandbox. If not, provisioning
                sets them aside.
        """
        self._state.sandbox = self._state.readied = None
        self._keeps_results = keeps_results

    async def provision(self, checkpoint: Checkpoint | None, replays: SessionBegin | None = None) -> None:
        """Provision a new sandbox, and wait until its world is ready. An existing sandbox is removed first.

        Args:
            checkpoint: Checkpoint to start from; None to start from the task's image.
            replays: Origin of the parent's session, if the session is replayed in this sandbox; else None.

        Raises:
            CancelledError: The rollout is to stop.
            HostGoneError: The host is lost.
            ApplicationError: The checkpoint is on a lost host only.
            ActivityError: Provisioning or the readiness check has failed.
        """
        state, plan, origin = self._state, self._state.plan, self._state.branch_origin
        if state.sandbox is not None:
            await tear_down(self._spec, state.sandbox)
        if origin is not None:
            self._spec = state.spec.model_copy(update={"branch": origin.model_copy(update={"replays": replays})})
        self._phases.begin("provision")
        await rollout_slots.get_slots().hold()
        wanted = ProvisionInput(
            spec=self._spec,
            run_id=state.run_id,
            generation=next(self._generations),
            checkpoint=checkpoint,
            goes_on=self._keeps_results,
        )
        near = checkpoint or (origin.checkpoint if origin is not None else None)
        limit = plan.build_timeout_sec + plan.setup_timeout_sec + plan.install_timeout_sec
        limit += 2 * state.spec.run.sandbox_setup_timeout
        state.sandbox = await provision(wanted, near, limit, before=state.check_stop)
        self._keeps_results = True
        state.warnings += [text for text in state.sandbox.warnings if text not in state.warnings]
        if plan.has_healthcheck or plan.readiness_timeout_sec:
            self._phases.begin("readiness")
            origins = {"baseline": checkpoint.baseline, "observed": checkpoint.observed} if checkpoint else {}
            limit = plan.healthcheck_timeout_sec + plan.readiness_timeout_sec + state.spec.options.margin_sec
            ready = ReadinessInput(**self.fields, **origins)
            state.readied = await self.run(temporal_names.READINESS, ready, Readied | None, limit)
            state.warnings += state.readied.differences if state.readied is not None else ()

    async def lend_slot(self) -> None:
        """Freeze the sandbox while children run, and lend its slot on the host to other sandboxes."""
        released = ReleaseInput(checkpoints=[], waiting=self._state.sandbox)
        await self.run(temporal_names.RELEASE_CHECKPOINT, released, None)

    async def unfreeze(self) -> None:
        """Thaw the sandbox that was frozen while children ran, and let its agent call its model again.

        Waits until the job and the host have a slot for it.
        """
        state = self._state
        assert state.sandbox is not None
        await rollout_slots.get_slots().hold()
        wanted = ProvisionInput(spec=self._spec, run_id=state.run_id, generation=state.sandbox.generation)
        await wait_for_slot(state.sandbox.queue, wanted, state.check_stop)
        resumed = Resumed(**self.fields, session=state.session)
        await self.run(temporal_names.RELEASE_CHECKPOINT, ReleaseInput(checkpoints=[], resumed=resumed), None)


async def run_on_host(
    queue: str,
    name: str,
    arg: Any,
    result: Any,
    limit: float | None = None,
    summary: str | None = None,
    *,
    total: float | None = None,
    before: Callable[[], None] = lambda: None,
) -> Any:
    """Run an activity on the host of `queue`, and return its result.

    If no worker takes it in `host_start_timeout_sec`, it is scheduled again, unless the host is lost.

    Args:
        queue: Task queue of the host.
        name: Name of the activity.
        arg: Input of the activity.
        result: Type of its result.
        limit: Seconds of one attempt; `short_limit_sec` by default.
        summary: Text beside the activity's name in the Web UI, cut to 30 characters.
        total: Seconds of all attempts together; no limit by default.
        before: Called before each scheduling; what it raises is raised.

    Raises:
        HostGoneError: No worker of the host takes the activity, and none polls.
        ActivityError: The activity has failed.
    """
    # The server refuses a summary of more than 400 bytes, and a character may take twelve of them in JSON.
    shown = None if summary is None else sanitise_markdown(summary[:30])
    while True:
        before()
        try:
            limits = activity_options.make_host_options(queue, limit, total_sec=total)
            return await await_result(workflow.start_activity(name, arg, result_type=result, summary=shown, **limits))
        except ActivityError as error:
            cause = error.cause
            waited = isinstance(cause, ActivityTimeout) and cause.type == TimeoutType.SCHEDULE_TO_START
            if not waited:
                raise
            if not await _is_alive(queue):
                raise HostGoneError("its host does not answer") from error


SLOT = "a slot"
"""Reason of the wait of a rollout for a sandbox slot on a host."""


async def provision(
    wanted: ProvisionInput, near: Checkpoint | None, limit: float, *, before: Callable[[], None]
) -> SandboxRef:
    """Provision a sandbox, and return its reference.

    It is provisioned on the host of `near`; if that one is lost, or none is given, on any host.

    Args:
        wanted: Input of the activity: the rollout, the checkpoint, and the number of the sandbox.
        near: Checkpoint whose host is preferred; None for any host.
        limit: Seconds of one attempt.
        before: Called before each scheduling of an activity; what it raises is raised.

    Raises:
        ApplicationError: The host of the checkpoint is lost, and no other host can restore the checkpoint.
        ActivityError: Provisioning has failed.
    """
    if near is not None:
        try:
            return await _provision(near.queue, wanted, limit, before)
        except HostGoneError as error:
            if wanted.checkpoint is not None and not wanted.checkpoint.is_portable:
                message = f"the state of {near.node} lies on the host {near.host_id}, which is lost"
                remedy = "with portable checkpoints other hosts go on"
                lost = HostLostError(message, key="branch.portable", remedy=remedy)
                raise ApplicationError(message, failure_of(lost)) from error
    return await _provision(None, wanted, limit, before)


async def wait_for_slot(queue: str | None, wanted: ProvisionInput, before: Callable[[], None]) -> SandboxRef:
    """Wait for a free slot on a host, and take it. The deadline's clock stops meanwhile.

    Args:
        queue: Task queue of the host; None for any host.
        wanted: Input of the provisioning that needs the slot. It names the sandbox, and so the slot.
        before: Called before each scheduling of the activity; what it raises is raised.

    Returns:
        Reference of the future sandbox on the host that has the slot.

    Raises:
        HostGoneError: The host of `queue` is lost.
    """
    with pause_deadline(SLOT):
        return await _run(queue, temporal_names.WAIT_FOR_SLOT, wanted, None, before)


async def _provision(queue: str | None, wanted: ProvisionInput, limit: float, before: Callable[[], None]) -> SandboxRef:
    """Provision a sandbox on the host of `queue`, or on any for None. If no slot is free, wait for one, and retry."""
    place: SandboxRef | None = None
    while True:
        try:
            return await _run(
                place.queue if place is not None else queue, temporal_names.PROVISION, wanted, limit, before
            )
        except HostGoneError:
            if place is None:
                raise
            # The host was lost after it gave a slot: start again with `queue`, or any host.
            place = None
            continue
        except (asyncio.CancelledError, ActivityError) as error:
            if place is not None and is_cancelled_exception(error):
                # The activity may have been cancelled before a worker started it: then only this frees the slot.
                await run_to_end(tear_down(wanted.spec, place))
            cause = error.cause if isinstance(error, ActivityError) else None
            if not isinstance(cause, ApplicationError) or cause.type != HostFullError.__name__:
                raise
        place = await wait_for_slot(queue, wanted, before)


async def _run(
    queue: str | None, name: str, wanted: ProvisionInput, limit: float | None, before: Callable[[], None]
) -> SandboxRef:
    """Run an activity that returns the reference of a sandbox, on the host of `queue`, or on any for None."""
    summary = wanted.spec.run.sandbox
    place: SandboxRef
    if queue is not None:
        place = await run_on_host(queue, name, wanted, SandboxRef, limit, summary, before=before)
        return place
    before()
    limits = activity_options.make_shared_options(limit)
    place = await await_result(workflow.start_activity(name, wanted, result_type=SandboxRef, summary=summary, **limits))
    return place


async def tear_down(spec: RolloutSpec, sandbox: SandboxRef | None) -> None:
    """Remove a sandbox; None, or one that is gone, is success. A failure is logged, and left to the reaper.

    Args:
        spec: Specification of the rollout. If the job owns the sandbox, the rollout only leaves it.
        sandbox: The sandbox; None for none.
    """
    if sandbox is None:
        return
    try:
        await workflow.execute_activity(
            temporal_names.TEARDOWN,
            SandboxInput(spec=spec, sandbox=sandbox),
            **activity_options.make_host_options(
                sandbox.queue, total_sec=activity_options.get_options().teardown_total_sec
            ),
        )
    except ActivityError as error:
        # The reaper of that host removes it, by its labels, once this workflow is over.
        workflow.logger.warning("teardown failed: %s", error.cause)


async def _is_alive(queue: str) -> bool:
    """Return whether a worker of a host polls its task queue.

    A host may seem silent though it is not: after an outage of the network, or of the server, which knows only the
    polls since its start; and always, if the clock of the host that asks is ahead of the server's. So a silent host is
    checked again after a time in which it would have polled. It lives if it has polled meanwhile, whatever the clocks
    say.
    """
    silent_sec = activity_options.get_options().host_silent_sec
    first = await _poll_status(queue)
    if first.last_poll_sec is not None and first.last_poll_sec < silent_sec:
        return True
    await workflow.sleep(min(silent_sec, activity_options.get_options().host_start_timeout_sec))
    second = await _poll_status(queue)
    if second.last_poll is None or second.last_poll_sec is None:
        return False
    return second.last_poll_sec < silent_sec or second.last_poll != first.last_poll


async def _poll_status(queue: str) -> HostStatus:
    """Return when a worker of a host last polled."""
    status: HostStatus = await workflow.execute_activity(
        temporal_names.HOST_STATUS,
        HostQuery(queue=queue),
        result_type=HostStatus,
        **activity_options.make_shared_options(),
    )
    return status
