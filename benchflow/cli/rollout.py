"""`bench job watch ROLLOUT`: which rollout is meant, and its trajectory on a terminal, in a pipe or as data."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ValidationError
from rich.console import Group, RenderableType
from rich.text import Text as StyledText

from benchflow.cli import command
from benchflow.cli.report import reward_or_value, show_errors
from benchflow.cli.screen import (
    STATUS_SIGNS,
    STATUS_STYLES,
    console,
    flush,
    plural,
    print_json_line,
    reward,
    seconds,
)
from benchflow.cli.terminal import LiveDisplay, Screen, line
from benchflow.cli.trajectory import Rendering, waiting
from benchflow.contracts import ids, names
from benchflow.contracts.job import JobSpec, RolloutProgress
from benchflow.contracts.rollout import RolloutResult
from benchflow.errors import BenchFlowError, JobNotFoundError, ResultFileError, UsageError
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.results.summary import read_spec
from benchflow.stored_files import read_stored, require_directory
from benchflow.trajectories.follow import follow

if TYPE_CHECKING:
    from temporalio.client import Client

    from benchflow.jobs import Engine

MOST_CHOICES = 20
"""Rollouts that are listed where one has to be chosen."""

MAX_FINDINGS = 20
"""Findings of the hardening that are shown of a rollout; its result lists more."""

ASK_EVERY_SEC = 1.0
"""Seconds between two questions to the server, whether the job still runs."""

REFRESH_EVERY_SEC = 0.06

_MOST_ROWS = 500
_BEFORE_A_SANDBOX = ("plan", "provision")


@dataclass(frozen=True)
class Chosen:
    """A rollout of a job."""

    job: JobPaths
    spec: JobSpec
    index: int
    origin: str | None = None
    """The id of the job of which this one is a copy."""

    @property
    def job_id(self) -> str:
        return ids.job_id(self.job.root.name, str(self.job.root.parent))

    @property
    def id(self) -> str:
        return self.spec.rollout_id(self.job_id, self.index)

    @property
    def paths(self) -> RolloutPaths:
        here = self.job.rollout(self.spec.rollout_name(self.job_id, self.index))
        # What was run since the job was copied lies under names of its own.
        if self.origin is None or here.root.is_dir():
            return here
        return self.job.rollout(self.spec.rollout_name(self.origin, self.index))

    @property
    def task(self) -> str:
        return self.spec.tasks[self.spec.coordinates(self.index)[0]].name

    @property
    def label(self) -> str:
        """`task · agent`, with the number of the repeat where there are several."""
        _, agent, repeat = self.spec.coordinates(self.index)
        number = f" #{repeat}" if self.spec.repeats > 1 else ""
        return f"{self.task}{number} · {self.spec.agents[agent].label}"

    def result(self) -> RolloutResult | None:
        """How it ended; None while it has not."""
        try:
            return RolloutResult.model_validate_json(read_stored(self.paths.result))
        except (FileNotFoundError, ValidationError):
            return None


# --- which one -----------------------------------------------------------------------------------------------


def choose(name: str, jobs_dir: Path) -> Chosen:
    """The rollout that `JOB/ROLLOUT`, `JOB/TASK`, `JOB` or a workflow id names. Raises `UsageError`, with choices."""
    is_id = name.startswith("job/") and "/r/" in name
    job, _, wanted = name.partition("/") if not is_id else (_job_of(name, jobs_dir), "", name)
    paths = JobPaths.of(jobs_dir, job)
    spec = read_spec(paths)
    origin = _origin(paths, spec)
    every = [Chosen(paths, spec, index, origin) for index in spec.indices]
    wanted = wanted.strip("/")
    found = [one for one in every if wanted in ("", one.id, one.paths.root.name)]
    found = found or [one for one in every if wanted == one.task]
    if len(found) == 1:
        # All that follows reads what lies there: a link would lead it elsewhere.
        require_directory(paths.root, found[0].paths.root.name)
        return found[0]
    problem = f"there are {len(found)} rollouts of that name" if found else f"there is no rollout {wanted!r}"
    raise UsageError(f"{problem} in job {job}", key="ROLLOUT", remedy=_choices(job, found or every))


def _origin(job: JobPaths, spec: JobSpec) -> str | None:
    """Return the id of the job whose directory was copied or moved here; None where it was submitted here.

    The names of the rollouts' directories are made of that id, which their own configurations hold.
    """
    from benchflow.results.stored_rollouts import read_rollout_spec

    job_id = ids.job_id(job.root.name, str(job.root.parent))
    own = {spec.rollout_name(job_id, index) for index in spec.indices}
    for directory in sorted(job.root.iterdir()):
        if directory.name in own or "__" not in directory.name or directory.is_symlink():
            continue
        with contextlib.suppress(ResultFileError):
            rollout = read_rollout_spec(RolloutPaths(directory))
            if rollout.index in spec.indices and spec.rollout_name(rollout.job_id, rollout.index) == directory.name:
                return rollout.job_id
    return None


def _job_of(rollout: str, jobs_dir: Path) -> str:
    """The job's name in a workflow id, whose end says which jobs directory it is of."""
    job_id = rollout.partition("/r/")[0]
    name = job_id.removeprefix("job/").rpartition("-")[0]
    root = JobPaths.of(jobs_dir, name).root
    if ids.job_id(name, str(root.parent)) != job_id:
        raise JobNotFoundError(
            f"{rollout} is of a job in another directory than {root.parent}",
            key="ROLLOUT",
            remedy="name the directory that holds the job with --jobs-dir",
        )
    return name


def _choices(job: str, found: list[Chosen]) -> str:
    shown = found[:MOST_CHOICES]
    lines = [f"    {job}/{one.paths.root.name}   {one.label}" for one in shown]
    if len(found) > len(shown):
        lines.append(f"    and {len(found) - len(shown)} more")
    return "choose one of them:\n" + "\n".join(lines)


# --- when it is over -----------------------------------------------------------------------------------------


class Ending:
    """Whether a rollout is over: it has a result that stands, or its job does not run any more."""

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen
        self._job_is_over = False
        self._seen: tuple[int, bool] | None = None
        self._engine: Engine | None = None
        self.problem: BenchFlowError | None = None

    def __call__(self) -> bool:
        if self.problem is not None:
            raise self.problem
        return self._job_is_over or self._has_result()

    def _has_result(self) -> bool:
        """Whether there is a result that is not about to be replaced by that of another attempt."""
        try:
            written = self._chosen.paths.result.stat().st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return False
        if self._seen is None or self._seen[0] != written:
            result = self._chosen.result()
            self._seen = (written, result is not None and not self._chosen.spec.retry.allows(result))
        return self._seen[1]

    async def watch(self) -> None:
        """Ask the server now and then, while there is no result: nobody will write that of a job that is over."""
        silent = 0
        while self.problem is None:
            await asyncio.sleep(ASK_EVERY_SEC)
            if not self._has_result():
                # Twice: a job that was submitted just now has a directory before it runs.
                silent = silent + 1 if await self.ask() else 0
                self._job_is_over = silent > 1

    async def ask(self) -> bool:
        """Whether the job is over, as far as that can be known. `problem` is set where its files are not here."""
        from temporalio.client import WorkflowExecutionStatus
        from temporalio.service import RPCError

        from benchflow import stack
        from benchflow.cli.job import engine_if_running
        from benchflow.executions import is_not_found
        from benchflow.paths import StatePaths
        from benchflow.temporal import cluster_target

        if cluster_target() is None and stack.running(StatePaths.default()) is None:
            return True
        self._engine = self._engine or await engine_if_running()
        if self._engine is None:
            return False
        try:
            if not self._engine.target.embedded and not self._chosen.paths.root.is_dir():
                await self._look_elsewhere(self._engine.client)
            found = await self._engine.client.get_workflow_handle(self._chosen.job_id).describe()
            return found.status != WorkflowExecutionStatus.RUNNING
        except RPCError as error:
            self._engine = None
            return is_not_found(error)

    async def _look_elsewhere(self, client: Client) -> None:
        """A rollout that has been given a sandbox writes its files where that is."""
        from temporalio.service import RPCError

        from benchflow.executions import is_not_found

        handle = client.get_workflow_handle(self._chosen.id)
        try:
            progress = await handle.query(names.PROGRESS, result_type=RolloutProgress)
        except RPCError as error:
            if not is_not_found(error):
                raise
            return
        if progress.phase not in _BEFORE_A_SANDBOX and not self._chosen.paths.root.is_dir():
            job = self._chosen.job.root
            self.problem = UsageError(
                "this rollout is on another host of the cluster; its trajectory is there until it is fetched",
                file=str(self._chosen.paths.root),
                key="ROLLOUT",
                remedy=f"watch it on that host, or when the job is over: bench job fetch {job.name} "
                f"--jobs-dir {job.parent}",
            )


# --- showing it ----------------------------------------------------------------------------------------------


class Show(Protocol):
    """Where events go. refresh: called now and then, also when there are none."""

    def take(self, event: dict[str, Any]) -> None: ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...


class AsData:
    """Every event as the line that it is."""

    def take(self, event: dict[str, Any]) -> None:
        print_json_line(event)

    def refresh(self) -> None:
        flush()

    def close(self) -> None:
        self.refresh()


class AsText:
    """Events as rows for people. On a terminal what is not complete stands below them, and is drawn anew."""

    def __init__(self, screen: Screen, *, lively: bool) -> None:
        self._screen = screen
        self._rendering = Rendering(screen.width if screen.is_terminal else None)
        self._rows: list[StyledText] = []
        self._began = time.monotonic()
        self._live: LiveDisplay | None = None
        if lively and screen.is_terminal and not screen.is_dumb_terminal:
            self._live = LiveDisplay(self, screen, auto_refresh=False)
            self._live.start()

    def take(self, event: dict[str, Any]) -> None:
        self._rows += self._rendering.take(event)
        if len(self._rows) > _MOST_ROWS:
            self.refresh()

    def refresh(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._screen.print(Group(*rows), soft_wrap=not self._screen.is_terminal)
        if self._live is not None:
            self._live.refresh()

    def __rich__(self) -> RenderableType:
        rows = self._rendering.pending() or [waiting(time.monotonic() - self._began)]
        return Group(*rows[-max(1, self._screen.height - 1) :])

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        self._rows += self._rendering.end()
        self.refresh()


async def show(chosen: Chosen, to: Show, *, to_the_end: bool) -> None:
    """Give a rollout's events to `to`: those that there are, or all until it is over."""
    ending = Ending(chosen)
    if not to_the_end and not chosen.paths.trajectory.exists():
        await ending.ask()
    over: Callable[[], bool] = ending if to_the_end or ending.problem is not None else lambda: True
    besides = [asyncio.create_task(_refresh(to))]
    if to_the_end:
        besides.append(asyncio.create_task(ending.watch()))
    try:
        async for event in follow(chosen.paths.trajectory, over=over):
            to.take(event)
    finally:
        for task in besides:
            task.cancel()
        to.close()
        ended = await asyncio.gather(*besides, return_exceptions=True)
    for how in ended:
        if isinstance(how, Exception):
            raise how


async def _refresh(to: Show) -> None:
    while True:
        to.refresh()
        await asyncio.sleep(REFRESH_EVERY_SEC)


def watch_rollout(name: str, jobs_dir: Path, *, to_the_end: bool, as_json: bool) -> int:
    """Show a rollout's trajectory, and what it came to. Returns the exit status."""
    chosen = choose(name, jobs_dir)
    if as_json:
        command.run(show(chosen, AsData(), to_the_end=to_the_end))
        return _status(chosen.result(), to_the_end)
    screen = console()
    screen.print(line((chosen.label, "bold"), f"  {chosen.paths.root}"), soft_wrap=True, style="dim")
    command.run(show(chosen, AsText(screen, lively=to_the_end), to_the_end=to_the_end))
    _show_outcome(chosen.result(), screen, to_the_end)
    return _status(chosen.result(), to_the_end)


def _show_outcome(result: RolloutResult | None, screen: Screen, over: bool) -> None:
    screen.print()
    if result is None:
        said = "The job does not run, and this rollout has no result." if over else "It has no result yet."
        remedy = "bench job resume goes on with the job." if over else "--follow shows what is still to come."
        screen.print(line((said, "yellow"), f" {remedy}"))
        return
    took = seconds((result.finished_at - result.started_at).total_seconds())
    style = STATUS_STYLES[result.status]
    sign = f"{STATUS_SIGNS[result.status]} {result.status}"
    screen.print(line((sign, f"bold {style}"), f"  reward {reward_or_value(result)}", (f"  {took}", "dim")))
    metrics = {name: value for name, value in (result.rewards or {}).items() if name != "reward"}
    if metrics and result.status != "scored":
        told = "  ".join(f"{name} {reward(value)}" for name, value in metrics.items())
        screen.print(line((told, "dim")), soft_wrap=True)
    _show_findings(result, screen)
    show_errors([result], screen)


def _show_findings(result: RolloutResult, screen: Screen) -> None:
    """Show what the hardening found, tampering first."""
    ordered = sorted(result.findings, key=lambda finding: not finding.is_tampering)
    for finding in ordered[:MAX_FINDINGS]:
        parts = (finding.path, finding.detail, finding.step and f"step {finding.step}", finding.item)
        about = " · ".join(part for part in parts if part)
        style = "bold red" if finding.is_tampering else "dim"
        screen.print(line((finding.weight, style), f"  {finding.action} {about}"), soft_wrap=True)
    more = len(ordered[MAX_FINDINGS:]) + result.findings_left_out
    if more:
        screen.print(line((f"and {plural(more, 'other finding')}: see evidence/hardening.json", "dim")))


def _status(result: RolloutResult | None, over: bool) -> int:
    if result is None:
        return command.SOME_ERRORED if over else command.ALL_SCORED
    return command.ALL_SCORED if result.is_scored else command.SOME_ERRORED
