"""What a job's mode comes to, on the screen: a line for each GRPO group, or for each depth whose V(s) is estimated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchflow.cli.screen import cut, one_line, plural, reward, table

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text as StyledText

    from benchflow.cli.terminal import Screen
    from benchflow.contracts.modes import JobMode
    from benchflow.contracts.rollout import RolloutResult
    from benchflow.paths import JobPaths
    from benchflow.results.modes import Row

MOST_ROWS = 60
_MIN_ABOUT = 12
_MOST_NAMES = 3


def mode_label(mode: JobMode) -> str:
    """`grpo: groups at depth 0, n=8`, `value: V(s) at depth 0, 2, n=4`."""
    if mode.kind == "grpo":
        return f"grpo: groups at depth {mode.at}, n={mode.n}"
    depths = ", ".join(map(str, sorted(mode.depths)))
    return f"value: V(s) at depth {depths}, n={mode.n}"


def mode_document(mode: JobMode, results: Sequence[RolloutResult]) -> dict[str, Any]:
    """What `--json` adds: `groups` or `values`, as the lines of their files."""
    from benchflow.results.modes import rows_of

    key = "groups" if mode.kind == "grpo" else "values"
    return {key: [row.model_dump(mode="json") for row in rows_of(mode, results)]}


def show_mode(
    paths: JobPaths,
    mode: JobMode | None,
    results: Sequence[RolloutResult],
    screen: Screen,
    limit: int | None = MOST_ROWS,
) -> None:
    """The table of a job's groups, or of its values, and where their file is; nothing without a mode."""
    from benchflow.cli.terminal import Text, line
    from benchflow.results.modes import file_of, rows_of

    if mode is None:
        return
    rows = rows_of(mode, results)
    shown = rows[:limit]
    if shown:
        screen.print(_table(shown, screen.width))
    if len(shown) < len(rows):
        screen.print(Text(f"{plural(len(rows) - len(shown), 'line')} not listed", "dim"))
    file = file_of(paths, mode)
    if file.is_file():
        screen.print(line((f"{file.stem:<9}", "dim"), str(file)), soft_wrap=True)


def _table(rows: Sequence[Row], width: int) -> Table:
    from benchflow.results.modes import ValueRow

    several = any(row.repeat for row in rows)
    agents = len({(row.agent, row.model) for row in rows}) > 1
    is_value = isinstance(rows[0], ValueRow)
    numbers = ("V(s)", "± stderr", "variance") if is_value else ("mean", "std")
    names = ["task", *(["agent"] if agents else []), "depth", *numbers, "n", "" if is_value else "returns"]
    most = max(16, width // 4)
    cells = [
        [
            cut(f"{row.task} #{row.repeat}" if several else row.task, most),
            *([cut(f"{row.agent}:{row.model}" if row.model else row.agent, most)] if agents else []),
            *_numbers(row),
            _about(row),
        ]
        for row in rows
    ]
    # What is said last has the room that is left: it must not push the numbers out.
    columns = list(zip(*cells, strict=True))[:-1]
    taken = sum(max(len(name), *map(len, column)) + 2 for name, column in zip(names, columns, strict=False))
    left: dict[str, Any] = {"no_wrap": True}
    right = left | {"justify": "right"}
    made = table(*((name, left if name in ("task", "agent", names[-1]) else right) for name in names))
    for row in cells:
        row[-1].truncate(max(_MIN_ABOUT, width - taken - 2), overflow="ellipsis")
        made.add_row(*row)
    return made


def _numbers(row: Row) -> list[StyledText]:
    """Depth, what it is worth, how sure that is, and n."""
    from benchflow.cli.terminal import Text
    from benchflow.results.modes import ValueRow

    known = (row.value, row.stderr, row.variance) if isinstance(row, ValueRow) else (row.mean, row.std)
    worth, *rest = map(reward, known)
    return [Text(str(row.depth)), Text(worth, "bold"), *map(Text, rest), Text(str(row.n))]


def _about(row: Row) -> StyledText:
    """Why there is nothing, else which children failed; the returns of a group; and how the first one failed."""
    from benchflow.cli.terminal import Text
    from benchflow.results.modes import GroupRow

    parts = []
    if row.error is not None:
        parts.append(Text(one_line(row.error), "red"))
    elif row.failed:
        names = ", ".join(list(row.failed)[:_MOST_NAMES]) + (", …" if len(row.failed) > _MOST_NAMES else "")
        parts.append(Text(f"{len(row.failed)} failed: {names}", "red"))
    if isinstance(row, GroupRow) and row.leaves:
        parts.append(Text(" ".join(reward(leaf.returns) for leaf in row.leaves)))
    if row.failed:
        parts.append(Text(one_line(next(iter(row.failed.values()))), "dim"))
    return Text("  ").join(parts)
