"""Output of commands: consoles and tables for people, plain JSON for programs, and the format of errors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from benchflow.sanitise import dump_sanitised_json, sanitise, sanitise_line, sanitise_log

if TYPE_CHECKING:
    from rich.table import Table

    from benchflow.cli.terminal import Screen, Text
    from benchflow.contracts.rollout_records import Failure, RewardKind

STATUS_STYLES = {
    "passed": "green",
    "failed": "yellow",
    "scored": "cyan",
    "errored": "red",
    "cancelled": "magenta",
    "not_started": "magenta",
}
"""Style of each status of a rollout, in the order of display."""

STATUS_SIGNS = {
    "passed": "✓",
    "failed": "✗",
    "scored": "≡",
    "errored": "!",
    "cancelled": "–",
    "not_started": "–",
}
"""Sign of each status."""


def make_console(*, stderr: bool = False) -> Screen:
    """Return a console on stdout, or on stderr if a JSON object is printed on stdout."""
    from benchflow.cli.terminal import Screen

    return Screen(stderr=stderr)


def make_table(*columns: str | tuple[str, dict[str, Any]], title: str | None = None) -> Table:
    """Return an empty table in the style of all commands.

    Where it is wider than the console, its widest columns are narrowed, but none with the option `no_wrap`.

    Args:
        *columns: Names of the columns, or pairs of a name and rich's options.
        title: Title above the table; None for none.
    """
    from rich import box

    from benchflow.cli.terminal import Rows

    made = Rows(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", padding=(0, 1, 0, 0))
    for column in columns:
        name, options = column if isinstance(column, tuple) else (column, {})
        made.add_column(name, **options)
    return made


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(dump_sanitised_json(value, indent=2) + "\n")
    sys.stdout.flush()


def print_json_line(value: Any) -> None:
    """Print a value as one line of JSON on stdout, without flushing it."""
    sys.stdout.write(dump_sanitised_json(value) + "\n")


def flush() -> None:
    """Flush the JSON lines that were printed."""
    sys.stdout.flush()


def print_note(text: str) -> None:
    """Print one line on stderr, without the import of a console."""
    sys.stderr.write(sanitise_line(text) + "\n")


def print_traceback() -> None:
    """Print the traceback of the exception that is being handled on stderr."""
    import traceback

    sys.stderr.write(sanitise(traceback.format_exc()))


def print_error(failure: Failure) -> None:
    """Print `error: file: key: message`, the remedy, and the tail of a log, on stderr."""
    from benchflow.cli.terminal import Text

    where = ": ".join(sanitise_line(part) for part in (failure.file, failure.key) if part)
    message = f"{where}: {failure.message}" if where else failure.message
    text = Text.assemble(("error: ", "bold red"), indent_lines(message))
    remedy = failure.remedy
    if failure.category == "internal":
        remedy = remedy or "this is a fault of BenchFlow; run it again with --verbose to see where"
    if remedy:
        text.append("\n  remedy: ", style="bold").append(indent_lines(remedy))
    screen = make_console(stderr=True)
    screen.print(text)
    if failure.log_tail:
        screen.print(Text("\n".join(f"  │ {line}" for line in split_log(failure.log_tail)), "dim"))


def indent_lines(text: str) -> str:
    """Return a text with the lines after its first one indented: none of them may pass for a line of the command."""
    first, *others = sanitise_log(text).split("\n")
    return "\n".join([first, *(other if other.startswith("    ") else f"    {other}" for other in others)])


def split_log(log: str) -> list[str]:
    """Return the lines of a log's tail, without escape sequences and control characters."""
    return sanitise_log(log).rstrip("\n").split("\n")


def format_seconds(value: float) -> str:
    """Return a duration as `3.2 s`, `1:05` or `2:01:05`."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_reward(value: float | None) -> str:
    """Return a reward with at most three decimals; a dash for None, which is not measured."""
    return "–" if value is None else f"{value:.3f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.1f}"


def format_earned(value: float | None, kind: RewardKind) -> str:
    """Return a reward as `0.5`, or a value V(s) as `V 0.5`."""
    return f"V {format_reward(value)}" if kind == "value" and value is not None else format_reward(value)


def find_first_line(text: str) -> str:
    """Return the first line of a text that is not blank, sanitised; empty if there is none."""
    return next((line.strip() for line in sanitise_log(text).split("\n") if line.strip()), "")


def fit(text: str, style: str = "") -> Text:
    """Return a text as one line, which is cut with an ellipsis where the console or a table's column is narrower."""
    from benchflow.cli.terminal import make_line

    return make_line(text, style=style, no_wrap=True, overflow="ellipsis")


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_number(value: int | None) -> str:
    """Return a number as `980`, `4.2k`, `61k` or `1.3M`; `–` for None."""
    if value is None:
        return "–"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        # A number that would be rounded to 1000 belongs to the next unit.
        if value >= 0.9995 * size:
            return f"{value / size:.1f}{unit}" if value < 9.95 * size else f"{value / size:.0f}{unit}"
    return str(value)


def format_dollars(value: float | None) -> str:
    """Return an amount as `$12.30`, with four decimals below 10 cents, `<$0.0001` for less than that; `–` for None."""
    if value is None:
        return "–"
    if 0 < value < 0.0001:
        return "<$0.0001"
    return f"${value:.2f}" if value == 0 or value >= 0.1 else f"${value:.4f}"


def show_place(name: str, place: str | None, screen: Screen) -> None:
    """Print a path or an address with its label, on one unbroken line so that it can be copied; nothing for None."""
    from benchflow.cli.terminal import make_line

    if place:
        screen.print(make_line((f"{name:<9}", "dim"), place), soft_wrap=True)
