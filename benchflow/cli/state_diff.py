"""`bench env diff`: find the two states to compare, and print their differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text as StyledText

from benchflow.cli.chosen import choose
from benchflow.cli.plain import format_brief, join_lines
from benchflow.cli.terminal import Screen, Text, make_line
from benchflow.contracts.environment import BASELINE, DatabaseDiff, RowChange, StateDiff, TableDiff
from benchflow.errors import UsageError
from benchflow.paths import RolloutPaths
from benchflow.planes.environment.rows import RECORD, read_record

_MAX_VALUE = 60
"""Maximum number of characters of a value."""

_ADDED, _REMOVED, _CHANGED = ("+", "green"), ("-", "red"), ("~", "yellow")


# --- choice of the states ------------------------------------------------------------------------------------


def choose_states(before: str, after: str | None, jobs_dir: Path) -> tuple[Path, Path]:
    """Return the directories of the two snapshots to compare.

    Args:
        before: Directory of a snapshot, or a rollout, whose last snapshot is meant.
        after: The same; None for the first and the last snapshot of the rollout `before`.
        jobs_dir: Directory of the jobs.

    Raises:
        UsageError: There are no such snapshots; the remedy lists those that there are.
    """
    if after is not None:
        return _find_last(before, "A", jobs_dir), _find_last(after, "B", jobs_dir)
    if (Path(before) / RECORD).is_file():
        beside = [each.name for each in sorted(Path(before).absolute().parent.iterdir()) if (each / RECORD).is_file()]
        raise UsageError(
            f"{before} is one snapshot, and nothing is named to compare it with",
            key="B",
            remedy=f"name another; beside it are: {', '.join(beside)}",
        )
    root = _find_snapshots(before, "A", jobs_dir)
    found = _sort_snapshots(root)
    first = root / BASELINE
    others = [each for each in found if each != first]
    if first not in found or not others:
        there = ", ".join(each.name for each in found) or "none"
        raise UsageError(
            f"the rollout has not kept two states: there is {there}", key="A", remedy="name two snapshots: A and B"
        )
    return first, others[-1]


def _find_last(given: str, key: str, jobs_dir: Path) -> Path:
    """Return a snapshot's directory, or that of a rollout's last one. key: the argument, for errors."""
    if (Path(given) / RECORD).is_file():
        return Path(given)
    root = _find_snapshots(given, key, jobs_dir)
    found = _sort_snapshots(root)
    if not found:
        raise UsageError("the rollout has kept no state", key=key, remedy=f"its snapshots would be in {root}")
    return found[-1]


def _find_snapshots(given: str, key: str, jobs_dir: Path) -> Path:
    """Return the directory of a rollout's snapshots. key: the argument, for errors."""
    directory = Path(given)
    for root in (directory, RolloutPaths(directory).environment / "snapshots"):
        if root.is_dir() and any(root.glob(f"*/{RECORD}")):
            return root
    if directory.is_dir() and (directory / "result.json").is_file():
        root = RolloutPaths(directory).environment / "snapshots"
    elif directory.is_absolute() or given.startswith("."):
        raise UsageError(
            f"{given} is neither a snapshot nor a rollout",
            key=key,
            remedy=f"a snapshot is a directory with a {RECORD}; of a rollout, in environment/snapshots/",
        )
    else:
        root = choose(given, jobs_dir).paths.environment / "snapshots"
    if not root.is_dir():
        raise UsageError(
            f"{given} has kept no state", key=key, remedy="only those in declared databases do: [environment.state]"
        )
    return root


def _sort_snapshots(root: Path) -> list[Path]:
    """Return the snapshots in a directory, in the order in which they were taken."""
    taken = {each: read_record(each) for each in root.iterdir() if (each / RECORD).is_file()}
    return sorted(taken, key=lambda each: (taken[each].taken_at, each.name))


# --- display -------------------------------------------------------------------------------------------------


def show_diff(before: Path, after: Path, diff: StateDiff, screen: Screen) -> None:
    """Print every row that is in only one of two states, or has changed.

    Args:
        before: Directory of the first snapshot.
        after: Directory of the second.
        diff: Their differences.
        screen: Console to print on.
    """
    screen.print(make_line((_name(before), "bold"), " → ", (_name(after), "bold")))
    if diff.is_empty:
        screen.print("no difference")
    for database in diff.databases:
        _show_database(database, screen)


def _name(directory: Path) -> str:
    return directory.absolute().name


def _show_database(database: DatabaseDiff, screen: Screen) -> None:
    screen.print()
    heading = Text(join_lines(database.path), "bold")
    if database.change is not None:
        sign, style = _ADDED if database.change == "appeared" else _REMOVED
        heading = Text.assemble((f"{sign} ", style), heading, (f"  {database.change}", style))
    screen.print(heading, soft_wrap=True)
    for table in database.tables:
        _show_table(table, screen)


def _show_table(table: TableDiff, screen: Screen) -> None:
    counts = [
        (f"  {sign}{count}", style)
        for count, (sign, style) in ((table.n_added, _ADDED), (table.n_removed, _REMOVED), (table.n_changed, _CHANGED))
        if count
    ]
    change = [(f"  {_CHANGES[table.change]}", "bold")] if table.change is not None else []
    screen.print(Text.assemble(f"  {join_lines(table.name)}", *change, *counts), soft_wrap=True)
    for row in table.added:
        _show_row(_ADDED, _format_fields(row), screen)
    for row in table.removed:
        _show_row(_REMOVED, _format_fields(row), screen)
    for changed in table.changed:
        _show_row(_CHANGED, _format_changed_fields(changed), screen)
    if table.left_out:
        screen.print(Text(f"    and {table.left_out} more; --rows shows more of them", "dim"))


_CHANGES = {"added": "new table", "removed": "table is gone", "columns": "other columns"}


def _show_row(kind: tuple[str, str], fields: StyledText, screen: Screen) -> None:
    sign, style = kind
    screen.print(Text.assemble((f"    {sign} ", style), fields), soft_wrap=True)


def _format_fields(row: dict[str, Any]) -> StyledText:
    """Return a row's columns and values as text."""
    return Text("  ").join(
        Text.assemble((f"{join_lines(name)}=", "dim"), _format_value(value)) for name, value in row.items()
    )


def _format_changed_fields(row: RowChange) -> StyledText:
    """Return a changed row as text: its first unchanged column, which identifies it, and each changed one."""
    same = {name: value for name, value in row.after.items() if name in row.before and row.before[name] == value}
    told = dict(list(same.items())[:1])
    parts: list[StyledText] = [_format_fields(told)] if told else []
    for name in dict.fromkeys([*row.before, *row.after]):
        if name not in same:
            old, new = (_format_value(side[name]) if name in side else "–" for side in (row.before, row.after))
            parts.append(Text.assemble((f"{join_lines(name)}: ", "dim"), (old, "red"), " → ", (new, "green")))
    return Text("  ").join(parts)


def _format_value(value: Any) -> str:
    """Return a value in short: `NULL` for None, the size of a blob, else at most 60 characters."""
    if value is None:
        return "NULL"
    if isinstance(value, dict):
        # Values without a form in JSON: a blob, text that is no UTF-8, infinity.
        (kind, written), *_ = value.items()
        return join_lines(written) if kind == "real" else f"<{len(written) // 2} bytes>"
    text = format_brief(value)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"
