"""Client of one job: attach, watch, control, wait, and fetch its results."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import TemporalError
from temporalio.service import RPCError

from benchflow import stack
from benchflow.contracts import ids, temporal_names
from benchflow.contracts.error_limit import ErrorLimitDecision
from benchflow.contracts.job import (
    CancelRollout,
    JobOutcome,
    JobProgress,
    JobSpec,
    Origin,
    RolloutProgress,
    SetConcurrency,
)
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.errors import (
    BenchFlowError,
    JobNotFoundError,
    ResultFileError,
    ServerUnavailableError,
    StackError,
)
from benchflow.jobs.engine_connection import Engine, ServerWait
from benchflow.paths import TRIAL_STEP, JobPaths, RolloutPaths, StatePaths
from benchflow.results.lost_rows import make_lost_spec, write_lost_row
from benchflow.results.summary import Summary, read_results, read_spec, write_summary
from benchflow.results.write import archive_run, find_next_attempt
from benchflow.store import Store
from benchflow.stored_files import read_stored, require_directory
from benchflow.tasks import unpack
from benchflow.workflow_executions import find_pack, find_trouble, require_not_found

POLL_INTERVAL_SEC = 1.0
"""Seconds between checks, while a client waits for a job, whether the embedded stack still runs."""
QUERY_TIMEOUT = timedelta(seconds=5)
"""Timeout of a query or description of a workflow."""


@dataclass
class Job:
    """A submitted job, as its client sees it."""

    engine: Engine
    id: str
    """Workflow id."""
    name: str
    directory: JobPaths
    """Paths of its results."""
    spec: JobSpec
    started: int = 0
    """Number of rollouts that this submit started; 0 if it attached, or if nothing was left to run."""
    attached: bool = False
    """Whether the job was running already."""
    warnings: list[str] = field(default_factory=list)
    """Warnings of the checks before the start."""
    is_asking: bool = False
    """Whether it waited for its user's decision when its progress was last queried."""

    @property
    def handle(self) -> WorkflowHandle[Any, JobOutcome]:
        """Return a handle of the job's workflow."""
        return self.engine.client.get_workflow_handle(self.id, result_type=JobOutcome)

    async def is_running(self) -> bool:
        """Return whether the job's workflow is running."""
        status = await read_status(self.engine.client, self.id)
        return status == WorkflowExecutionStatus.RUNNING

    async def wait(self) -> None:
        """Wait until the job has ended, through any outage of the server, and fetch its results into `directory`.

        Raises:
            StackError: The local stack was stopped on purpose.
        """
        while True:
            try:
                await self._result()
                await self.fetch()
                return
            except StackError as error:
                await self._wait_for_server(error)

    async def _result(self) -> None:
        """Wait for the end of the job's workflow; restart an embedded stack that died meanwhile."""
        result = asyncio.ensure_future(self.handle.result())
        try:
            while not (await asyncio.wait([result], timeout=POLL_INTERVAL_SEC))[0]:
                if self.engine.target.embedded and stack.find_running(StatePaths.default()) is None:
                    self._require_not_stopped()
                    await asyncio.to_thread(stack.ensure_stack)
            result.result()
        except RPCError as error:
            require_not_found(error)
        except WorkflowFailureError:
            return
        finally:
            result.cancel()

    async def _wait_for_server(self, error: StackError) -> None:
        """Wait until the server answers again; log that once if it takes long.

        Args:
            error: Error of the request that found the server unavailable.
        """
        wait = ServerWait(f"the server of job {self.name}, which goes on")
        while True:
            await wait.pause(error)
            if self.engine.target.embedded:
                self._require_not_stopped()
            try:
                if self.engine.target.embedded:
                    # A new supervisor may have chosen another port.
                    self.engine = await Engine.open()
                await read_status(self.engine.client, self.id, QUERY_TIMEOUT)
                return
            except StackError as newer:
                error = newer

    def _require_not_stopped(self) -> None:
        """Raise `StackError` if the local stack was stopped on purpose. One that died may be started again."""
        if stack.was_stopped(StatePaths.default()):
            raise StackError(
                "the local stack was stopped; the job goes on where it was when it runs again",
                remedy=f"bench job watch {self.name} --jobs-dir {self.directory.root.parent}",
            )

    async def progress(self) -> JobProgress | None:
        """Query the progress of the job's workflow; return None if it does not answer now."""
        with contextlib.suppress(TemporalError, BenchFlowError):
            answer: JobProgress = await self.handle.query(
                temporal_names.PROGRESS, result_type=JobProgress, rpc_timeout=QUERY_TIMEOUT
            )
            self.is_asking = answer.asked is not None
            return answer
        return None

    async def rollout_progress(self, rollout: str) -> RolloutProgress | None:
        """Query the progress of a rollout's workflow; return None if it does not answer now."""
        handle = self.engine.client.get_workflow_handle(rollout)
        with contextlib.suppress(TemporalError, BenchFlowError):
            answer: RolloutProgress = await handle.query(
                temporal_names.PROGRESS, result_type=RolloutProgress, rpc_timeout=QUERY_TIMEOUT
            )
            if self.spec.trial is not None:
                answer = answer.model_copy(update={"detail": await asyncio.to_thread(self._trial_step)})
            return answer
        return None

    def _trial_step(self) -> str:
        """Return the current step of the trial of a world; empty if its file is not on this host."""
        results = self.directory.rollout(self.spec.rollout_name(self.id, 0)).root
        with contextlib.suppress(FileNotFoundError, ResultFileError):
            return read_stored(results / TRIAL_STEP).decode(errors="replace")
        return ""

    async def trouble(self, workflow_id: str) -> str | None:
        """Return the failure that a workflow, the job's or a rollout's, is retrying; None for none, or if unknown."""
        with contextlib.suppress(ServerUnavailableError):
            return await find_trouble(self.engine.client, workflow_id)
        return None

    async def watch(self, every: float = 0.5) -> AsyncGenerator[JobProgress | None, None]:
        """Yield the job's progress, None where the query fails, until `wait` is done, which runs beside it.

        An error of `wait` is raised at the end. Leaving the loop early cancels it.

        Args:
            every: Seconds between two queries.
        """
        ended = asyncio.create_task(self.wait())
        try:
            while not ended.done():
                yield await self.progress()
                await asyncio.wait({ended}, timeout=every)
            await ended
        finally:
            ended.cancel()

    async def pause(self) -> None:
        """Stop starting rollouts; those that run are not affected."""
        await self._signal(temporal_names.PAUSE)

    async def unpause(self) -> None:
        """Start rollouts again after `pause`."""
        await self._signal(temporal_names.RESUME)

    async def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of sandboxes at a time; running ones are not stopped."""
        await self._signal(temporal_names.SET_CONCURRENCY, SetConcurrency(concurrency=concurrency))

    async def cancel(self) -> None:
        """Request cancellation of the job: agents are stopped, sandboxes removed, results written. Do not wait for it.

        Raises:
            JobNotFoundError: The job is not running.
        """
        # The server accepts the cancellation of a workflow that has ended, without an error.
        if not await self.is_running():
            raise JobNotFoundError(f"job {self.name!r} does not run", remedy="bench job list")
        try:
            await self.handle.cancel()
        except RPCError as error:
            raise self._not_running(error) from error

    async def abort(self) -> None:
        """Cancel the job and wait until it has ended. A job that has ended, or that the server forgot, is success."""
        with contextlib.suppress(JobNotFoundError):
            await self.cancel()
            await self.wait()

    async def cancel_rollout(self, rollout: str) -> None:
        """Cancel one rollout: now if it runs, else as soon as it does.

        Args:
            rollout: Workflow id of the rollout.
        """
        await self._signal(temporal_names.CANCEL_ROLLOUT, CancelRollout(id=rollout))

    async def decide(self, continues: bool) -> None:
        """Answer a job that asks whether to continue after equal errors."""
        await self._signal(temporal_names.DECIDE_TO_CONTINUE, ErrorLimitDecision(continues=continues))
        self.is_asking = False

    async def _signal(self, name: str, *args: Any) -> None:
        """Send a signal to the job's workflow. Raise `JobNotFoundError` if it is not running."""
        try:
            await self.handle.signal(name, args=args)
        except RPCError as error:
            raise self._not_running(error) from error

    def _not_running(self, error: RPCError) -> JobNotFoundError:
        """Return the error for a request to an ended job. Raise `ServerUnavailableError` if the server is away."""
        require_not_found(error)
        return JobNotFoundError(f"job {self.name!r} does not run: {error.message}", remedy="bench job list")

    def results(self) -> list[RolloutResult]:
        """Return the results that are in the job's directory."""
        return read_results(self.directory)

    async def fetch(self) -> int:
        """Fetch rollouts that a cluster's workers packed into the store, write missing rows, and update the summary.

        Returns:
            Number of rollouts that were fetched.

        Raises:
            ServerUnavailableError: The server cannot tell whether a rollout has reported.
        """
        here = {result.workflow_id: result.run_id for result in self.results()}
        store = Store.open()
        fetched = 0
        for index in self.spec.indices if not self.engine.target.embedded else ():
            rollout = self.spec.rollout_id(self.id, index)
            if rollout in here and not await self._has_ended_again(rollout, here[rollout]):
                continue
            # Raises if the server does not answer: a rollout that has reported must not be run again.
            ref = await find_pack(self.engine.client, rollout)
            if ref is None:
                continue
            target = self.directory.root / self.spec.rollout_name(self.id, index)
            with tempfile.TemporaryDirectory() as scratch:
                pack = Path(scratch) / "rollout.tar"
                await store.fetch(ref, pack)
                if rollout in here:
                    await asyncio.to_thread(archive_run, RolloutPaths(target))
                await asyncio.to_thread(_lay_out, pack, target)
            fetched += 1
        written = await self._write_lost()
        # A cluster's worker writes no summary to this host, and an earlier fetch may have ended before its own.
        is_over = written is not None
        if fetched or written or (is_over and not (self.engine.target.embedded and self.directory.summary.exists())):
            self.summarize()
        return fetched

    async def _has_ended_again(self, rollout: str, run_id: str | None) -> bool:
        """Return whether a rollout was rolled back after the fetched result, and has ended again since.

        Args:
            rollout: Workflow id of the rollout.
            run_id: Run id of the workflow that wrote the fetched result.
        """
        if self.spec.run.keep != "checkpoints":
            return False
        try:
            description = await self.engine.client.get_workflow_handle(rollout).describe()
        except RPCError as error:
            require_not_found(error)
            return False
        return description.run_id != run_id and description.status != WorkflowExecutionStatus.RUNNING

    async def _write_lost(self) -> int | None:
        """Write the rows that an ended job could not write. Return their number; None if it has not completed."""
        try:
            description = await self.handle.describe()
            if description.status != WorkflowExecutionStatus.COMPLETED:
                return None
            outcome: JobOutcome = await self.handle.result()
        except RPCError as error:
            require_not_found(error)
            return None
        lost = [(one, group.failure) for group in outcome.lost for one in group.each()]
        if not lost:
            return 0
        run_id = description.raw_description.workflow_execution_info.first_run_id
        origin = Origin(host_id="", job_dir=str(self.directory.root))
        for one, failure in lost:
            spec = make_lost_spec(self.spec, self.id, origin, one, run_id=run_id)
            await asyncio.to_thread(write_lost_row, origin, self.id, self.name, one, failure, spec)
        return len(lost)

    def expect(self, pending: list[tuple[int, int]]) -> None:
        """Move existing results of rollouts that are about to run again aside, so that the new ones will be fetched.

        Args:
            pending: Half-open ranges of the rollouts' indices.
        """
        for index in (index for first, end in pending for index in range(first, end)):
            paths = self.directory.rollout(self.spec.rollout_name(self.id, index))
            if paths.result.exists():
                archive_run(paths)

    def summarize(self) -> Summary:
        """Write the summary of all results that are in the job's directory, and return it."""
        return write_summary(self.directory, self.name, self.spec.total, self.spec)


def _lay_out(pack: Path, target: Path) -> None:
    """Unpack a rollout's results to `target`; earlier attempts there are kept, numbered after those in the pack."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        fresh = RolloutPaths(Path(scratch) / target.name)
        unpack(pack, fresh.root)
        require_directory(target.parent, f"{target.name}/attempts")
        earlier = target / "attempts"
        for attempt in sorted(earlier.iterdir()) if earlier.is_dir() else ():
            place = find_next_attempt(fresh)
            place.parent.mkdir(exist_ok=True)
            attempt.replace(place)
        shutil.rmtree(target, ignore_errors=True)
        fresh.root.replace(target)


async def read_status(
    client: Client, workflow_id: str, rpc_timeout: timedelta | None = None
) -> WorkflowExecutionStatus | None:
    """Return the status of a workflow; None if the server does not know it.

    Raises:
        ServerUnavailableError: The server does not answer.
    """
    try:
        return (await client.get_workflow_handle(workflow_id).describe(rpc_timeout=rpc_timeout)).status
    except RPCError as error:
        require_not_found(error)
        return None


async def open_job(name: str, jobs_dir: Path) -> Job:
    """Return a job that was submitted before.

    Args:
        name: Name of the job, or JOB/rescored/NAME for a rescoring job.
        jobs_dir: Directory of the jobs.

    Raises:
        JobNotFoundError: There is no such job.
    """
    paths = JobPaths.of(jobs_dir, name)
    spec = read_spec(paths)
    return Job(await Engine.reach(), ids.job_id(paths.root.name, str(paths.root.parent)), paths.root.name, paths, spec)
