"""The end of a rollout, whatever became of it: its result is written, its sandbox is removed, its job is notified."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import names
    from benchflow.contracts.activities import ReportInput, ReportResult
    from benchflow.contracts.branch import ChildOutcome
    from benchflow.contracts.rewards import combine_steps, is_measured, scalar_of, status_of
    from benchflow.contracts.rollout import TRUNCATING, Failure, RolloutOutcome, RolloutTree
    from benchflow.workflows import options, slots
    from benchflow.workflows.cancellation import result_of
    from benchflow.workflows.checkpoints import release, retain
    from benchflow.workflows.children import bare_outcome, child_outcome, no_return
    from benchflow.workflows.clock import Phases
    from benchflow.workflows.failures import failure_from
    from benchflow.workflows.hosts import on_host, tear_down
    from benchflow.workflows.state import RolloutState


class Ending:
    """Reports, tears down, and notifies the job or the parent: each of them although one before it raised.

    A result is written on the sandbox's host, and elsewhere where that host can't. An outage is waited for, however
    long it lasts: what was measured would be lost. Of a cancelled rollout nothing was measured; `report_total_sec`
    limits each of the two ways.
    """

    def __init__(self, state: RolloutState, phases: Phases) -> None:
        """Make it from the modules of one rollout, which all work on `state`."""
        self._state = state
        self._phases = phases
        self._started = workflow.now()
        self._writing: asyncio.Task[ReportResult] | None = None
        self._is_hurried = False

    def hurry(self) -> None:
        """End the collecting of what is in the sandbox, and the waiting. What there is by then is written."""
        self._is_hurried = True
        if self._writing is not None:
            self._writing.cancel()

    async def end(self, *, lost: Collection[str], is_resumable: bool) -> RolloutOutcome | ChildOutcome:
        """End the rollout, and return its outcome.

        Args:
            lost: Queues of the hosts that it has lost.
            is_resumable: Whether other rollouts may start from its nodes.
        """
        state, spec = self._state, self._state.spec
        rewards: dict[str, float] | None = None
        verifier_error: Failure | None = None
        n_tool_calls, is_frozen = 0, False
        with self._continuing():
            # Whoever cancels does not wait until there is a slot to look into the sandbox.
            is_frozen = not await slots.current().hold(lambda: state.is_cancelled or self._is_hurried)
        with self._continuing():
            rewards, verifier_error = self._measured()
            n_tool_calls = state.n_tool_calls
        rewards = None if state.is_cancelled else rewards
        with self._continuing():
            self._phases.enter("report", rewards)
            self._phases.on_update()
        least = ReportInput(
            spec=spec,
            run_id=state.run_id,
            sandbox=state.sandbox,
            status="cancelled" if state.is_cancelled else status_of(rewards),
            rewards=rewards,
            error=state.error,
            verifier_error=verifier_error,
            n_tool_calls=n_tool_calls,
            is_frozen=is_frozen,
            started_at=self._started.timestamp(),
            generations=state.provisions,
            keeps_result=state.is_restarting,
        )
        if state.is_restarting and state.sandbox is None:
            report, unwritten = ReportResult(is_kept=True), None
        else:
            report, unwritten = await self._report(least)
        if report.is_kept:
            # A roll-back after its end that is not carried out leaves the result as it was.
            report = report.model_copy(update={"directory": f"{spec.origin.job_dir}/{spec.name}"})
            unwritten = unwritten or state.error
        # What raises from now on leaves no trace in the result: it is written.
        status, error = least.status, state.error or unwritten
        if unwritten is not None and rewards is not None:
            # A score counts with the result that shows where it came from.
            status, rewards, error, state.value = "errored", None, unwritten, None
        with self._continuing():
            await workflow.wait_condition(workflow.all_handlers_finished)
        with self._continuing():
            self._phases.enter("teardown")
        retained = [*state.retained, *state.release_at_end]
        if state.keeps_checkpoints:
            if not report.is_kept:
                await self._try_twice(lambda: retain(state, lost=lost))
        elif spec.branch is None or state.is_cancelled:
            # A child that was cancelled hands nothing to its parent.
            await self._try_twice(lambda: release([*retained, *state.retained_below], lost=lost))
        await self._try_twice(lambda: tear_down(spec, state.sandbox))
        await self._try_twice(slots.current().close)
        with self._continuing():
            self._phases.enter("done")
            self._phases.on_update()
        outcome = RolloutOutcome(
            id=spec.id,
            index=spec.index,
            attempt=spec.attempt,
            status=status,
            rewards=rewards,
            reward_kind="measured" if state.value is None else "value",
            error=error,
            verifier_error=verifier_error,
            is_truncated=error is not None and error.category in TRUNCATING,
            n_tool_calls=n_tool_calls,
            directory=report.directory,
            pack=report.pack,
            seconds=(workflow.now() - self._started).total_seconds(),
        )
        if spec.branch is None:
            await self._try_twice(lambda: self._notify_job(outcome))
            return outcome
        with self._continuing():
            return child_outcome(spec.branch, state, outcome, retained, has_steps=is_resumable)
        return bare_outcome(spec.branch, outcome, retained)

    @contextmanager
    def _continuing(self) -> Iterator[None]:
        """Record an error that is raised inside as the rollout's, unless it has one, and continue after the block."""
        try:
            yield
        except Exception as error:
            workflow.logger.exception("the rollout's end continues after a fault of the engine")
            self._state.error = self._state.error or failure_from(error, self._phases.phase)

    async def _try_twice(self, part: Callable[[], Awaitable[None]]) -> None:
        """Do a part of the end, once more where it raises."""
        for _ in range(2):
            with self._continuing():
                return await part()

    def _measured(self) -> tuple[dict[str, float] | None, Failure | None]:
        """Return the rewards, or how a verifier failed."""
        state = self._state
        scored = state.agentless
        if scored is not None and scored.outcome is not None:
            failure = combine_steps(state.steps, state.plan.strategy, None)[1] if scored.rewards is None else None
            return scored.rewards, failure
        if state.value is not None:
            # What a part of the children is worth is no value where the engine, or somebody's wish, ended the others.
            value = None if state.pending and not is_measured(state.error) else state.value.value
            if value is None and state.error is None:
                state.error = no_return(state.outcomes)
            return (None if value is None else {"reward": value}), None
        if not state.own_steps:
            # What led to where a child begins is its parent's.
            return None, None
        # Once the last step was scored, only an error of the work itself can have a say: the rewards are measured.
        error = state.agent_failure if state.has_ended else state.error
        return combine_steps(state.steps, state.plan.strategy, error)

    # --- the report -----------------------------------------------------------------------------------------

    async def _report(self, least: ReportInput) -> tuple[ReportResult, Failure | None]:
        """Write all that is known, or the least that a row needs where that can't be sent. As `_write`."""
        for is_complete in (True, True, False):
            with self._continuing():
                known = self._known(least.rewards) if is_complete else {"error": self._state.error}
                return await self._write(least.model_copy(update=known))
        return ReportResult(), self._state.error

    def _known(self, rewards: dict[str, float] | None) -> dict[str, Any]:
        """Return all that the state adds to a report."""
        state = self._state
        # What its own branch path has earned, if that has an end of its own.
        own = scalar_of(rewards) if state.value is None else None
        has_tree = state.branch_origin is None and state.outcomes
        return {
            "steps": state.steps,
            "sessions": state.sessions,
            "tree": self._tree(own) if has_tree or state.keeps_checkpoints else None,
            "value": state.value,
            "adopted_steps": sorted(state.adopted),
            "used_below": state.usage_below,
            "rollbacks": state.rollbacks,
            "record": next((one.record for one in reversed(state.retained) if one.record is not None), None),
            "packs": {outcome.chain: outcome.pack for outcome in state.outcomes if outcome.pack is not None},
            "rung": state.resume_mode,
            "readied": state.readied,
            "warnings": state.warnings,
            "timing": self._phases.timing,
        }

    def _tree(self, returns: float | None) -> RolloutTree:
        """Return the tree as it ends. returns: what its own branch path has earned."""
        tree = self._state.tree(returns=returns)
        if not self._state.keeps_checkpoints:
            return tree.without_checkpoints()
        # Those of its children go.
        own = {checkpoint.id for checkpoint in self._state.retained}
        nodes = [
            node if node.checkpoint in own else node.model_copy(update={"checkpoint": None}) for node in tree.nodes
        ]
        return tree.model_copy(update={"nodes": nodes})

    async def _write(self, report: ReportInput) -> tuple[ReportResult, Failure | None]:
        """Write the result. Return its place, and the failure if it could not be written."""
        if report.status == "cancelled":
            self._is_hurried = True
        while True:
            was_hurried = self._is_hurried
            try:
                return await self._execute_report(report), None
            except (asyncio.CancelledError, Exception) as error:
                if report.keeps_result:
                    if self._is_hurried and not was_hurried:
                        continue
                    # Only the sandbox's host knows whether something was undone.
                    return ReportResult(is_kept=True), failure_from(error, "report")
                if report.sandbox is not None:
                    workflow.logger.warning("report on the sandbox's host failed: %s", error.__cause__ or error)
                    cancelled = is_cancelled_exception(error)
                    why = "the rollout was cancelled" if cancelled else failure_from(error, "report").message
                    lines = [*report.warnings, f"what lies in the sandbox was not collected, or not all of it: {why}"]
                    report = report.model_copy(update={"sandbox": None, "warnings": lines})
                elif was_hurried or not self._is_hurried:
                    if not isinstance(error, asyncio.CancelledError | ActivityError):
                        raise
                    workflow.logger.error("the result could not be written: %s", error.__cause__ or error)
                    return ReportResult(), failure_from(error, "report")

    async def _execute_report(self, report: ReportInput) -> ReportResult:
        """Execute the activity that writes a result, where its sandbox is or on any host."""
        limit = options.current().report_total_sec
        total = limit if self._is_hurried else None
        if report.sandbox is not None:
            writing = on_host(report.sandbox.queue, names.REPORT, report, ReportResult, limit, total=total)
        else:
            limits = options.shared(limit, total_sec=total)
            writing = result_of(
                workflow.start_activity(names.REPORT_WITHOUT_SANDBOX, report, result_type=ReportResult, **limits)
            )
        self._writing = asyncio.ensure_future(writing)
        return await self._writing

    async def _notify_job(self, outcome: RolloutOutcome) -> None:
        """Signal the job that this rollout is done."""
        job_id = self._state.spec.job_id
        try:
            await workflow.get_external_workflow_handle(job_id).signal(names.ROLLOUT_DONE, outcome)
        except FailureError as error:
            workflow.logger.warning("the job %s could not be notified: %s", job_id, error)
