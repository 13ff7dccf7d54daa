"""Following a job while it runs: a live board on a terminal, a line per finished rollout elsewhere."""

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
from rich.text import Text as StyledText

from benchflow.cli.report import show_question
from benchflow.cli.screen import STATUS_SIGNS, STATUS_STYLES, earned, one_line, reward, seconds
from benchflow.cli.terminal import LiveDisplay, Rows, Screen, Text, line
from benchflow.contracts import ids
from benchflow.contracts.counts import Counts, RewardSums
from benchflow.contracts.job import JobProgress, JobSpec, RolloutProgress
from benchflow.contracts.rewards import scalar_of, shown_keys
from benchflow.contracts.rollout import Failure, RolloutOutcome, RolloutResult
from benchflow.errors import JobNotFoundError

if TYPE_CHECKING:
    from benchflow.jobs import Job

EVERY_SEC = 0.5
TROUBLE_EVERY_SEC = 3.0
"""Seconds between two questions to the server, what fails and is retried."""

RUN_AGAIN = "run again"
"""Status that is shown of an attempt which another one follows."""

MAX_OPEN = 12
MAX_RECENT = 8
_CHROME = 4
_OTHER_COLUMNS = 42


Updates = AsyncGenerator[JobProgress | None, None]
"""The job's progress, again and again; None where it cannot answer then."""


async def follow(job: Job, screen: Screen, updates: Updates | None = None) -> None:
    """Show the job's progress. Cancelling it leaves the job alone.

    Args:
        job: The job.
        screen: Where it is shown.
        updates: What is shown, to its end. By default the job is waited for, and its results are fetched.
    """
    async with contextlib.aclosing(updates or job.watch(EVERY_SEC)) as updates:
        if screen.is_terminal:
            await _follow_live(job, screen, updates)
        else:
            await _follow_plain(job, screen, updates)


async def polled(job: Job) -> Updates:
    """Yield the progress of a job that somebody else waits for, without an end."""
    while True:
        yield await job.progress()
        await asyncio.sleep(EVERY_SEC)


class Labels:
    """Workflow ids of a job's rollouts as people name them."""

    def __init__(self, job_id: str, spec: JobSpec) -> None:
        self._spec = spec
        self._names: dict[str, tuple[str, str]] = {}
        # Everything of an id but its last part is the same for repeats of as many digits.
        for repeat in [0] + [10**digits for digits in range(1, len(str(spec.repeats)))]:
            for task in spec.tasks:
                for agent in spec.agents:
                    rollout = ids.rollout_id(job_id, task.name, agent.label, repeat)
                    self._names[rollout.rpartition("/")[0]] = (task.name, agent.label)

    def task(self, rollout: str) -> str:
        """The name of the rollout's task."""
        return self._named(rollout)[0]

    def of(self, rollout: str) -> tuple[str, str]:
        """(task, agent); the task with `#<repeat>` where there are several."""
        task, agent = self._named(rollout)
        repeat = rollout.rpartition("/")[2]
        return (f"{task} #{repeat}" if self._spec.repeats > 1 else task), agent

    def _named(self, rollout: str) -> tuple[str, str]:
        return self._names.get(rollout.rpartition("/")[0], (rollout.partition("/r/")[2], ""))


# --- without a terminal ------------------------------------------------------------------------------------


class Troubles:
    """What the job and its open rollouts fail at and retry, asked for now and then."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._asked = float("-inf")
        self.of_job: str | None = None
        self.of_rollouts: dict[str, str] = {}

    async def ask(self, rollouts: list[str], progress: JobProgress | None) -> None:
        """Ask the server, unless that was done just now. progress: None where the job can't answer itself."""
        own = progress.trouble if progress else None
        self.of_job = own or self.of_job
        if time.monotonic() - self._asked < TROUBLE_EVERY_SEC:
            return
        self._asked = time.monotonic()
        of_job, *found = await asyncio.gather(*map(self._job.trouble, [self._job.id, *rollouts]))
        self.of_job = of_job or own
        self.of_rollouts = {rollout: text for rollout, text in zip(rollouts, found, strict=True) if text}


async def _follow_plain(job: Job, screen: Screen, updates: Updates) -> None:
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
                _print_line(screen, label, "retried", "", one_line(text))
        if progress is None:
            continue
        for outcome in progress.run_again:
            if (outcome.id, outcome.attempt) not in told_again:
                told_again.add((outcome.id, outcome.attempt))
                _print_line(screen, labels.of(outcome.id), RUN_AGAIN, "", _why(outcome))
        for outcome in progress.recent:
            if outcome.id not in shown:
                shown.add(outcome.id)
                _print_line(screen, labels.of(outcome.id), outcome.status, _earned(outcome), _why(outcome))
        if progress.asked is not None and not is_question_shown:
            show_question(progress.asked.message, job.directory, screen)
        is_question_shown = progress.asked is not None
    # More may have finished between two looks than a job remembers.
    for result in job.results():
        if (result.workflow_id, result.finished_at) not in before and result.workflow_id not in shown:
            _print_line(screen, labels.of(result.workflow_id), result.status, _earned(result), _why(result))


def _print_line(screen: Screen, label: tuple[str, str], status: str, value: str, why: str) -> None:
    parts = [f"{status:11}", f"{value:>7}", " · ".join(label), why]
    screen.print(line("  ".join(part for part in parts if part)), soft_wrap=True)


def _earned(outcome: RolloutOutcome | RolloutResult) -> str:
    if outcome.status == "scored":
        return one_line(shown_keys(outcome.rewards))
    return earned(scalar_of(outcome.rewards), outcome.reward_kind)


def _why(outcome: RolloutOutcome | RolloutResult) -> str:
    failure = outcome.error or outcome.verifier_error
    return f"{failure.category}: {one_line(failure.message)}" if failure and failure.message else ""


def _means(sums: RewardSums | None) -> list[str]:
    """Return `0.75 n=4` of an agent's measured rewards, and `V 0.5 n=2` of its V(s), as far as there are any."""
    known = [] if sums is None else [("", sums.total, sums.n), ("V ", sums.total_value, sums.n_values)]
    return [f"{sign}{reward(total / n)} n={n}" for sign, total, n in known if n]


# --- on a terminal -----------------------------------------------------------------------------------------


class Board:
    """What a terminal shows of a running job; drawn anew several times a second from what was last heard."""

    def __init__(self, job: Job, width: int, height: int) -> None:
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
        self.progress, self.phases = progress, phases
        for outcomes, follows in ((progress.run_again, RUN_AGAIN), (progress.recent, "")):
            for outcome in outcomes:
                if (outcome.id, outcome.attempt) not in self._seen:
                    self._seen.add((outcome.id, outcome.attempt))
                    self._recent.append((outcome, follows))

    def __rich__(self) -> RenderableType:
        if self.progress is None:
            trouble = ("\n   " + one_line(self.troubles.of_job), "yellow") if self.troubles.of_job else ""
            return Text.assemble(self._frame(), ("  waiting for the worker  " + self._elapsed(), "dim"), trouble)
        rows = Rows.grid(padding=(0, 2), expand=True)
        rows.add_column(width=1)
        rows.add_column(no_wrap=True)
        rows.add_column(no_wrap=True, style="dim")
        rows.add_column(no_wrap=True, justify="right", width=9)
        rows.add_column(no_wrap=True, justify="right", style="dim", min_width=6)
        # It has what the others leave: of a long reason the end goes, and not whose it is.
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
            *self._who(outcome.id),
            Text(_earned(outcome), style),
            seconds(outcome.seconds),
            Text(" · ".join(part for part in (follows, failure.category if failure else "") if part)),
        )

    def _open_row(self, rows: Table, rollout: str) -> None:
        known = self.phases.get(rollout)
        since = f"{max(0.0, time.time() - known.since):.0f} s" if known else ""
        rows.add_row(
            self._frame(),
            *self._who(rollout),
            Text(known.phase if known else "…", "cyan"),
            since,
            self._detail(rollout, known),
        )

    def _detail(self, rollout: str, known: RolloutProgress | None) -> StyledText:
        trouble = self.troubles.of_rollouts.get(rollout)
        if trouble:
            return Text(one_line(trouble), "yellow")
        attempt = f"attempt {known.attempt}" if known and known.attempt > 1 else ""
        return Text("  ".join(part for part in (attempt, known.detail if known else "") if part), "dim")

    def _more(self, progress: JobProgress) -> Text:
        more = progress.open_count - min(len(progress.open), self.max_open)
        parts = [f"{more} more running"] if more > 0 else []
        parts += [f"{progress.waiting} waiting"] if progress.waiting else []
        parts += ["paused: bench job unpause"] if progress.paused else []
        parts += ["cancelling"] if progress.cancelled else []
        parts += [one_line(self.troubles.of_job)] if self.troubles.of_job else []
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
            for mean in _means(counts.agents.get(self._agents[0])):
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
        """Return one line with a mean for each agent where there are several: no mean is of all of them."""
        parts = [f"{agent} {' '.join(means)}" for agent in self._agents if (means := _means(counts.agents.get(agent)))]
        if len(self._agents) < 2 or not parts:
            return []
        made = line("   mean reward  " + " · ".join(parts), style="bold")
        made.truncate(self._width, overflow="ellipsis")
        return [made]

    def _who(self, rollout: str) -> list[Text]:
        """Task and agent, cut so that the columns after them keep their place."""
        parts = [line(part) for part in self._labels.of(rollout)]
        # Of a wide screen, reasons have most of what is more than eighty columns.
        for_reasons = max(0, self._width - 80) * 4 // 5 if self.troubles.of_rollouts else 0
        room = max(20, self._width - _OTHER_COLUMNS - for_reasons)
        for part, width in zip(parts, (room - room // 3, room // 3), strict=True):
            part.truncate(width, overflow="ellipsis")
        return parts

    def _frame(self) -> StyledText:
        frame = self._spinner.render(time.monotonic())
        return frame if isinstance(frame, StyledText) else Text("·")

    def _elapsed(self) -> str:
        minutes, rest = divmod(int(time.monotonic() - self._started), 60)
        return f"{minutes}:{rest:02}"


async def _confirm(job: Job, asked: Failure, screen: Screen) -> bool | None:
    """Ask whether a job is to go on whose first rollouts have failed alike. None once it asks no more."""
    screen.print(line((asked.message, "yellow")), soft_wrap=True)
    screen.print("Start the rest all the same? [y/N]: ", end="")
    # Not by a thread that reads: nothing could end that.
    while not select.select([sys.stdin], [], [], 0)[0]:
        await asyncio.sleep(EVERY_SEC)
        progress = await job.progress()
        if progress is None or progress.asked is None:
            screen.print("")
            return None
    return sys.stdin.readline().strip().lower() in ("y", "yes")


async def _follow_live(job: Job, screen: Screen, updates: Updates) -> None:
    board = Board(job, screen.width, screen.height)
    # The board goes when the job is over: the table of rewards then says the same, for good.
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
                    # It may have stopped by itself just now.
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
