"""Results of a job's mode for display: a line per GRPO group, or per depth at which V(s) is estimated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchflow.cli.screen import find_first_line, fit, format_count, format_reward, make_table

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text as StyledText

    from benchflow.cli.terminal import Screen
    from benchflow.contracts.job_modes import JobMode
    from benchflow.contracts.rollout_records import RolloutResult
    from benchflow.paths import JobPaths
    from benchflow.results.mode_rows import Row

MAX_ROWS = 60
"""Maximum number of lines that are shown."""

_MAX_NAMES = 3
"""Maximum number of failed children that a line names."""


def format_mode(mode: JobMode) -> str:
    """Return a mode in short: `grpo: groups at depth 0, n=8`, `value: V(s) at depth 0, 2, n=4`."""
    if mode.kind == "grpo":
        return f"grpo: groups at depth {mode.at}, n={mode.n}"
    depths = ", ".join(map(str, sorted(mode.depths)))
    return f"value: V(s) at depth {depths}, n={mode.n}"


def make_mode_document(mode: JobMode, results: Sequence[RolloutResult]) -> dict[str, Any]:
    """Return the rows that a mode adds to the JSON output, `groups` or `values`: those of the file of that name."""
    from benchflow.results.mode_rows import make_rows

    key = "groups" if mode.kind == "grpo" else "values"
    return {key: [row.model_dump(mode="json") for row in make_rows(mode, results)]}


def show_mode(
    paths: JobPaths,
    mode: JobMode | None,
    results: Sequence[RolloutResult],
    screen: Screen,
    limit: int | None = MAX_ROWS,
) -> None:
    """Print the table of a job's groups or values, and the path of their file. Print nothing for a job without a mode.

    Args:
        paths: Paths of the job.
        mode: Mode of the job.
        results: Results of its rollouts.
        screen: Console to print on.
        limit: Maximum number of lines; None for all.
    """
    from benchflow.cli.terminal import Text, make_line
    from benchflow.results.mode_rows import get_rows_file, make_rows

    if mode is None:
        return
    rows = make_rows(mode, results)
    shown = rows[:limit]
    if shown:
        screen.print(_make_rows(shown))
    if len(shown) < len(rows):
        screen.print(Text(f"{format_count(len(rows) - len(shown), 'make_line')} not listed", "dim"))
    file = get_rows_file(paths, mode)
    if file.is_file():
        screen.print(make_line((f"{file.stem:<9}", "dim"), str(file)), soft_wrap=True)


def _make_rows(rows: Sequence[Row]) -> Table:
    """Return rows of one mode as a table."""
    from benchflow.results.mode_rows import ValueRow

    several = any(row.repeat for row in rows)
    agents = len({(row.agent, row.model) for row in rows}) > 1
    is_value = isinstance(rows[0], ValueRow)
    numbers = ("V(s)", "± stderr", "variance") if is_value else ("mean", "std")
    names = ["task", *(["agent"] if agents else []), "depth", *numbers, "n", "" if is_value else "returns"]
    right: dict[str, Any] = {"no_wrap": True, "justify": "right"}
    made = make_table(*(name if name in ("task", "agent", names[-1]) else (name, right) for name in names))
    for row in rows:
        made.add_row(
            fit(f"{row.task} #{row.repeat}" if several else row.task),
            *([fit(f"{row.agent}:{row.model}" if row.model else row.agent)] if agents else []),
            *_format_numbers(row),
            _format_remarks(row),
        )
    return made


def _format_numbers(row: Row) -> list[StyledText]:
    """Return a row's cells with numbers: depth; V(s), its standard error and variance, or mean and deviation; n."""
    from benchflow.cli.terminal import Text
    from benchflow.results.mode_rows import ValueRow

    known = (row.value, row.stderr, row.variance) if isinstance(row, ValueRow) else (row.mean, row.std)
    worth, *rest = map(format_reward, known)
    return [Text(str(row.depth)), Text(worth, "bold"), *map(Text, rest), Text(str(row.n))]


def _format_remarks(row: Row) -> StyledText:
    """Return a row's last cell: its error, else the names of failed children; a group's returns; the first failure."""
    from benchflow.cli.terminal import Text
    from benchflow.results.mode_rows import GroupRow

    parts = []
    if row.error is not None:
        parts.append(Text(find_first_line(row.error), "red"))
    elif row.failed:
        names = ", ".join(list(row.failed)[:_MAX_NAMES]) + (", …" if len(row.failed) > _MAX_NAMES else "")
        parts.append(Text(f"{len(row.failed)} failed: {names}", "red"))
    if isinstance(row, GroupRow) and row.leaves:
        parts.append(Text(" ".join(format_reward(leaf.returns) for leaf in row.leaves)))
    if row.failed:
        parts.append(Text(find_first_line(next(iter(row.failed.values()))), "dim"))
    return Text("  ", no_wrap=True, overflow="ellipsis").join(parts)
