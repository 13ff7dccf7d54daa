"""The sweep of a job: polls the server about rollouts that have not reported, and writes rows for lost ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchflow.contracts import temporal_names
    from benchflow.contracts.activities import LostInput, LostOutcomes, OpenRollouts, ReportedState, ReportedStates
    from benchflow.contracts.failures import failure_of
    from benchflow.contracts.job import JobInput, OpenRollout
    from benchflow.contracts.lost_rollouts import LostRollout, SweepState
    from benchflow.contracts.rollout_records import RolloutOutcome
    from benchflow.errors import RolloutTerminatedError
    from benchflow.workflows import activity_options
    from benchflow.workflows.work_retries import WorkRetries

ANY_ATTEMPT = 0
"""Number of an unknown attempt: the rollout's workflow was running already when this job was to start it."""


def is_of(outcome: RolloutOutcome, rollout: OpenRollout) -> bool:
    """Return whether an outcome is of the open attempt of a rollout.

    Args:
        outcome: Outcome of the same rollout.
        rollout: The open rollout. If its attempt is `ANY_ATTEMPT`, any outcome is.
    """
    return rollout.attempt in (ANY_ATTEMPT, outcome.attempt)


class Sweep:
    """Periodic polls of the server about the open rollouts of a job that have not reported."""

    def __init__(
        self,
        job: JobInput,
        open_: Mapping[int, OpenRollout],
        on_done: Callable[[RolloutOutcome], None],
        on_lost: Callable[[RolloutOutcome, LostRollout], None],
        *,
        outlasts: Callable[[], bool],
    ) -> None:
        """Make the sweep, which resumes that of the job's last run. `run` starts it.

        Args:
            job: Input of this run of the job's workflow.
            open_: Open rollouts of the job by index: the job's own mapping, not a copy.
            on_done: Called with the outcome of a rollout that has completed, but whose signal has not arrived.
            on_lost: Called with the outcome and the row's key of a lost rollout, if it has not reported meanwhile.
            outlasts: Returns whether writing a row is retried through an outage longer than `report_total_sec`.
        """
        self._job = job
        self._options = job.options
        self._open = open_
        self._on_done = on_done
        self._on_lost = on_lost
        self._outlasts = outlasts
        # Carried across continue-as-new: a busy job may do that more often than it sweeps.
        state = job.sweep or SweepState(due=workflow.time() + job.options.sweep_every_sec)
        self._due = state.due
        self._unknown = set(state.unknown)
        self._awaited = dict.fromkeys(state.awaited)

    async def run(self) -> None:
        """Sweep every `sweep_every_sec` until cancelled. An error is logged, and the next sweep still runs."""
        while True:
            try:
                await asyncio.sleep(max(0.01, self._due - workflow.time()))
                await self._sweep_all()
                self._due = workflow.time() + self._options.sweep_every_sec
            except Exception:
                workflow.logger.exception("the sweep will be tried again")
                # A sleep of its own: the one above may have raised, and the loop would spin.
                await asyncio.sleep(self._options.sweep_every_sec)

    def make_state(self) -> SweepState:
        """Return the state to carry across continue-as-new."""
        return SweepState(due=self._due, unknown=sorted(self._unknown), awaited=list(self._awaited))

    def await_end(self, workflow_id: str) -> None:
        """Have the next sweep terminate an attempt that has reported, if it is stuck: its retry needs its workflow id.

        Args:
            workflow_id: Workflow id of the attempt.
        """
        self._awaited[workflow_id] = None

    async def _sweep_all(self) -> None:
        """Run one sweep, in batches, over rollouts that are open for `sweep_after_sec`. A batch that fails is logged.

        Rollouts whose start is not confirmed are left out: the server may not know them yet.
        """
        old = workflow.time() - self._options.sweep_after_sec
        silent = [one for one in self._open.values() if one.since is not None and one.since < old]
        awaited, self._awaited = list(self._awaited), {}
        if awaited and not workflow.patched("sweep-awaited"):
            awaited = []
        unknown: set[int] = set()
        for start in range(0, max(len(silent), len(awaited)), self._options.sweep_batch):
            batch = slice(start, start + self._options.sweep_batch)
            try:
                unknown |= await self._sweep(silent[batch], awaited[batch])
            except Exception as error:
                workflow.logger.warning("a batch of the sweep will be tried again: %s", error)
        self._unknown = unknown

    async def _sweep(self, silent: list[OpenRollout], awaited: list[str]) -> set[int]:
        """Sweep one batch: take the outcomes of completed rollouts, and write rows for lost ones.

        Args:
            silent: Open rollouts that have not reported.
            awaited: Workflow ids of attempts that have reported, and that are terminated if they are stuck.

        Returns:
            Indices of the rollouts that the server does not know for the first time. Such a rollout is lost only if
            the next sweep finds the same.
        """
        wanted = OpenRollouts(
            ids=[rollout.id for rollout in silent],
            awaited=awaited,
            stuck_attempts=self._options.stuck_attempts,
            stuck_after_sec=self._options.stuck_after_sec,
        )
        states: ReportedStates = await workflow.execute_activity(
            temporal_names.ROLLOUT_STATES, wanted, result_type=ReportedStates, **activity_options.make_shared_options()
        )
        unknown: set[int] = set()
        for rollout, state in zip(silent, states.states, strict=True):
            if state.status == "running" or not self.is_open(rollout):
                continue
            if state.outcome is not None and is_of(state.outcome, rollout):
                self._on_done(state.outcome)
            elif state.status == "unknown" and rollout.index not in self._unknown:
                unknown.add(rollout.index)
            else:
                await self._report_lost(rollout, state)
        return unknown

    def is_open(self, rollout: OpenRollout) -> bool:
        """Return whether this attempt of a rollout is still open: it has not reported."""
        known = self._open.get(rollout.index)
        return known is not None and known.attempt == rollout.attempt

    async def _report_lost(self, rollout: OpenRollout, state: ReportedState) -> None:
        """Write the row of a rollout whose workflow ended without a report, or is stuck, and pass it to `on_lost`.

        Args:
            rollout: The open rollout.
            state: State of its workflow. A `stuck` one is terminated by the activity first.
        """
        why = f": {state.reason}" if state.reason else ""
        message = f"the rollout's workflow ended without a result: {state.status}{why}"
        failure = failure_of(RolloutTerminatedError(message))
        run_id = rollout.run_id or state.run_id
        lost = LostRollout(index=rollout.index, attempt=rollout.attempt, run_id=run_id)
        job = self._job
        given = LostInput(
            job_id=job.id,
            job_name=job.name,
            spec=job.spec,
            origin=job.origin,
            run_id=workflow.info().first_execution_run_id,
            rollouts=[lost],
            failure=failure,
            is_stuck=state.status == "stuck",
        )
        attempt = max(1, rollout.attempt)
        try:
            # Retried for long: the activity finds a result that the rollout has written, rewards included. Without it,
            # the rollout would count as errored.
            limit = self._options.report_total_sec
            retries = WorkRetries(limit, outlasts=self._outlasts)
            found: LostOutcomes = await retries.execute(
                temporal_names.REPORT_LOST, given, LostOutcomes, limit_sec=limit
            )
            outcome = found.outcomes[0]
        except Exception as error:
            workflow.logger.error("the row of %s could not be written: %s", rollout.id, error)
            outcome = RolloutOutcome(
                id=rollout.id, index=rollout.index, attempt=attempt, status="errored", error=failure
            )
        if self.is_open(rollout):
            self._on_lost(outcome, lost)
