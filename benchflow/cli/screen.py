"""Where commands write: rich consoles for people, plain JSON for programs, and how an error looks."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from benchflow.contracts.rollout import Failure, RewardKind

PIPED_WIDTH = 1000
"""Columns where the output goes into a file or a pipe: so many that nothing is broken or cut for them."""

STATUS_STYLES = {"passed": "green", "failed": "yellow", "errored": "red", "cancelled": "magenta"}
STATUS_SIGNS = {"passed": "✓", "failed": "✗", "errored": "!", "cancelled": "–"}


def console(*, stderr: bool = False) -> Console:
    """A console on stdout, or on stderr where stdout belongs to a JSON object."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and not os.environ.get("COLUMNS"):
        made.width = PIPED_WIDTH
    return made


def table(*columns: str | tuple[str, dict[str, Any]], title: str | None = None) -> Table:
    """An empty table in the one style that all commands share."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", padding=(0, 1, 0, 0))
    for column in columns:
        name, options = column if isinstance(column, tuple) else (column, {})
        made.add_column(name, **options)
    return made


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_error(failure: Failure) -> None:
    """`error: file: key: what is wrong`, the remedy, and the tail of a log, on stderr."""
    from rich.text import Text

    where = ": ".join(part for part in (failure.file, failure.key) if part)
    message = f"{where}: {failure.message}" if where else failure.message
    text = Text.assemble(("error: ", "bold red"), message)
    remedy = failure.remedy
    if failure.category == "internal":
        remedy = remedy or "this is a fault of BenchFlow; run it again with --verbose to see where"
    if remedy:
        text.append("\n  remedy: ", style="bold").append(remedy)
    screen = console(stderr=True)
    screen.print(text)
    if failure.log_tail:
        screen.print(Text("\n".join(f"  │ {line}" for line in failure.log_tail.splitlines()), "dim"))


def seconds(value: float) -> str:
    """`3.2 s`, `1:05`, `2:01:05`."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def reward(value: float | None) -> str:
    """A reward with three decimals at most; a dash where nothing was measured."""
    return "–" if value is None else f"{value:.3f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.1f}"


def earned(value: float | None, kind: RewardKind) -> str:
    """A reward, told apart from what a state is worth: `0.5`, `V 0.5`."""
    return f"V {reward(value)}" if kind == "value" and value is not None else reward(value)


def one_line(text: str) -> str:
    """The first line of a text that may come from a sandbox, which must not steer the terminal."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return "".join(char if char.isprintable() else " " for char in first)


def cut(text: str, width: int, style: str = "") -> Text:
    """A text in one line of at most so many columns."""
    from rich.text import Text

    made = Text(text, style, no_wrap=True)
    made.truncate(width, overflow="ellipsis")
    return made


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def short_number(value: int | None) -> str:
    """`980`, `4.2k`, `61k`, `1.3M`; `–` for what is not known."""
    if value is None:
        return "–"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        # What would be rounded to 1000 belongs to the next unit.
        if value >= 0.9995 * size:
            return f"{value / size:.1f}{unit}" if value < 9.95 * size else f"{value / size:.0f}{unit}"
    return str(value)


def dollars(value: float | None) -> str:
    """`$12.30`, and of a few cents or less as much as tells it from nothing: `$0.0006`; `–` for what is not known."""
    if value is None:
        return "–"
    if 0 < value < 0.0001:
        return "<$0.0001"
    return f"${value:.2f}" if value == 0 or value >= 0.1 else f"${value:.4f}"
