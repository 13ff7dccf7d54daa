"""JobWorkflow: a sliding window over the rollouts of a job, of bounded history, whatever their number.

Rollouts are abandoned children that signal their end to the job's workflow id, which continue-as-new does not change.
A slow sweep polls the silent ones. All state that survives continue-as-new is in `JobInput`. The workflow never fails,
and ends with a row for each rollout: errors are logged and retried; one not started in `start_total_sec` is errored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import temporal_names
    from benchflow.contracts.activities import Batch, BatchInput
    from benchflow.contracts.error_limit import ErrorLimitDecision
    from benchflow.contracts.failures import failure_of
    from benchflow.contracts.job import (
        CancelRollout,
        JobInput,
        JobOutcome,
        JobProgress,
        OpenRollout,
        Retry,
        RolloutSpec,
        SetConcurrency,
    )
    from benchflow.contracts.lost_rollouts import LostGroup, LostRollout, merged, without
    from benchflow.contracts.rollout_records import Failure, RolloutOutcome
    from benchflow.contracts.slot_messages import SlotAccount
    from benchflow.errors import BenchFlowError
    from benchflow.workflows import activity_options
    from benchflow.workflows.backlog import Backlog
    from benchflow.workflows.closing import finish_job
    from benchflow.workflows.error_stop import ErrorStop
    from benchflow.workflows.job_details import format_job_details
    from benchflow.workflows.operator import format_rollout_summary, make_rollout_attributes, show
    from benchflow.workflows.slot_pool import SlotPool
    from benchflow.workflows.sweep import ANY_ATTEMPT, Sweep, is_of
    from benchflow.workflows.work_retries import WorkRetries
    from benchflow.workflows.workflow_cancellation import Cancellations, run_to_end
    from benchflow.workflows.workflow_failures import make_failure

RECENT = 20
"""Number of outcomes of either kind, final and retried, that the query `progress` returns."""


@workflow.defn(name=temporal_names.JOB_WORKFLOW)
class JobWorkflow:
    """Workflow of a job: starts its rollouts within a window, retries them, and writes the job's summary."""

    @workflow.init
    def __init__(self, job: JobInput) -> None:
        """Start from `job`: the submitted job, or the state that the last run carried across continue-as-new."""
        self._job = job
        self.options = job.options
        self._backlog = Backlog(job.pending, job.retries)
        self._open: dict[int, OpenRollout] = {rollout.index: rollout for rollout in job.open}
        self._lost: list[LostGroup] = list(job.lost)
        self._counts = job.counts
        self._concurrency = job.concurrency
        self._paused = job.paused
        self._cancelled = job.cancelled
        self._cancellations = Cancellations(
            job.to_cancel, self._open, lambda: self._cancelled, self.options.start_batch
        )
        self._given_up = job.given_up
        self._error_stop = ErrorStop(job.error_limit, self._give_up, answer_sec=self.options.answer_sec)
        self._recent: deque[RolloutOutcome] = deque(maxlen=RECENT)
        self._run_again: deque[RolloutOutcome] = deque(maxlen=RECENT)
        self._wake = 0
        self._failed_starts = dict(job.failed_starts)
        self._children: set[asyncio.Task[Any]] = set()
        total_sec = self.options.start_total_sec
        self._naming = WorkRetries(
            total_sec, self._has_to_act, lambda: True, timeouts_pass=True, since=job.naming_since
        )
        self._driving = WorkRetries(total_sec, lambda: self._cancelled)
        self._finishing = WorkRetries(self.options.report_total_sec, outlasts=lambda: not self._cancelled)
        self._slots = SlotPool(
            job.slots,
            self._open,
            lambda: 1 if job.one_at_a_time else self._concurrency,
            is_to_come=lambda index: not self._starts_nothing and self._backlog.has(index),
            on_change=self._note_change,
        )
        self._sweep = Sweep(
            job, self._open, self.rollout_done, self._close_rollout, outlasts=lambda: not self._cancelled
        )

    @workflow.run
    async def run(self, job: JobInput) -> JobOutcome:
        """Run the job until all rollouts have ended, and write its summary. Return its counts and lost rollouts."""
        self._beside = asyncio.gather(self._sweep.run(), self._slots.run(), return_exceptions=True)
        try:
            # Not passed on to activities and child starts, which may swallow a cancellation: `_drive` checks the flag.
            await run_to_end(self._drive_to_end(), self._handle_cancel)
            await run_to_end(self._end(), self._handle_cancel)
        except Exception:
            workflow.logger.exception("the job's workflow has a defect; what it left undone is errored")
            await run_to_end(self._end(), self._handle_cancel)
        self._show()
        return JobOutcome(id=job.id, counts=self._counts, not_started=self._backlog.n_unstarted, lost=self._lost)

    def _handle_cancel(self) -> None:
        self._cancelled = True
        self._note_change()

    def _note_change(self) -> None:
        self._wake += 1

    # --- signals and queries -----------------------------------------------------------------------------

    @workflow.signal(name=temporal_names.ROLLOUT_DONE)
    def rollout_done(self, outcome: RolloutOutcome) -> None:
        """Take the outcome that a rollout reports. Idempotent: ignored unless this attempt of the rollout is open."""
        known = self._open.get(outcome.index)
        if known is not None and is_of(outcome, known):
            self._close_rollout(outcome, LostRollout(index=known.index, attempt=known.attempt, run_id=known.run_id))

    def _close_rollout(self, outcome: RolloutOutcome, lost: LostRollout) -> None:
        """Close an open rollout: count its outcome or schedule its retry. `lost` names its row, if it has no result."""
        del self._open[outcome.index]
        self._slots.drop(outcome.index)
        self._wake += 1
        self._lost = without(self._lost, outcome.index)
        if outcome.directory is None and outcome.pack is None:
            # Even if it is retried: the retry may never start, and this attempt needs a row then.
            failure = outcome.error or failure_of(BenchFlowError("there is no result"))
            self._lost = merged(self._lost, LostGroup(failure=failure, rollouts=[lost]))
        is_final = self._starts_nothing or self._cancellations.has(outcome.id) or not self._job.retry.allows(outcome)
        if not is_final:
            not_before = workflow.time() + self._job.retry.wait(outcome.attempt)
            self._backlog.add_retry(outcome.index, outcome.attempt + 1, not_before)
            self._run_again.append(outcome)
            return
        self._cancellations.forget(outcome.id)
        self._counts = self._counts.plus(outcome, self._job.agent_of(outcome.index))
        self._recent.append(outcome)
        self._error_stop.add(outcome)
        self._show()

    @workflow.signal(name=temporal_names.SLOTS)
    def note_slots(self, account: SlotAccount) -> None:
        """Update the slot account of a rollout that branches. Idempotent: an account holds totals."""
        self._slots.note(account)

    @workflow.signal(name=temporal_names.PAUSE)
    def pause(self) -> None:
        """Pause the job: start no further rollouts until it is resumed. Running ones continue."""
        self._paused = True

    @workflow.signal(name=temporal_names.RESUME)
    def resume(self) -> None:
        """Resume the job after a pause."""
        self._paused = False
        self._wake += 1

    @workflow.signal(name=temporal_names.SET_CONCURRENCY)
    def set_concurrency(self, wanted: SetConcurrency) -> None:
        """Set the maximum number of sandboxes at a time. Running ones beyond it are not stopped."""
        self._concurrency = wanted.concurrency
        self._wake += 1

    @workflow.signal(name=temporal_names.CANCEL_ROLLOUT)
    def cancel_rollout(self, wanted: CancelRollout) -> None:
        """Cancel a rollout now, or as soon as it runs. It is not retried."""
        self._cancellations.request(wanted.id, limit=self._job.total)
        self._wake += 1

    @workflow.signal(name=temporal_names.DECIDE_TO_CONTINUE)
    def decide_to_continue(self, decision: ErrorLimitDecision) -> None:
        """Take a user's decision whether the job continues after equal errors. Ignored if none is awaited."""
        self._error_stop.decide(decision)
        self._wake += 1

    @workflow.query(name=temporal_names.PROGRESS)
    def progress(self) -> JobProgress:
        """Return the job's counts, open rollouts and settings."""
        return JobProgress(
            id=self._job.id,
            name=self._job.name,
            total=self._job.total,
            counts=self._counts,
            open_count=len(self._open),
            open=[rollout.id for rollout in self._open.values()][:50],
            waiting=len(self._backlog),
            concurrency=self._concurrency,
            paused=self._paused,
            cancelled=self._cancelled,
            recent=list(self._recent),
            run_again=list(self._run_again),
            asked=self._error_stop.asked,
            trouble=self._naming.trouble or self._driving.trouble or self._finishing.trouble,
        )

    # --- the window --------------------------------------------------------------------------------------

    async def _drive_to_end(self) -> None:
        """Run `_drive` until all rollouts have ended. Errors are retried; after `start_total_sec` of them, give up."""
        while self._is_unfinished():
            before = (self._counts, len(self._open), self._backlog.n_unstarted)
            try:
                await self._drive()
            except Exception as error:
                workflow.logger.exception("the job's window failed")
                if before != (self._counts, len(self._open), self._backlog.n_unstarted):
                    self._driving.reset()
                if await self._driving.wait("window", error):
                    continue
                if self._starts_nothing:
                    return  # `_end` waits for the open rollouts.
                self._give_up(make_failure(error, "plan"))

    async def _drive(self) -> None:
        """Start and cancel rollouts until all have ended; continue as new, with rollouts open, at a long history."""
        while self._is_unfinished():
            seen = self._wake
            self._error_stop.settle(n_open=len(self._open), has_more=self._has_more)
            await self._cancellations.send()
            # While rollouts end as fast as they are started, only the history's length ends this.
            while self._has_room() and not self._must_continue_as_new():
                await self._name_next()
                count = min(self._slots.n_free_for_roots, len(self._backlog.named)) if self._has_room() else 0
                if count <= 0:
                    break
                named = [self._backlog.named.popleft() for _ in range(count)]
                await asyncio.gather(*(asyncio.create_task(self._start(spec)) for spec in named))
            if self._must_continue_as_new():
                await workflow.wait_condition(workflow.all_handlers_finished)
                await self._slots.close()
                workflow.continue_as_new(self._make_next_input())
            if self._is_unfinished() and not self._cancellations.list_unsent():
                await self._wait(seen)

    @property
    def _starts_nothing(self) -> bool:
        return self._cancelled or self._given_up

    @property
    def _has_more(self) -> bool:
        return len(self._backlog) > 0 and not self._starts_nothing

    def _is_unfinished(self) -> bool:
        return bool(self._open) or self._has_more

    def _has_room(self) -> bool:
        return self._has_more and not (self._paused or self._error_stop.holds) and self._slots.n_free_for_roots > 0

    async def _wait(self, seen: int) -> None:
        """Wait until `_wake` differs from `seen`, a retry or the user's answer is due, or the history is long."""
        due = min((retry.not_before for retry in self._backlog.retries), default=None)
        due = self._error_stop.asked_until or (due if self._has_room() else None)
        timeout = max(0.01, due - workflow.time()) if due is not None else None
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._wake != seen or self._must_continue_as_new(), timeout=timeout)

    async def _name_next(self) -> None:
        """Request the specifications of the next rollouts, if none is named: of due retries, else of pending ones."""
        if self._backlog.named:
            return
        count = min(self._slots.n_free_for_roots, self.options.start_batch)
        due, indices = self._backlog.peek(workflow.time(), count, self.options.start_batch)
        if not indices:
            return
        run_id = workflow.info().first_execution_run_id
        same = {name: getattr(self._job, name) for name in ("spec", "origin")}
        wanted = BatchInput(job_id=self._job.id, job_name=self._job.name, indices=indices, run_id=run_id, **same)
        try:
            batch: Batch = await self._naming.execute(temporal_names.NAME_ROLLOUTS, wanted, Batch)
        except Exception as error:
            workflow.logger.error("rollouts can't be named: %s", error)
            if not self._has_to_act():
                self._lose(make_failure(error, "plan"), due, [] if due else indices)
            return
        self._backlog.add_named(due, batch.rollouts)

    async def _start(self, spec: RolloutSpec) -> None:
        self._open[spec.index] = OpenRollout(index=spec.index, attempt=spec.attempt, id=spec.id)
        try:
            child = await workflow.start_child_workflow(
                temporal_names.ROLLOUT_WORKFLOW,
                spec,
                id=spec.id,
                task_queue=activity_options.SHARED_QUEUE,
                parent_close_policy=ParentClosePolicy.ABANDON,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                run_timeout=spec.run_timeout,
                search_attributes=TypedSearchAttributes(make_rollout_attributes(spec)),
                static_summary=format_rollout_summary(spec),
            )
        except WorkflowAlreadyStartedError:
            self._handle_running(spec)
        except Exception as error:
            self._fail_start(spec, error)
        else:
            self._slots.drop(spec.index)
            self._children.add(child)
            child.add_done_callback(self._drop_child)
            self._confirm(spec, {"run_id": child.first_execution_run_id or ""})

    def _confirm(self, spec: RolloutSpec, update: dict[str, Any]) -> None:
        """Record that a rollout's workflow exists, so that sweeps poll it, unless it has reported already."""
        self._failed_starts.pop(spec.index, None)
        known = self._open.get(spec.index)
        if known is not None and known.attempt == spec.attempt:
            self._open[spec.index] = known.model_copy(update={"since": workflow.time()} | update)

    def _drop_child(self, child: asyncio.Task[Any]) -> None:
        """Drop the handle of a closed child. Its error is read so that asyncio logs none as "never retrieved"."""
        self._children.discard(child)
        if not child.cancelled():
            child.exception()

    def _handle_running(self, spec: RolloutSpec) -> None:
        """Handle a start whose workflow id is in use: try a later attempt again soon, or adopt a first one as open."""
        if spec.attempt > 1:
            # The previous attempt has reported its outcome, and its workflow is about to close.
            self._sweep.await_end(spec.id)
            self._open.pop(spec.index, None)
            not_before = workflow.time() + max(0.1, self._job.retry.wait(spec.attempt))
            self._backlog.add_retry(spec.index, spec.attempt, not_before)
            return
        # From before this job was started again. Whichever attempt it is, it signals its outcome to this job.
        workflow.logger.info("rollout %s runs already", spec.id)
        self._confirm(spec, {"attempt": ANY_ATTEMPT})

    def _fail_start(self, spec: RolloutSpec, error: Exception) -> None:
        """Schedule another start of a rollout that failed to start; after `start_total_sec`, count it as errored."""
        workflow.logger.warning("rollout %s could not be started: %s", spec.id, error)
        self._open.pop(spec.index, None)
        now = workflow.time()
        since, failures = self._failed_starts.get(spec.index, (now, 0))
        self._failed_starts[spec.index] = (since, failures + 1)
        not_before = now + max(0.1, self._job.retry.wait(failures + 1))
        retry = self._backlog.add_retry(spec.index, spec.attempt, not_before)
        if failures > 0 and now - since >= self.options.start_total_sec:
            self._lose(make_failure(error, "plan"), [retry], [])

    def _lose(self, failure: Failure, retries: list[Retry], spans: list[tuple[int, int]]) -> None:
        """Count retries and pending `spans` as errored. Those without an attempt so far get a row at the job's end."""
        number, never = self._backlog.drop(retries, spans)
        if never:
            self._lost = merged(self._lost, LostGroup(failure=failure, unstarted=never))
        unstarted = sum(end - first for first, end in never) if failure.category == "not_started" else 0
        self._counts = self._counts.plus_lost(unstarted, "not_started").plus_lost(number - unstarted)
        self._wake += 1
        self._show()

    def _give_up(self, failure: Failure) -> None:
        """Start nothing more, and count all rollouts that have not started as errored by `failure`."""
        self._given_up = True
        self._backlog.requeue_named(workflow.time())
        self._lose(failure, self._backlog.retries, list(self._backlog.pending))

    def _must_continue_as_new(self) -> bool:
        info = workflow.info()
        return info.is_continue_as_new_suggested() or info.get_current_history_length() > self.options.history_limit

    def _has_to_act(self) -> bool:
        """Return whether a cancellation or continue-as-new is due, which ends the retries of a failing activity."""
        return self._cancelled or bool(self._cancellations.list_unsent()) or self._must_continue_as_new()

    def _make_next_input(self) -> JobInput:
        """Return the input of the next run, for continue-as-new."""
        self._backlog.requeue_named(workflow.time())
        return self._job.model_copy(
            update={
                "pending": list(self._backlog.pending),
                "open": list(self._open.values()),
                "retries": self._backlog.retries,
                "lost": self._lost,
                "counts": self._counts,
                "paused": self._paused,
                "concurrency": self._concurrency,
                "cancelled": self._cancelled,
                "given_up": self._given_up,
                "to_cancel": self._cancellations.requested,
                "failed_starts": self._failed_starts,
                "naming_since": self._naming.since,
                "slots": self._slots.accounts,
                "sweep": self._sweep.make_state(),
                "error_limit": self._error_stop.limit,
            }
        )

    # --- the end -----------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Wait for open rollouts and write the summary. Errors are logged: `bench results` writes the summary again."""
        try:
            if self._is_unfinished() and not self._starts_nothing:
                self._give_up(failure_of(BenchFlowError("the job's workflow has a defect")))
            while self._open:
                # Only after an unexpected error in `_drive`: otherwise nothing is open by now.
                await self._cancellations.send()
                await workflow.wait_condition(lambda seen=self._wake: self._wake != seen)  # type: ignore[misc]
        except Exception:
            workflow.logger.exception("not every rollout was waited for")
        if self._cancelled:
            self._counts = self._counts.plus_lost(self._backlog.drop_attempted(workflow.time()))
        self._beside.cancel()
        try:
            # A task, so that the sweep's timer is cancelled first: replays need the order that histories have recorded.
            await asyncio.create_task(finish_job(self._job, self._lost, self._finishing, self._children))
        except Exception as error:
            workflow.logger.error("the summary could not be written: %s", error)

    def _show(self) -> None:
        show(lambda: format_job_details(self._job, self._counts, len(self._open), self._recent))
