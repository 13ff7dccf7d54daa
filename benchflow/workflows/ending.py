"""The end of a rollout, successful or not: write the result, remove the sandbox, notify the job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import temporal_names
    from benchflow.contracts.activities import ReportInput, ReportResult
    from benchflow.contracts.branch import ChildOutcome
    from benchflow.contracts.rewards import combine_steps, is_measured, scalar_of, status_of
    from benchflow.contracts.rollout_records import TRUNCATING, Failure, RolloutOutcome, RolloutTree
    from benchflow.workflows import activity_options, rollout_slots
    from benchflow.workflows.children import make_child_outcome, make_minimal_outcome, make_no_return_failure
    from benchflow.workflows.clock import Phases
    from benchflow.workflows.hosts import run_on_host, tear_down
    from benchflow.workflows.rollout_checkpoints import release, retain
    from benchflow.workflows.rollout_state import RolloutState
    from benchflow.workflows.workflow_cancellation import await_result
    from benchflow.workflows.workflow_failures import make_failure


class Ending:
    """The last part of a rollout: report, teardown, and the outcome. Each part runs even if one before it raised.

    The report runs on the sandbox's host; if that fails, on any host, without the files in the sandbox. It is retried
    through an outage of any length, since otherwise the rewards would be lost. A cancelled rollout has no rewards:
    `report_total_sec` then limits the report on the sandbox's host, and again the one elsewhere.
    """

    def __init__(self, state: RolloutState, phases: Phases) -> None:
        """Make it for one rollout, whose start time is now.

        Args:
            state: State of the rollout, shared by its modules.
            phases: Phases of the rollout.
        """
        self._state = state
        self._phases = phases
        self._started = workflow.now()
        self._writing: asyncio.Task[ReportResult] | None = None
        self._is_hurried = False

    def hurry(self) -> None:
        """Limit the report's time, after a cancellation of the rollout, and end waits for a slot.

        A running report activity is cancelled: it writes what it has collected. If it fails, the result is written
        without the sandbox.
        """
        self._is_hurried = True
        if self._writing is not None:
            self._writing.cancel()

    async def end(self, *, lost: Collection[str], is_resumable: bool) -> RolloutOutcome | ChildOutcome:
        """Report the rollout, release or retain its checkpoints, remove its sandbox, and notify the job of a root.

        Args:
            lost: Queues of the hosts that the rollout has lost.
            is_resumable: Whether other rollouts may start from the nodes of this one.

        Returns:
            The outcome: a `RolloutOutcome` of a root, or the `ChildOutcome` for the parent of a child.
        """
        state, spec = self._state, self._state.spec
        rewards: dict[str, float] | None = None
        verifier_error: Failure | None = None
        n_tool_calls, is_frozen = 0, False
        with self._suppress_errors():
            # A cancellation ends the wait for a slot: the sandbox then stays frozen, and nothing is collected from it.
            is_frozen = not await rollout_slots.get_slots().hold(lambda: state.is_cancelled or self._is_hurried)
        with self._suppress_errors():
            rewards, verifier_error = self._combine_rewards()
            n_tool_calls = state.n_tool_calls
        rewards = None if state.is_cancelled else rewards
        with self._suppress_errors():
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
            # The roll-back of an ended rollout failed before it reverted anything: the earlier result stays.
            report = report.model_copy(update={"directory": f"{spec.origin.job_dir}/{spec.name}"})
            unwritten = unwritten or state.error
        # The result is written: errors from here on are not in it, and do not change the outcome.
        status, error = least.status, state.error or unwritten
        if unwritten is not None and rewards is not None:
            # Rewards do not count without a written result that proves them.
            status, rewards, error, state.value = "errored", None, unwritten, None
        with self._suppress_errors():
            await workflow.wait_condition(workflow.all_handlers_finished)
        with self._suppress_errors():
            self._phases.enter("teardown")
        retained = [*state.retained, *state.release_at_end]
        if state.keeps_checkpoints:
            if not report.is_kept:
                await self._try_twice(lambda: retain(state, lost=lost))
        elif spec.branch is None or state.is_cancelled:
            # A root, or a cancelled child. Any other child hands its checkpoints up, and the root releases them.
            await self._try_twice(lambda: release([*retained, *state.retained_below], lost=lost))
        await self._try_twice(lambda: tear_down(spec, state.sandbox))
        await self._try_twice(rollout_slots.get_slots().close)
        with self._suppress_errors():
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
        with self._suppress_errors():
            return make_child_outcome(spec.branch, state, outcome, retained, has_steps=is_resumable)
        return make_minimal_outcome(spec.branch, outcome, retained)

    @contextmanager
    def _suppress_errors(self) -> Iterator[None]:
        """Suppress an error of the block: log it, and make it the rollout's error if there is none yet."""
        try:
            yield
        except Exception as error:
            workflow.logger.exception("the rollout's end continues after a fault of the engine")
            self._state.error = self._state.error or make_failure(error, self._phases.phase)

    async def _try_twice(self, part: Callable[[], Awaitable[None]]) -> None:
        """Run one part of the end, and once more if it raises. An error is recorded, not raised.

        Args:
            part: The part; running it twice must be harmless.
        """
        for _ in range(2):
            with self._suppress_errors():
                return await part()

    def _combine_rewards(self) -> tuple[dict[str, float] | None, Failure | None]:
        """Return the rewards, and the failure of a verifier; None for either that does not exist.

        If the rollout ended in its children and none has a return, set the rollout's error, unless there is one.
        """
        state = self._state
        scored = state.agentless
        if scored is not None and scored.outcome is not None:
            failure = combine_steps(state.steps, state.plan.strategy, None)[1] if scored.rewards is None else None
            return scored.rewards, failure
        if state.value is not None:
            # If a cancellation or a fault of the engine ended some children, the returns of the others are no V(s).
            value = None if state.pending and not is_measured(state.error) else state.value.value
            if value is None and state.error is None:
                state.error = make_no_return_failure(state.outcomes)
            return (None if value is None else {"reward": value}), None
        if not state.own_steps:
            # The steps before a child's origin, and their rewards, belong to its parent.
            return None, None
        # After the last step, the rewards are measured: only the agent's own failure counts, no error of the engine.
        error = state.agent_failure if state.has_ended else state.error
        return combine_steps(state.steps, state.plan.strategy, error)

    # --- the report -----------------------------------------------------------------------------------------

    async def _report(self, least: ReportInput) -> tuple[ReportResult, Failure | None]:
        """Write the complete report; after two errors of the workflow's own code, only the minimum for a row.

        Args:
            least: The minimum: status, rewards, failures, sandbox.

        Returns:
            As `_write`. After a third error, an empty result and the rollout's error.
        """
        for is_complete in (True, True, False):
            with self._suppress_errors():
                known = self._collect_fields(least.rewards) if is_complete else {"error": self._state.error}
                return await self._write(least.model_copy(update=known))
        return ReportResult(), self._state.error

    def _collect_fields(self, rewards: dict[str, float] | None) -> dict[str, Any]:
        """Return the report's other fields by name, from the state.

        Args:
            rewards: Rewards of the rollout; None for none.
        """
        state = self._state
        # The return of the rollout's own branch path. If it ended in its children, the rewards are V(s) instead.
        own = scalar_of(rewards) if state.value is None else None
        has_tree = state.branch_origin is None and state.outcomes
        return {
            "steps": state.steps,
            "sessions": state.sessions,
            "tree": self._make_tree(own) if has_tree or state.keeps_checkpoints else None,
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

    def _make_tree(self, returns: float | None) -> RolloutTree:
        """Return the final tree. Only checkpoints that outlive the rollout remain in it.

        Args:
            returns: Return of the rollout's own branch path; None if it ended in its children, or has no rewards.
        """
        tree = self._state.make_tree(returns=returns)
        if not self._state.keeps_checkpoints:
            return tree.without_checkpoints()
        # Checkpoints of children are released.
        own = {checkpoint.id for checkpoint in self._state.retained}
        nodes = [
            node if node.checkpoint in own else node.model_copy(update={"checkpoint": None}) for node in tree.nodes
        ]
        return tree.model_copy(update={"nodes": nodes})

    async def _write(self, report: ReportInput) -> tuple[ReportResult, Failure | None]:
        """Write the result, on the sandbox's host if there is one, and if that fails on any host, without the sandbox.

        An attempt without the sandbox that `hurry` cancels is repeated once. So is the one of a rollout whose earlier
        result may stay (`keeps_result`), which does not run on another host.

        Returns:
            The place of the result, and None; or, if it could not be written, an empty place and the failure. If the
            earlier result may stay and the write fails, a place with `is_kept`, and the failure.

        Raises:
            Exception: An error of the workflow's own code, without a sandbox to fall back from.
        """
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
                    # Only the sandbox's host knows whether anything was reverted, so no other host may write a result.
                    return ReportResult(is_kept=True), make_failure(error, "report")
                if report.sandbox is not None:
                    workflow.logger.warning("report on the sandbox's host failed: %s", error.__cause__ or error)
                    cancelled = is_cancelled_exception(error)
                    why = "the rollout was cancelled" if cancelled else make_failure(error, "report").message
                    lines = [*report.warnings, f"what lies in the sandbox was not collected, or not all of it: {why}"]
                    report = report.model_copy(update={"sandbox": None, "warnings": lines})
                elif was_hurried or not self._is_hurried:
                    if not isinstance(error, asyncio.CancelledError | ActivityError):
                        raise
                    workflow.logger.error("the result could not be written: %s", error.__cause__ or error)
                    return ReportResult(), make_failure(error, "report")

    async def _execute_report(self, report: ReportInput) -> ReportResult:
        """Execute the activity that writes the result: on the sandbox's host, or without a sandbox on any host."""
        limit = activity_options.get_options().report_total_sec
        total = limit if self._is_hurried else None
        if report.sandbox is not None:
            writing = run_on_host(report.sandbox.queue, temporal_names.REPORT, report, ReportResult, limit, total=total)
        else:
            limits = activity_options.make_shared_options(limit, total_sec=total)
            writing = await_result(
                workflow.start_activity(
                    temporal_names.REPORT_WITHOUT_SANDBOX, report, result_type=ReportResult, **limits
                )
            )
        self._writing = asyncio.ensure_future(writing)
        return await self._writing

    async def _notify_job(self, outcome: RolloutOutcome) -> None:
        """Signal the outcome to the job. A failure is logged: the job's sweep finds the outcome."""
        job_id = self._state.spec.job_id
        try:
            await workflow.get_external_workflow_handle(job_id).signal(temporal_names.ROLLOUT_DONE, outcome)
        except FailureError as error:
            workflow.logger.warning("the job %s could not be notified: %s", job_id, error)
