"""`bench job watch ROLLOUT`: find the rollout, and show its trajectory on a terminal, in a pipe or as JSON lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Group, RenderableType
from rich.text import Text as StyledText

from benchflow.cli import command
from benchflow.cli.chosen import Chosen, choose
from benchflow.cli.job_report import format_score, show_errors
from benchflow.cli.running_engine import find_engine
from benchflow.cli.screen import (
    STATUS_SIGNS,
    STATUS_STYLES,
    flush,
    format_count,
    format_reward,
    format_seconds,
    make_console,
    print_json_line,
)
from benchflow.cli.terminal import LiveDisplay, Screen, make_line
from benchflow.cli.trajectory import Rendering, format_waiting
from benchflow.contracts import temporal_names
from benchflow.contracts.job import RolloutProgress
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.errors import BenchFlowError, UsageError
from benchflow.trajectories.follow import follow

if TYPE_CHECKING:
    from temporalio.client import Client

    from benchflow.jobs import Engine

MAX_FINDINGS = 20
"""Maximum number of findings of the hardening that are shown; the result lists more."""

POLL_INTERVAL_SEC = 1.0
"""Poll interval, in seconds, at which the server is asked whether the job still runs."""

REFRESH_INTERVAL_SEC = 0.06
"""Seconds between two refreshes of the display."""

_MAX_ROWS = 500
"""Number of buffered rows beyond which they are printed at once."""

_PHASES_WITHOUT_SANDBOX = ("plan", "provision")


# --- the end of the rollout ----------------------------------------------------------------------------------


class RolloutEnding:
    """Callable that returns whether a rollout is over: it has a final result, or its job does not run any more."""

    def __init__(self, chosen: Chosen) -> None:
        """Make it for a rollout. `problem` is set if the rollout's files are on another host."""
        self._chosen = chosen
        self._job_is_over = False
        self._seen: tuple[int, bool] | None = None
        self._engine: Engine | None = None
        self.problem: BenchFlowError | None = None

    def __call__(self) -> bool:
        """Return whether the rollout is over. Raise `problem` if that is set."""
        if self.problem is not None:
            raise self.problem
        return self._job_is_over or self._has_result()

    def _has_result(self) -> bool:
        """Return whether there is a result after which the rollout is not retried."""
        try:
            written = self._chosen.paths.result.stat().st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return False
        if self._seen is None or self._seen[0] != written:
            result = self._chosen.result()
            self._seen = (written, result is not None and not self._chosen.spec.retry.allows(result))
        return self._seen[1]

    async def watch(self) -> None:
        """Poll the server while there is no result: a job that is over writes none."""
        silent = 0
        while self.problem is None:
            await asyncio.sleep(POLL_INTERVAL_SEC)
            if not self._has_result():
                # Twice: a job that was submitted just now has a directory before it runs.
                silent = silent + 1 if await self.ask() else 0
                self._job_is_over = silent > 1

    async def ask(self) -> bool:
        """Return whether the job is over: True without a stack, False if the server is silent. May set `problem`."""
        from temporalio.client import WorkflowExecutionStatus
        from temporalio.service import RPCError

        from benchflow import stack
        from benchflow.paths import StatePaths
        from benchflow.temporal import find_cluster_target
        from benchflow.workflow_executions import is_not_found

        if find_cluster_target() is None and stack.find_running(StatePaths.default()) is None:
            return True
        self._engine = self._engine or await find_engine()
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
        """Set `problem` if the rollout has a sandbox, but no directory here: its files are on the sandbox's host."""
        from temporalio.service import RPCError

        from benchflow.workflow_executions import is_not_found

        handle = client.get_workflow_handle(self._chosen.id)
        try:
            progress = await handle.query(temporal_names.PROGRESS, result_type=RolloutProgress)
        except RPCError as error:
            if not is_not_found(error):
                raise
            return
        if progress.phase not in _PHASES_WITHOUT_SANDBOX and not self._chosen.paths.root.is_dir():
            job = self._chosen.job.root
            self.problem = UsageError(
                "this rollout is on another host of the cluster; its trajectory is there until it is fetched",
                file=str(self._chosen.paths.root),
                key="ROLLOUT",
                remedy=f"watch it on that host, or when the job is over: bench job fetch {job.name} "
                f"--jobs-dir {job.parent}",
            )


# --- display -------------------------------------------------------------------------------------------------


class Show(Protocol):
    """A display of events."""

    def take(self, event: dict[str, Any]) -> None:
        """Show an event."""
        ...

    def refresh(self) -> None:
        """Update the display. Called periodically, also without new events."""
        ...

    def close(self) -> None:
        """End the display."""
        ...


class AsData:
    """Display of each event as a JSON line."""

    def take(self, event: dict[str, Any]) -> None:
        """Print an event, without a flush."""
        print_json_line(event)

    def refresh(self) -> None:
        """Flush the printed events."""
        flush()

    def close(self) -> None:
        """Flush the printed events."""
        self.refresh()


class AsText:
    """Display of events as rows of text. On a terminal, incomplete rows stand below the others, and are redrawn."""

    def __init__(self, screen: Screen, *, lively: bool) -> None:
        """Start the display. lively: redraw incomplete rows, if the screen is a terminal."""
        self._screen = screen
        self._rendering = Rendering(screen.width if screen.is_terminal else None)
        self._rows: list[StyledText] = []
        self._began = time.monotonic()
        self._live: LiveDisplay | None = None
        if lively and screen.is_terminal and not screen.is_dumb_terminal:
            self._live = LiveDisplay(self, screen, auto_refresh=False)
            self._live.start()

    def take(self, event: dict[str, Any]) -> None:
        """Add the rows that an event completes."""
        self._rows += self._rendering.take(event)
        if len(self._rows) > _MAX_ROWS:
            self.refresh()

    def refresh(self) -> None:
        """Print the added rows, and redraw those that are incomplete."""
        rows, self._rows = self._rows, []
        if rows:
            self._screen.print(Group(*rows), soft_wrap=not self._screen.is_terminal)
        if self._live is not None:
            self._live.refresh()

    def __rich__(self) -> RenderableType:
        """Return the incomplete rows, as many as fit on the screen, or a spinner."""
        rows = self._rendering.pending() or [format_waiting(time.monotonic() - self._began)]
        return Group(*rows[-max(1, self._screen.height - 1) :])

    def close(self) -> None:
        """Stop redrawing, and print the remaining rows."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        self._rows += self._rendering.end()
        self.refresh()


async def show(chosen: Chosen, to: Show, *, to_the_end: bool) -> None:
    """Pass a rollout's events to `to`, and close that: those so far, or with `to_the_end` all until it is over.

    Raises:
        UsageError: The rollout's files are on another host of the cluster.
    """
    ending = RolloutEnding(chosen)
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
    """Refresh a display until it is cancelled."""
    while True:
        to.refresh()
        await asyncio.sleep(REFRESH_INTERVAL_SEC)


def watch_rollout(name: str, jobs_dir: Path, *, to_the_end: bool, as_json: bool) -> int:
    """Show a rollout's trajectory and result, and return the exit status. Arguments are as in `choose` and `show`."""
    chosen = choose(name, jobs_dir)
    if as_json:
        command.run(show(chosen, AsData(), to_the_end=to_the_end))
        return _choose_status(chosen.result(), to_the_end)
    screen = make_console()
    screen.print(make_line((chosen.label, "bold"), f"  {chosen.paths.root}"), soft_wrap=True, style="dim")
    command.run(show(chosen, AsText(screen, lively=to_the_end), to_the_end=to_the_end))
    _show_outcome(chosen.result(), screen, to_the_end)
    return _choose_status(chosen.result(), to_the_end)


def _show_outcome(result: RolloutResult | None, screen: Screen, over: bool) -> None:
    """Print a rollout's result, or that there is none yet (`over`: and will be none)."""
    screen.print()
    if result is None:
        said = "The job does not run, and this rollout has no result." if over else "It has no result yet."
        remedy = "bench job resume goes on with the job." if over else "--follow shows what is still to come."
        screen.print(make_line((said, "yellow"), f" {remedy}"))
        return
    took = format_seconds((result.finished_at - result.started_at).total_seconds())
    style = STATUS_STYLES[result.status]
    sign = f"{STATUS_SIGNS[result.status]} {result.status}"
    screen.print(make_line((sign, f"bold {style}"), f"  reward {format_score(result)}", (f"  {took}", "dim")))
    metrics = {name: value for name, value in (result.rewards or {}).items() if name != "reward"}
    if metrics and result.status != "scored":
        told = "  ".join(f"{name} {format_reward(value)}" for name, value in metrics.items())
        screen.print(make_line((told, "dim")), soft_wrap=True)
    _show_findings(result, screen)
    show_errors([result], screen)


def _show_findings(result: RolloutResult, screen: Screen) -> None:
    """Print the findings of the hardening, tampering first."""
    ordered = sorted(result.findings, key=lambda finding: not finding.is_tampering)
    for finding in ordered[:MAX_FINDINGS]:
        parts = (finding.path, finding.detail, finding.step and f"step {finding.step}", finding.item)
        about = " · ".join(part for part in parts if part)
        style = "bold red" if finding.is_tampering else "dim"
        screen.print(make_line((finding.weight, style), f"  {finding.action} {about}"), soft_wrap=True)
    more = len(ordered[MAX_FINDINGS:]) + result.findings_left_out
    if more:
        screen.print(make_line((f"and {format_count(more, 'other finding')}: see evidence/hardening.json", "dim")))


def _choose_status(result: RolloutResult | None, over: bool) -> int:
    """Return the exit status: for a rollout without a result, an error only if it is over."""
    if result is None:
        return command.SOME_ERRORED if over else command.ALL_SCORED
    return command.ALL_SCORED if result.is_scored else command.SOME_ERRORED
