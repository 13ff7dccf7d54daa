"""Progress of a running job: a live board on a terminal, else a line per finished rollout."""

from __future__ import annotations

import asyncio
import contextlib
import select
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

from benchflow.cli.job_report import show_question
from benchflow.cli.screen import (
    STATUS_SIGNS,
    STATUS_STYLES,
    find_first_line,
    fit,
    format_earned,
    format_reward,
    format_seconds,
)
from benchflow.cli.terminal import LiveDisplay, Rows, Screen, Text, make_line
from benchflow.contracts import ids
from benchflow.contracts.counts import Counts, RewardSums
from benchflow.contracts.job import JobProgress, JobSpec, RolloutProgress
from benchflow.contracts.rewards import scalar_of, shown_keys
from benchflow.contracts.rollout_records import Failure, RolloutOutcome, RolloutResult
from benchflow.errors import JobNotFoundError

if TYPE_CHECKING:
    from benchflow.jobs import Job

POLL_INTERVAL_SEC = 0.5
"""Poll interval of the job's progress, in seconds."""

TROUBLE_INTERVAL_SEC = 3.0
"""Poll interval, in seconds, of failures that are retried."""

RUN_AGAIN = "run again"
"""Status shown for an attempt that is followed by another one."""

MAX_OPEN = 12
"""Maximum number of running rollouts that are shown."""

MAX_RECENT = 8
"""Maximum number of finished rollouts that the board shows."""

_CHROME = 4
"""Lines of the board that are not rollouts."""

_OTHER_COLUMNS = 42


Updates = AsyncGenerator[JobProgress | None, None]
"""Progress of a job, polled; None when it does not answer."""


async def follow(job: Job, screen: Screen, updates: Updates | None = None) -> None:
    """Show a job's progress until it ends. A cancellation of this coroutine does not affect the job.

    Args:
        job: The job.
        screen: Console to show it on.
        updates: Progress to show, until it is exhausted. By default the job is polled and awaited, and its results
            are fetched.
    """
    async with contextlib.aclosing(updates or job.watch(POLL_INTERVAL_SEC)) as updates:
        if screen.is_terminal:
            await _follow_live(job, screen, updates)
        else:
            await _follow_plain(job, screen, updates)


async def poll_progress(job: Job) -> Updates:
    """Yield the progress of a job, endlessly and without fetching results, for a job that is awaited elsewhere."""
    while True:
        yield await job.progress()
        await asyncio.sleep(POLL_INTERVAL_SEC)


class Labels:
    """Names of a job's rollouts for display, by their workflow ids."""

    def __init__(self, job_id: str, spec: JobSpec) -> None:
        """Make them for the job of this id and specification."""
        self._spec = spec
        self._names: dict[str, tuple[str, str]] = {}
        # Everything of an id but its last part is the same for repeats of as many digits.
        for repeat in [0] + [10**digits for digits in range(1, len(str(spec.repeats)))]:
            for task in spec.tasks:
                for agent in spec.agents:
                    rollout = ids.rollout_id(job_id, task.name, agent.label, repeat)
                    self._names[rollout.rpartition("/")[0]] = (task.name, agent.label)

    def task(self, rollout: str) -> str:
        """Return the name of the rollout's task."""
        return self._named(rollout)[0]

    def of(self, rollout: str) -> tuple[str, str]:
        """Return task and agent of a rollout; the task with `#<repeat>` in a job of several repeats."""
        task, agent = self._named(rollout)
        repeat = rollout.rpartition("/")[2]
        return (f"{task} #{repeat}" if self._spec.repeats > 1 else task), agent

    def _named(self, rollout: str) -> tuple[str, str]:
        return self._names.get(rollout.rpartition("/")[0], (rollout.partition("/r/")[2], ""))


# --- without a terminal ------------------------------------------------------------------------------------


class Troubles:
    """Failures that a job and its running rollouts are retrying, polled."""

    def __init__(self, job: Job) -> None:
        """Make it for a job. `of_job` and `of_rollouts` are filled by `ask`."""
        self._job = job
        self._asked = float("-inf")
        self.of_job: str | None = None
        self.of_rollouts: dict[str, str] = {}

    async def ask(self, rollouts: list[str], progress: JobProgress | None) -> None:
        """Update the failures from the server, unless that was done in the last 3 seconds.

        Args:
            rollouts: Workflow ids of the rollouts.
            progress: Progress of the job; None if it does not answer.
        """
        own = progress.trouble if progress else None
        self.of_job = own or self.of_job
        if time.monotonic() - self._asked < TROUBLE_INTERVAL_SEC:
            return
        self._asked = time.monotonic()
        of_job, *found = await asyncio.gather(*map(self._job.trouble, [self._job.id, *rollouts]))
        self.of_job = of_job or own
        self.of_rollouts = {rollout: text for rollout, text in zip(rollouts, found, strict=True) if text}


async def _follow_plain(job: Job, screen: Screen, updates: Updates) -> None:
    """Print a line per finished rollout, retried failure and question."""
    labels = Labels(job.id, job.spec)
    before = {(result.workflow_id, result.finished_at) for result in job.results()}
    shown = {workflow_id for workflow_id, _ in before} if job.attached else set()
    troubles, printed, told_again, is_question_shown = Troubles(job), set(), set(), False
    async for progress in updates:
        await troubles.ask(progress.open[:MAX_OPEN] if progress else [], progress)
        told = [(labels.of(rollout), text) for rollout, text in troubles.of_rollouts.items()]
        for label, text in [(("job", job.name), troubles.of_job), *told]:
            if text and (label, text.partition(",")[0]) not in printed:
                printed.add((label, text.partition(",")[0]))
                _print_line(screen, label, "retried", "", find_first_line(text))
        if progress is None:
            continue
        for outcome in progress.run_again:
            if (outcome.id, outcome.attempt) not in told_again:
                told_again.add((outcome.id, outcome.attempt))
                _print_line(screen, labels.of(outcome.id), RUN_AGAIN, "", _format_error(outcome))
        for outcome in progress.recent:
            if outcome.id not in shown:
                shown.add(outcome.id)
                _print_line(
                    screen, labels.of(outcome.id), outcome.status, _format_outcome(outcome), _format_error(outcome)
                )
        if progress.asked is not None and not is_question_shown:
            show_question(progress.asked.message, job.directory, screen)
        is_question_shown = progress.asked is not None
    # Between two polls, more rollouts may have finished than the progress of a job lists.
    for result in job.results():
        if (result.workflow_id, result.finished_at) not in before and result.workflow_id not in shown:
            _print_line(
                screen, labels.of(result.workflow_id), result.status, _format_outcome(result), _format_error(result)
            )


def _print_line(screen: Screen, label: tuple[str, str], status: str, value: str, why: str) -> None:
    parts = [f"{status:11}", f"{value:>7}", " · ".join(label), why]
    screen.print(make_line("  ".join(part for part in parts if part)), soft_wrap=True)


def _format_outcome(outcome: RolloutOutcome | RolloutResult) -> str:
    if outcome.status == "scored":
        return find_first_line(shown_keys(outcome.rewards))
    return format_earned(scalar_of(outcome.rewards), outcome.reward_kind)


def _format_error(outcome: RolloutOutcome | RolloutResult) -> str:
    failure = outcome.error or outcome.verifier_error
    return f"{failure.category}: {find_first_line(failure.message)}" if failure and failure.message else ""


def _format_means(sums: RewardSums | None) -> list[str]:
    """Return the means of an agent: `0.75 n=4` of measured rewards, `V 0.5 n=2` of V(s), as far as there are any."""
    known = [] if sums is None else [("", sums.total, sums.n), ("V ", sums.total_value, sums.n_values)]
    return [f"{sign}{format_reward(total / n)} n={n}" for sign, total, n in known if n]


# --- on a terminal -----------------------------------------------------------------------------------------


class Board:
    """The live display of a job, redrawn several times a second from the latest progress."""

    def __init__(self, job: Job, width: int, height: int) -> None:
        """Make a board of at most so many columns and lines."""
        self._labels = Labels(job.id, job.spec)
        self._agents = [agent.label for agent in job.spec.agents]
        self._started = time.monotonic()
        self._spinner = Spinner("dots", style="cyan")
        self._bar_width = max(8, min(30, width - 60))
        self._width = width
        room = max(0, min(MAX_RECENT, height - MAX_OPEN - _CHROME))
        self._recent: deque[tuple[RolloutOutcome, str]] = deque(maxlen=room)
        self._seen: set[tuple[str, int]] = set()
        self.max_open = max(1, min(MAX_OPEN, height - _CHROME))
        self.progress: JobProgress | None = None
        self.phases: dict[str, RolloutProgress | None] = {}
        self.troubles = Troubles(job)

    def hear(self, progress: JobProgress, phases: dict[str, RolloutProgress | None]) -> None:
        """Set the latest progress.

        Args:
            progress: Progress of the job.
            phases: Progress of the running rollouts that are shown, by workflow id; None for one that does not answer.
        """
        self.progress, self.phases = progress, phases
        for outcomes, follows in ((progress.run_again, RUN_AGAIN), (progress.recent, "")):
            for outcome in outcomes:
                if (outcome.id, outcome.attempt) not in self._seen:
                    self._seen.add((outcome.id, outcome.attempt))
                    self._recent.append((outcome, follows))

    def __rich__(self) -> RenderableType:
        """Return the board as rich draws it."""
        if self.progress is None:
            waits = Rows.grid(padding=(0, 2))
            waits.add_column()
            waits.add_column(overflow="fold")
            waits.add_row(self._spinner, Text(f"waiting for the worker  {self._elapsed()}", "dim"))
            if self.troubles.of_job:
                waits.add_row("", Text(find_first_line(self.troubles.of_job), "yellow"))
            return waits
        rows = Rows.grid(padding=(0, 2), expand=True)
        rows.add_column(width=1)
        # The names are cut so that the columns after them keep their place. On a wide screen, reasons get most of the
        # columns beyond 80.
        for_reasons = max(0, self._width - 80) * 4 // 5 if self.troubles.of_rollouts else 0
        room = max(20, self._width - _OTHER_COLUMNS - for_reasons)
        rows.add_column(no_wrap=True, overflow="ellipsis", max_width=room - room // 3)
        rows.add_column(no_wrap=True, overflow="ellipsis", max_width=room // 3, style="dim")
        rows.add_column(no_wrap=True, justify="right", width=9)
        rows.add_column(no_wrap=True, justify="right", style="dim", min_width=6)
        # It has the width that the others leave: a long reason is cut, and not the rollout's name.
        rows.add_column(no_wrap=True, overflow="ellipsis", style="red", ratio=1)
        for outcome, follows in self._recent:
            self._finished_row(rows, outcome, follows)
        for rollout in self.progress.open[: self.max_open]:
            self._open_row(rows, rollout)
        means = self._agent_means(self.progress.counts)
        return Group(rows, self._more(self.progress), self._totals(self.progress), *means)

    def _finished_row(self, rows: Table, outcome: RolloutOutcome, follows: str) -> None:
        style = STATUS_STYLES[outcome.status]
        failure = outcome.error or outcome.verifier_error
        rows.add_row(
            Text(STATUS_SIGNS[outcome.status], style),
            *self._labels.of(outcome.id),
            Text(_format_outcome(outcome), style),
            format_seconds(outcome.seconds),
            Text(" · ".join(part for part in (follows, failure.category if failure else "") if part)),
        )

    def _open_row(self, rows: Table, rollout: str) -> None:
        known = self.phases.get(rollout)
        since = f"{max(0.0, time.time() - known.since):.0f} s" if known else ""
        rows.add_row(
            self._spinner,
            *self._labels.of(rollout),
            Text(known.phase if known else "…", "cyan"),
            since,
            self._detail(rollout, known),
        )

    def _detail(self, rollout: str, known: RolloutProgress | None) -> Text:
        trouble = self.troubles.of_rollouts.get(rollout)
        if trouble:
            return Text(find_first_line(trouble), "yellow")
        attempt = f"attempt {known.attempt}" if known and known.attempt > 1 else ""
        return Text("  ".join(part for part in (attempt, known.detail if known else "") if part), "dim")

    def _more(self, progress: JobProgress) -> Text:
        more = progress.open_count - min(len(progress.open), self.max_open)
        parts = [f"{more} more running"] if more > 0 else []
        parts += [f"{progress.waiting} waiting"] if progress.waiting else []
        parts += ["paused: bench job unpause"] if progress.paused else []
        parts += ["cancelling"] if progress.cancelled else []
        parts += [find_first_line(self.troubles.of_job)] if self.troubles.of_job else []
        return Text("   " + " · ".join(parts) if parts else "", "dim")

    def _totals(self, progress: JobProgress) -> Table:
        counts = progress.counts
        done = progress.total - progress.open_count - progress.waiting
        earlier = done - counts.finished
        words = Text()
        for status in STATUS_STYLES:
            number = getattr(counts, status)
            if number:
                words.append(f"{number} {status.replace('_', ' ')}", STATUS_STYLES[status]).append("  ")
        if earlier > 0:
            words.append(f"{earlier} from before  ", "dim")
        if len(self._agents) == 1:
            for mean in _format_means(counts.agents.get(self._agents[0])):
                words.append(f"mean {mean}  ", "bold")
        words.append(self._elapsed(), "dim")
        totals = Rows.grid(padding=(0, 2))
        totals.add_row(
            ProgressBar(total=progress.total, completed=done, width=self._bar_width),
            Text(f"{done}/{progress.total}", "bold"),
            words,
        )
        return totals

    def _agent_means(self, counts: Counts) -> list[Text]:
        """Return a line with each agent's mean for a job of several agents: no mean is of all of them together."""
        parts = [
            f"{agent} {' '.join(means)}" for agent in self._agents if (means := _format_means(counts.agents.get(agent)))
        ]
        if len(self._agents) < 2 or not parts:
            return []
        return [fit("   mean reward  " + " · ".join(parts), "bold")]

    def _elapsed(self) -> str:
        minutes, rest = divmod(int(time.monotonic() - self._started), 60)
        return f"{minutes}:{rest:02}"


async def _confirm(job: Job, asked: Failure, screen: Screen) -> bool | None:
    """Ask the user whether to continue a job that stops after equal errors. Return None once the job asks no more."""
    screen.print(make_line((asked.message, "yellow")), soft_wrap=True)
    screen.print("Start the rest all the same? [y/N]: ", end="")
    # Not by a thread that reads: a blocking read cannot be ended.
    while not select.select([sys.stdin], [], [], 0)[0]:
        await asyncio.sleep(POLL_INTERVAL_SEC)
        progress = await job.progress()
        if progress is None or progress.asked is None:
            screen.print("")
            return None
    return sys.stdin.readline().strip().lower() in ("y", "yes")


async def _follow_live(job: Job, screen: Screen, updates: Updates) -> None:
    """Show the board until the updates end, and ask the user when the job asks."""
    board = Board(job, screen.width, screen.height)
    # The board is removed when the job is over: the table of rewards then has the same content.
    display, is_question_shown = LiveDisplay(board, screen, refresh_per_second=10), False
    with display:
        async for progress in updates:
            if progress is None:
                await board.troubles.ask([], None)
                continue
            if progress.asked is not None and sys.stdin.isatty():
                display.stop()
                continues = await _confirm(job, progress.asked, screen)
                if continues is not None:
                    # The job may have stopped by itself meanwhile.
                    with contextlib.suppress(JobNotFoundError):
                        await job.decide(continues)
                display.start()
                continue
            if progress.asked is not None and not is_question_shown:
                show_question(progress.asked.message, job.directory, screen)
            is_question_shown = progress.asked is not None
            shown = progress.open[: board.max_open]
            phases = await asyncio.gather(*(job.rollout_progress(rollout) for rollout in shown))
            await board.troubles.ask(shown, progress)
            board.hear(progress, dict(zip(shown, phases, strict=True)))
