"""A job on its server: started or attached to, watched, controlled, its results fetched."""

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
from benchflow.contracts import ids, names
from benchflow.contracts.error_limit import Decision
from benchflow.contracts.job import (
    CancelRollout,
    JobOutcome,
    JobProgress,
    JobSpec,
    Origin,
    RolloutProgress,
    SetConcurrency,
)
from benchflow.contracts.rollout import RolloutResult
from benchflow.errors import (
    BenchFlowError,
    JobNotFoundError,
    ResultFileError,
    ServerUnavailableError,
    StackError,
)
from benchflow.executions import find_pack, find_trouble, require_not_found
from benchflow.jobs.engine import Engine, ServerWait
from benchflow.paths import TRIAL_STEP, JobPaths, RolloutPaths, StatePaths
from benchflow.results.lost import lost_spec, write_missing
from benchflow.results.summary import Summary, read_results, read_spec, write_summary
from benchflow.results.write import next_attempt, put_aside
from benchflow.store import Store
from benchflow.stored_files import read_stored, require_directory
from benchflow.tasks import unpack

LOOK_EVERY_SEC = 1.0
SOON = timedelta(seconds=5)
"""How long a look at a workflow may take."""


@dataclass
class Job:
    """A job of an engine. started: how many rollouts this submit started; 0 when it attached or all was done."""

    engine: Engine
    id: str
    name: str
    directory: JobPaths
    spec: JobSpec
    started: int = 0
    attached: bool = False
    warnings: list[str] = field(default_factory=list)
    """Findings of the check before the start."""
    is_asking: bool = False
    """Whether it waited for its user's answer when its progress was last asked for."""

    @property
    def handle(self) -> WorkflowHandle[Any, JobOutcome]:
        return self.engine.client.get_workflow_handle(self.id, result_type=JobOutcome)

    async def is_running(self) -> bool:
        status = await status_of(self.engine.client, self.id)
        return status == WorkflowExecutionStatus.RUNNING

    async def wait(self) -> None:
        """Wait until the job is over, however long the server is away, and lay out its results in `directory`."""
        while True:
            try:
                await self._result()
                await self.fetch()
                return
            except StackError as error:
                await self._wait_for_server(error)

    async def _result(self) -> None:
        """Wait for the end of the job's workflow. Start an embedded stack again that is gone meanwhile."""
        result = asyncio.ensure_future(self.handle.result())
        try:
            while not (await asyncio.wait([result], timeout=LOOK_EVERY_SEC))[0]:
                if self.engine.target.embedded and stack.running(StatePaths.default()) is None:
                    self._require_not_stopped()
                    await asyncio.to_thread(stack.ensure)
            result.result()
        except RPCError as error:
            require_not_found(error)
        except WorkflowFailureError:
            return
        finally:
            result.cancel()

    async def _wait_for_server(self, error: StackError) -> None:
        """Wait until the server answers again, and say so once if that takes long. error: how it was missed."""
        wait = ServerWait(f"the server of job {self.name}, which goes on")
        while True:
            await wait.pause(error)
            if self.engine.target.embedded:
                self._require_not_stopped()
            try:
                if self.engine.target.embedded:
                    # A new supervisor may have had to choose another port.
                    self.engine = await Engine.open()
                await status_of(self.engine.client, self.id, SOON)
                return
            except StackError as newer:
                error = newer

    def _require_not_stopped(self) -> None:
        """A stack that somebody stopped stays stopped; one whose supervisor died is started again."""
        if stack.was_stopped(StatePaths.default()):
            raise StackError(
                "the local stack was stopped; the job goes on where it was when it runs again",
                remedy=f"bench job watch {self.name} --jobs-dir {self.directory.root.parent}",
            )

    async def progress(self) -> JobProgress | None:
        """What the job's workflow says of itself; None when it cannot answer now."""
        with contextlib.suppress(TemporalError, BenchFlowError):
            answer: JobProgress = await self.handle.query(names.PROGRESS, result_type=JobProgress, rpc_timeout=SOON)
            self.is_asking = answer.asked is not None
            return answer
        return None

    async def rollout_progress(self, rollout: str) -> RolloutProgress | None:
        handle = self.engine.client.get_workflow_handle(rollout)
        with contextlib.suppress(TemporalError, BenchFlowError):
            answer: RolloutProgress = await handle.query(names.PROGRESS, result_type=RolloutProgress, rpc_timeout=SOON)
            if self.spec.trial is not None:
                answer = answer.model_copy(update={"detail": await asyncio.to_thread(self._trial_step)})
            return answer
        return None

    def _trial_step(self) -> str:
        """Return what the trial of a world tries now, as far as this host knows it."""
        results = self.directory.rollout(self.spec.rollout_name(self.id, 0)).root
        with contextlib.suppress(FileNotFoundError, ResultFileError):
            return read_stored(results / TRIAL_STEP).decode(errors="replace")
        return ""

    async def trouble(self, workflow_id: str) -> str | None:
        """Return what the workflow of the job or of a rollout fails at and retries; None for nothing, or no answer."""
        with contextlib.suppress(ServerUnavailableError):
            return await find_trouble(self.engine.client, workflow_id)
        return None

    async def watch(self, every: float = 0.5) -> AsyncGenerator[JobProgress | None, None]:
        """The job's progress every so many seconds, until it is over; None where it cannot answer then."""
        ended = asyncio.create_task(self.wait())
        try:
            while not ended.done():
                yield await self.progress()
                await asyncio.wait({ended}, timeout=every)
            await ended
        finally:
            ended.cancel()

    async def pause(self) -> None:
        await self._signal(names.PAUSE)

    async def unpause(self) -> None:
        await self._signal(names.RESUME)

    async def set_concurrency(self, concurrency: int) -> None:
        await self._signal(names.SET_CONCURRENCY, SetConcurrency(concurrency=concurrency))

    async def cancel(self) -> None:
        """Cancel the job: stop its agents, tear down, record. Returns when it was asked for, not when it is done."""
        # The server takes a wish to cancel what is over for done.
        if not await self.is_running():
            raise JobNotFoundError(f"job {self.name!r} does not run", remedy="bench job list")
        try:
            await self.handle.cancel()
        except RPCError as error:
            raise self._not_running(error) from error

    async def abort(self) -> None:
        """Cancel the job and return when it is over. One that is over, or forgotten, is success."""
        with contextlib.suppress(JobNotFoundError):
            await self.cancel()
            await self.wait()

    async def cancel_rollout(self, rollout: str) -> None:
        await self._signal(names.CANCEL_ROLLOUT, CancelRollout(id=rollout))

    async def decide(self, continues: bool) -> None:
        """Answer a job that asks whether to go on after equal errors."""
        await self._signal(names.DECIDE_TO_CONTINUE, Decision(continues=continues))
        self.is_asking = False

    async def _signal(self, name: str, *args: Any) -> None:
        try:
            await self.handle.signal(name, args=args)
        except RPCError as error:
            raise self._not_running(error) from error

    def _not_running(self, error: RPCError) -> JobNotFoundError:
        """Return the error of a request to a job that is over. Raise `ServerUnavailableError` if the server is away."""
        require_not_found(error)
        return JobNotFoundError(f"job {self.name!r} does not run: {error.message}", remedy="bench job list")

    def results(self) -> list[RolloutResult]:
        return read_results(self.directory)

    async def fetch(self) -> int:
        """Lay out results that lie in the store (of a cluster). Returns how many rollouts were fetched."""
        here = {result.workflow_id: result.run_id for result in self.results()}
        store = Store.open()
        fetched = 0
        for index in self.spec.indices if not self.engine.target.embedded else ():
            rollout = self.spec.rollout_id(self.id, index)
            if rollout in here and not await self._has_ended_again(rollout, here[rollout]):
                continue
            # Raises if the server can't say: a rollout that has reported must not be taken for one to be run again.
            ref = await find_pack(self.engine.client, rollout)
            if ref is None:
                continue
            target = self.directory.root / self.spec.rollout_name(self.id, index)
            with tempfile.TemporaryDirectory() as scratch:
                pack = Path(scratch) / "rollout.tar"
                await store.fetch(ref, pack)
                if rollout in here:
                    await asyncio.to_thread(put_aside, RolloutPaths(target))
                await asyncio.to_thread(_lay_out, pack, target)
            fetched += 1
        written = await self._write_lost()
        # A cluster's worker writes none here, and one that was fetched before may not have been summed up.
        is_over = written is not None
        if fetched or written or (is_over and not (self.engine.target.embedded and self.directory.summary.exists())):
            self.summarize()
        return fetched

    async def _has_ended_again(self, rollout: str, run_id: str | None) -> bool:
        """Return whether a rollout was rolled back after the end that is here, and has ended again since."""
        if self.spec.run.keep != "checkpoints":
            return False
        try:
            description = await self.engine.client.get_workflow_handle(rollout).describe()
        except RPCError as error:
            require_not_found(error)
            return False
        return description.run_id != run_id and description.status != WorkflowExecutionStatus.RUNNING

    async def _write_lost(self) -> int | None:
        """Write the rows that a job that is over could not write itself. Returns how many; None for one that is not."""
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
            spec = lost_spec(self.spec, self.id, origin, one, run_id=run_id)
            await asyncio.to_thread(write_missing, origin, self.id, self.name, one, failure, spec)
        return len(lost)

    def expect(self, pending: list[tuple[int, int]]) -> None:
        """Put aside what is here and is about to be made again, so that it will be fetched."""
        for index in (index for first, end in pending for index in range(first, end)):
            paths = self.directory.rollout(self.spec.rollout_name(self.id, index))
            if paths.result.exists():
                put_aside(paths)

    def summarize(self) -> Summary:
        """Sum up what there is, and write it."""
        return write_summary(self.directory, self.name, self.spec.total, self.spec)


def _lay_out(pack: Path, target: Path) -> None:
    """Unpack a rollout's results. Earlier runs that were put aside here stay, behind those that the pack brings."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        fresh = RolloutPaths(Path(scratch) / target.name)
        unpack(pack, fresh.root)
        require_directory(target.parent, f"{target.name}/attempts")
        earlier = target / "attempts"
        for attempt in sorted(earlier.iterdir()) if earlier.is_dir() else ():
            place = next_attempt(fresh)
            place.parent.mkdir(exist_ok=True)
            attempt.replace(place)
        shutil.rmtree(target, ignore_errors=True)
        fresh.root.replace(target)


async def status_of(
    client: Client, workflow_id: str, rpc_timeout: timedelta | None = None
) -> WorkflowExecutionStatus | None:
    try:
        return (await client.get_workflow_handle(workflow_id).describe(rpc_timeout=rpc_timeout)).status
    except RPCError as error:
        require_not_found(error)
        return None


async def open_job(name: str, jobs_dir: Path) -> Job:
    """Return a job that was submitted before. Raises `JobNotFoundError`.

    Args:
        name: Its name, or JOB/rescored/NAME of one that scores another.
        jobs_dir: Directory of the jobs.
    """
    paths = JobPaths.of(jobs_dir, name)
    spec = read_spec(paths)
    return Job(await Engine.reach(), ids.job_id(paths.root.name, str(paths.root.parent)), paths.root.name, paths, spec)
