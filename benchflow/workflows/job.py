"""JobWorkflow: a sliding window over the rollouts of a job, of bounded history, whatever their number.

Rollouts are abandoned children that tell the job when they are done; the job continues as new and still hears
them, because they signal its workflow id. One that stays silent is asked after by a slow sweep.
All state that survives continue-as-new is in `JobInput`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from temporalio import workflow
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import (
    ActivityError,
    FailureError,
    WorkflowAlreadyStartedError,
)
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.activities import Batch, BatchInput, FinishJob, LostRollout, OpenRollouts, RolloutStates
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
    from benchflow.contracts.rollout import Failure, RolloutOutcome
    from benchflow.workflows import options
    from benchflow.workflows.cancellation import to_the_end
    from benchflow.workflows.operator import rollout_attributes, rollout_summary

RECENT = 20
ANY_ATTEMPT = 0
"""In place of an attempt's number: the workflow was running when this job wanted to start it."""


@workflow.defn(name=names.JOB_WORKFLOW)
class JobWorkflow:
    @workflow.init
    def __init__(self, job: JobInput) -> None:
        self._job = job
        self.options = job.options
        self._pending = deque(tuple(span) for span in job.pending)
        self._open: dict[int, OpenRollout] = {rollout.index: rollout for rollout in job.open}
        self._retries: list[Retry] = list(job.retries)
        self._counts = job.counts
        self._concurrency = job.concurrency
        self._paused = job.paused
        self._cancelled = job.cancelled
        self._named: deque[RolloutSpec] = deque()
        self._coming = 0  # taken from the pending and from the retries, and being named
        self._recent: deque[RolloutOutcome] = deque(maxlen=RECENT)
        self._wake = 0
        self._to_cancel: list[str] = []
        self._children: set[asyncio.Task[Any]] = set()

    @workflow.run
    async def run(self, job: JobInput) -> JobOutcome:
        sweep = asyncio.create_task(self._sweep_forever())
        drive = asyncio.create_task(self._drive())
        try:
            await workflow.wait([drive])
        except asyncio.CancelledError:
            # Not passed on: what an activity or a child's start does with a cancellation is theirs to decide, and
            # they may drop it. The window sees the flag before it starts anything more.
            self._cancelled = True
            self._wake += 1
        await to_the_end(drive)
        if self._cancelled:
            await to_the_end(self._cancel_open())
        sweep.cancel()
        not_started = self._unstarted()
        await to_the_end(self._finish())
        workflow.set_current_details(self._details())
        return JobOutcome(id=job.id, counts=self._counts, not_started=not_started)

    async def _finish(self) -> None:
        job = self._job
        run = workflow.info().first_execution_run_id
        finish = FinishJob(job_id=job.id, job_name=job.name, spec=job.spec, origin=job.origin, run_id=run)
        limits = options.shared(total_sec=self.options.report_total_sec)
        try:
            await workflow.execute_activity(names.FINISH_JOB, finish, **limits)
        except ActivityError as error:
            # Every rollout's own files are there; `bench results` computes the summary again.
            workflow.logger.error("the summary could not be written: %s", error.cause)
        if self._children:
            # The last ones have reported and are about to close. An event of theirs that arrives while the job
            # completes would make its last workflow task fail and run again.
            await workflow.wait(list(self._children), timeout=self.options.closing_sec)

    # --- signals and queries -----------------------------------------------------------------------------

    @workflow.signal(name=names.ROLLOUT_DONE)
    def rollout_done(self, outcome: RolloutOutcome) -> None:
        """Idempotent: what is not open, or is another attempt, was heard before."""
        known = self._open.get(outcome.index)
        if known is None or not _is_of(outcome, known):
            return
        del self._open[outcome.index]
        self._wake += 1
        wait = self._retry_wait(outcome)
        if wait is not None:
            not_before = workflow.time() + wait
            self._retries.append(Retry(index=outcome.index, attempt=outcome.attempt + 1, not_before=not_before))
            return
        self._counts = self._counts.plus(outcome)
        self._recent.append(outcome)
        workflow.set_current_details(self._details())

    @workflow.signal(name=names.PAUSE)
    def pause(self) -> None:
        """Start no further rollout; those that run go on."""
        self._paused = True

    @workflow.signal(name=names.RESUME)
    def resume(self) -> None:
        self._paused = False
        self._wake += 1

    @workflow.signal(name=names.SET_CONCURRENCY)
    def set_concurrency(self, wanted: SetConcurrency) -> None:
        self._concurrency = wanted.concurrency
        self._wake += 1

    @workflow.signal(name=names.CANCEL_ROLLOUT)
    def cancel_rollout(self, wanted: CancelRollout) -> None:
        self._to_cancel.append(wanted.id)
        self._wake += 1

    @workflow.query(name=names.PROGRESS)
    def progress(self) -> JobProgress:
        return JobProgress(
            id=self._job.id,
            name=self._job.name,
            total=self._job.total,
            counts=self._counts,
            open_count=len(self._open),
            open=[rollout.id for rollout in self._open.values()][:50],
            waiting=self._unstarted() + len(self._retries) + self._coming,
            concurrency=self._concurrency,
            paused=self._paused,
            cancelled=self._cancelled,
            recent=list(self._recent),
        )

    # --- the window --------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        while self._goes_on():
            seen = self._wake
            await self._cancel_named()
            # While rollouts end as fast as they are started, only the history's length ends this.
            while self._has_room() and not self._must_continue_as_new():
                specs = await self._next_specs(min(self._room(), self.options.start_batch))
                if not specs:
                    break
                await asyncio.gather(*(self._start(spec) for spec in specs))
            if self._must_continue_as_new():
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(self._carry())
            if self._goes_on():
                await self._wait(seen)

    def _goes_on(self) -> bool:
        return not self._cancelled and bool(self._open or self._retries or self._pending or self._named)

    def _room(self) -> int:
        """How many rollouts may be started now."""
        window = 1 if self._job.one_at_a_time else self._concurrency
        return window - len(self._open)

    def _has_room(self) -> bool:
        return self._goes_on() and not self._paused and self._room() > 0

    async def _wait(self, seen: int) -> None:
        """Until something happened, or the next retry is due."""
        due = min((retry.not_before for retry in self._retries), default=None)
        timeout = max(0.01, due - workflow.time()) if due is not None and self._has_room() else None
        try:
            await workflow.wait_condition(lambda: self._wake != seen, timeout=timeout)
        except TimeoutError:
            return

    async def _start(self, spec: RolloutSpec) -> None:
        self._open[spec.index] = OpenRollout(index=spec.index, attempt=spec.attempt, id=spec.id, since=workflow.time())
        try:
            child = await workflow.start_child_workflow(
                names.ROLLOUT_WORKFLOW,
                spec,
                id=spec.id,
                task_queue=options.SHARED_QUEUE,
                parent_close_policy=ParentClosePolicy.ABANDON,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                search_attributes=TypedSearchAttributes(rollout_attributes(spec)),
                static_summary=rollout_summary(spec),
            )
            self._children.add(child)
            child.add_done_callback(self._child_closed)
        except WorkflowAlreadyStartedError:
            self._meet_running(spec)

    def _child_closed(self, child: asyncio.Task[Any]) -> None:
        """How it ended was told by the rollout itself; asked for here only so that no log says that nobody did."""
        self._children.discard(child)
        if not child.cancelled():
            child.exception()

    def _meet_running(self, spec: RolloutSpec) -> None:
        """A workflow of this rollout runs already."""
        if spec.attempt > 1:
            # The attempt before has told us how it ended, and is about to be over.
            del self._open[spec.index]
            not_before = workflow.time() + max(0.1, self._job.retry.wait(spec.attempt))
            self._retries.append(Retry(index=spec.index, attempt=spec.attempt, not_before=not_before))
            return
        # From before this job was started anew; whichever attempt it is, it will tell us when it is done.
        workflow.logger.info("rollout %s runs already", spec.id)
        self._open[spec.index] = self._open[spec.index].model_copy(update={"attempt": ANY_ATTEMPT})

    async def _next_specs(self, count: int) -> list[RolloutSpec]:
        """The next rollouts that may start now, at most `count`: retries that are due, then new ones."""
        due = [retry for retry in self._retries if retry.not_before <= workflow.time()][:count]
        specs = []
        for retry in due:
            self._retries.remove(retry)
            self._coming += 1
            named = await self._name([(retry.index, retry.index + 1)])
            specs.append(named[0].model_copy(update={"attempt": retry.attempt}))
        if len(specs) < count and not self._named and self._pending:
            taken = self._take(self.options.start_batch)
            self._coming += sum(end - first for first, end in taken)
            named = await self._name(taken)
            self._named.extend(named)
            self._put_back(taken, len(named))
        self._coming = 0
        while len(specs) < count and self._named:
            specs.append(self._named.popleft())
        return specs

    async def _name(self, indices: list[tuple[int, int]]) -> list[RolloutSpec]:
        job = self._job
        batch: Batch = await workflow.execute_activity(
            names.NAME_ROLLOUTS,
            BatchInput(
                job_id=job.id,
                job_name=job.name,
                spec=job.spec,
                origin=job.origin,
                indices=indices,
                run_id=workflow.info().first_execution_run_id,
            ),
            result_type=Batch,
            **options.shared(),
        )
        return batch.rollouts

    def _put_back(self, taken: list[tuple[int, int]], used: int) -> None:
        """Return to the pending ranges what is left of those that were taken, after the first `used` indices."""
        left: list[tuple[int, int]] = []
        for first, end in taken:
            skipped = min(used, end - first)
            used -= skipped
            if first + skipped < end:
                left.append((first + skipped, end))
        self._pending.extendleft(reversed(left))

    def _take(self, count: int) -> list[tuple[int, int]]:
        """Take the next `count` indices off the pending ranges."""
        taken: list[tuple[int, int]] = []
        while count > 0 and self._pending:
            first, end = self._pending.popleft()
            split = min(end, first + count)
            taken.append((first, split))
            count -= split - first
            if split < end:
                self._pending.appendleft((split, end))
        return taken

    def _unstarted(self) -> int:
        return len(self._named) + sum(end - first for first, end in self._pending)

    def _retry_wait(self, outcome: RolloutOutcome) -> float | None:
        """Seconds until this rollout is run again; None when its outcome stands."""
        failure = outcome.error or outcome.verifier_error
        config = self._job.retry
        if outcome.status != "errored" or failure is None or self._cancelled:
            return None
        if failure.category not in config.categories or outcome.attempt > config.max_retries:
            return None
        return config.wait(outcome.attempt)

    # --- continue as new ---------------------------------------------------------------------------------

    def _must_continue_as_new(self) -> bool:
        info = workflow.info()
        return info.is_continue_as_new_suggested() or info.get_current_history_length() > self.options.history_limit

    def _carry(self) -> JobInput:
        named = [(spec.index, spec.index + 1) for spec in self._named]
        return self._job.model_copy(
            update={
                "pending": named + list(self._pending),
                "open": list(self._open.values()),
                "retries": self._retries,
                "counts": self._counts,
                "paused": self._paused,
                "concurrency": self._concurrency,
                "cancelled": self._cancelled,
            }
        )

    # --- cancel, and the silent --------------------------------------------------------------------------

    async def _cancel_named(self) -> None:
        while self._to_cancel:
            await self._cancel_one(self._to_cancel.pop())

    async def _cancel_open(self) -> None:
        """Cancel what is open and wait until each has reported; the sweep hears of those that cannot."""
        for rollout in list(self._open.values()):
            await self._cancel_one(rollout.id)
        self._retries = []
        await workflow.wait_condition(lambda: not self._open)

    async def _cancel_one(self, rollout_id: str) -> None:
        try:
            await workflow.get_external_workflow_handle(rollout_id).cancel()
        except FailureError as error:
            workflow.logger.info("rollout %s could not be cancelled: %s", rollout_id, error)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self.options.sweep_every_sec)
            old = workflow.time() - self.options.sweep_after_sec
            silent = [rollout for rollout in self._open.values() if rollout.since < old]
            for start in range(0, len(silent), self.options.sweep_batch):
                try:
                    await self._sweep(silent[start : start + self.options.sweep_batch])
                except ActivityError as error:
                    workflow.logger.warning("the sweep will be tried again: %s", error.cause)

    async def _sweep(self, silent: list[OpenRollout]) -> None:
        states: RolloutStates = await workflow.execute_activity(
            names.ROLLOUT_STATES,
            OpenRollouts(ids=[rollout.id for rollout in silent]),
            result_type=RolloutStates,
            **options.shared(),
        )
        for rollout, state in zip(silent, states.states, strict=True):
            if state.status == "running" or rollout.index not in self._open:
                continue
            outcome = state.outcome
            if outcome is None or not _is_of(outcome, rollout):
                outcome = await self._report_lost(rollout, state.status)
            self.rollout_done(outcome)

    async def _report_lost(self, rollout: OpenRollout, status: str) -> RolloutOutcome:
        """The row of a rollout whose workflow ended without a word, e.g. because it was terminated."""
        spec = (await self._name([(rollout.index, rollout.index + 1)]))[0]
        spec = spec.model_copy(update={"attempt": max(1, rollout.attempt)})
        failure = Failure(
            type="RolloutTerminatedError",
            category="terminated",
            message=f"the rollout's workflow ended without a result: {status}",
            retryable=True,
        )
        outcome: RolloutOutcome = await workflow.execute_activity(
            names.REPORT_LOST,
            LostRollout(spec=spec, failure=failure),
            result_type=RolloutOutcome,
            **options.shared(),
        )
        return outcome

    # --- what an operator sees ---------------------------------------------------------------------------

    def _details(self) -> str:
        counts = self._counts
        mean = f"{counts.reward_sum / counts.rewarded:.3f}" if counts.rewarded else "–"
        lines = [
            f"**{self._job.name}**: {counts.finished} of {self._job.total} done, "
            f"{len(self._open)} running, mean reward {mean}",
            "",
            f"{counts.passed} passed · {counts.failed} failed · {counts.errored} errored · "
            f"{counts.cancelled} cancelled",
            "",
            "| rollout | status | reward | seconds |",
            "|---|---|---|---|",
        ]
        for outcome in self._recent:
            reward = f"{outcome.rewards['reward']:g}" if outcome.rewards else "–"
            if outcome.rewards and outcome.reward_kind == "value":
                reward = f"V {reward}"
            name = outcome.id.partition("/r/")[2]
            lines.append(f"| `{name}` | {outcome.status} | {reward} | {outcome.seconds:.1f} |")
        return "\n".join(lines)


def _is_of(outcome: RolloutOutcome, rollout: OpenRollout) -> bool:
    return rollout.attempt in (ANY_ATTEMPT, outcome.attempt)


def job_attributes(name: str) -> TypedSearchAttributes:
    """The search attributes that a job's workflow starts with."""
    return TypedSearchAttributes([SearchAttributePair(SearchAttributeKey.for_keyword(names.ATTR_JOB), name)])
