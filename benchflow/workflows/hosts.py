"""A rollout's sandbox on its host: provisioning, activities in it, teardown; and whether a silent host is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
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
    from benchflow.contracts.job import RolloutSpec
    from benchflow.contracts.rollout import Failure
    from benchflow.contracts.sandbox import SandboxRef
    from benchflow.sanitise import sanitised_markdown
    from benchflow.workflows import options, slots
    from benchflow.workflows.cancellation import result_of, to_the_end
    from benchflow.workflows.clock import Phases, waiting
    from benchflow.workflows.state import RolloutState


class HostLost(Exception):
    """The host of the sandbox does not answer: provision again."""


class RolloutSandbox:
    """The sandbox of a rollout: provisioned at a checkpoint, or from the task's image, and replaced by another one."""

    def __init__(self, state: RolloutState, phases: Phases) -> None:
        """Make it from the modules of one rollout, which all work on `state`."""
        self._state = state
        self._phases = phases
        self._generations = itertools.count()
        self._spec = state.spec
        self._keeps_results = False

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields that the inputs of all activities in the sandbox have."""
        return {"spec": self._spec, "sandbox": self._state.sandbox}

    async def run(
        self, name: str, arg: Any, result: Any, limit: float | None = None, summary: str | None = None
    ) -> Any:
        """Run an activity on the sandbox's host, unless the rollout is to stop. Arguments as in `on_host`."""
        sandbox = self._state.sandbox
        assert sandbox is not None
        return await on_host(sandbox.queue, name, arg, result, limit, summary, before=self._state.check_stop)

    def discard(self, *, keeps_results: bool) -> None:
        """Forget the sandbox, which is removed or lost.

        Args:
            keeps_results: Whether what the rollout has written so far stays its result in the next one.
        """
        self._state.sandbox = self._state.readied = None
        self._keeps_results = keeps_results

    async def provision(self, checkpoint: Checkpoint | None, replays: SessionBegin | None = None) -> None:
        """Provision a sandbox in place of the present one, if there is one, and wait until its world is ready.

        Args:
            checkpoint: What it starts from; None for the task's image.
            replays: Where the session began that is replayed in it.
        """
        state, plan, origin = self._state, self._state.plan, self._state.branch_origin
        if state.sandbox is not None:
            await tear_down(self._spec, state.sandbox)
        if origin is not None:
            self._spec = state.spec.model_copy(update={"branch": origin.model_copy(update={"replays": replays})})
        self._phases.begin("provision")
        await slots.current().hold()
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
            state.readied = await self.run(names.READINESS, ready, Readied | None, limit)
            state.warnings += state.readied.differences if state.readied is not None else ()

    async def lend_slot(self) -> None:
        """Let others have the slot of the sandbox, which stands still while children run elsewhere."""
        released = ReleaseInput(checkpoints=[], waiting=self._state.sandbox)
        await self.run(names.RELEASE_CHECKPOINT, released, None)

    async def unfreeze(self) -> None:
        """Let the sandbox work again that was frozen while its children ran, once there is a slot for it."""
        state = self._state
        assert state.sandbox is not None
        await slots.current().hold()
        wanted = ProvisionInput(spec=self._spec, run_id=state.run_id, generation=state.sandbox.generation)
        await wait_for_slot(state.sandbox.queue, wanted, state.check_stop)
        resumed = Resumed(**self.fields, session=state.session)
        await self.run(names.RELEASE_CHECKPOINT, ReleaseInput(checkpoints=[], resumed=resumed), None)


async def on_host(
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
    """Run an activity on the host of `queue` and return its result.

    Args:
        queue: The task queue of the host.
        name: The activity's name.
        arg: Its argument.
        result: The type of its result.
        limit: Seconds of one attempt, as in `options`.
        summary: What the Web UI shows beside its name, of any text its first 30 characters.
        total: Seconds of all attempts, as in `options`.
        before: Called whenever it is about to be scheduled.

    Raises:
        HostLost: Nobody takes it, and the host is silent.
    """
    # The server refuses a summary of more than 400 bytes, and a character may take twelve of them in JSON.
    shown = None if summary is None else sanitised_markdown(summary[:30])
    while True:
        before()
        try:
            limits = options.on_host(queue, limit, total_sec=total)
            return await result_of(workflow.start_activity(name, arg, result_type=result, summary=shown, **limits))
        except ActivityError as error:
            cause = error.cause
            waited = isinstance(cause, ActivityTimeout) and cause.type == TimeoutType.SCHEDULE_TO_START
            if not waited:
                raise
            if not await _lives(queue):
                raise HostLost("its host does not answer") from error


SLOT = "a slot"
"""For what a rollout waits while all hosts have as many sandboxes as they may."""


async def provision(
    wanted: ProvisionInput, near: Checkpoint | None, limit: float, *, before: Callable[[], None]
) -> SandboxRef:
    """Provision a sandbox on the host where `near` lies, if it is given, and on any other one where that host is lost.

    Args:
        wanted: What is to be provisioned.
        near: A checkpoint.
        limit: Seconds of one attempt.
        before: As in `on_host`.

    Raises:
        ApplicationError: The sandbox starts from a checkpoint that only a lost host has.
    """
    if near is not None:
        try:
            return await _provision(near.queue, wanted, limit, before)
        except HostLost as error:
            if wanted.checkpoint is not None and not wanted.checkpoint.is_portable:
                message = f"the state of {near.node} lies on the host {near.host_id}, which is lost"
                failure = Failure(
                    type="HostLostError",
                    category="sandbox_lost",
                    message=message,
                    key="branch.portable",
                    remedy="with portable checkpoints other hosts go on",
                )
                raise ApplicationError(message, failure) from error
    return await _provision(None, wanted, limit, before)


async def wait_for_slot(queue: str | None, wanted: ProvisionInput, before: Callable[[], None]) -> SandboxRef:
    """Wait for a slot on the host of `queue`, or on any, with the deadline's clock standing still.

    Returns where the sandbox is to be, in whose name the slot is taken then.
    """
    with waiting(SLOT):
        return await _run(queue, names.WAIT_FOR_SLOT, wanted, None, before)


async def _provision(queue: str | None, wanted: ProvisionInput, limit: float, before: Callable[[], None]) -> SandboxRef:
    """Provision a sandbox on the host of `queue`, or on any. Where its slots are taken, wait for one first."""
    place: SandboxRef | None = None
    while True:
        try:
            return await _run(place.queue if place is not None else queue, names.PROVISION, wanted, limit, before)
        except HostLost:
            if place is None:
                raise
            # Lost between its slot and the sandbox: any host will do again.
            place = None
            continue
        except (asyncio.CancelledError, ActivityError) as error:
            if place is not None and is_cancelled_exception(error):
                # Perhaps before a worker began with it: nothing else knows of the slot.
                await to_the_end(tear_down(wanted.spec, place))
            cause = error.cause if isinstance(error, ActivityError) else None
            if not isinstance(cause, ApplicationError) or cause.type != names.HOST_FULL:
                raise
        place = await wait_for_slot(queue, wanted, before)


async def _run(
    queue: str | None, name: str, wanted: ProvisionInput, limit: float | None, before: Callable[[], None]
) -> SandboxRef:
    """Run an activity that is to have a sandbox, on the host of `queue` or on any."""
    summary = wanted.spec.run.sandbox
    place: SandboxRef
    if queue is not None:
        place = await on_host(queue, name, wanted, SandboxRef, limit, summary, before=before)
        return place
    before()
    limits = options.shared(limit)
    place = await result_of(workflow.start_activity(name, wanted, result_type=SandboxRef, summary=summary, **limits))
    return place


async def tear_down(spec: RolloutSpec, sandbox: SandboxRef | None) -> None:
    """Remove the sandbox, if there is one."""
    if sandbox is None:
        return
    try:
        await workflow.execute_activity(
            names.TEARDOWN,
            SandboxInput(spec=spec, sandbox=sandbox),
            **options.on_host(sandbox.queue, total_sec=options.current().teardown_total_sec),
        )
    except ActivityError as error:
        # A worker of that host reaps it by its labels once this workflow is over.
        workflow.logger.warning("teardown failed: %s", error.cause)


async def _lives(queue: str) -> bool:
    """Return whether a host asks for work.

    After an outage of the server, which knows only the polls since its start, or of the network, every host seems to
    be silent at first; where the clock of whoever asks is ahead of the server's, always. So a silent one is asked for
    again when it had the time to poll, and lives if it has polled meanwhile, whatever the clocks say.
    """
    silent_sec = options.current().host_silent_sec
    first = await _status_of(queue)
    if first.last_poll_sec is not None and first.last_poll_sec < silent_sec:
        return True
    await workflow.sleep(min(silent_sec, options.current().host_start_timeout_sec))
    second = await _status_of(queue)
    if second.last_poll is None or second.last_poll_sec is None:
        return False
    return second.last_poll_sec < silent_sec or second.last_poll != first.last_poll


async def _status_of(queue: str) -> HostStatus:
    status: HostStatus = await workflow.execute_activity(
        names.HOST_STATUS, HostQuery(queue=queue), result_type=HostStatus, **options.shared()
    )
    return status
