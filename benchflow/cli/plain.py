"""Agents' output, made fit for a terminal: sanitised, and cut to the space that there is."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any

from rich.cells import cell_len, chop_cells

from benchflow.cli.terminal import Text
from benchflow.sanitise import sanitise_line, sanitise_log

_ITEM = re.compile(r" {0,20}(?:(?:[-*+•]|\d{1,3}[.)]) +)?")

HEAD, TAIL = 3, 3
"""Number of lines that are shown of the beginning and of the end of a longer output."""

MAX_DIFFED = 2000
"""Maximum number of lines of a file of which a difference is computed."""

_MAX_ROW = 1000
"""Maximum number of characters of a line."""

_SUBJECT_KEYS = ("command", "cmd", "file_path", "path", "pattern", "query", "url")
"""Keys of a tool's input whose value tells what the call works on, by precedence."""

_OUTPUT_KEYS = ("output", "formatted_output", "stdout", "content", "result", "error", "message", "text")
"""Keys of a tool's raw output whose value is its text, by precedence."""


def sanitise_plain(text: object) -> str:
    """Return a text without characters that control a terminal, with spaces for tabs."""
    return sanitise_log(text).replace("\t", "    ")


def join_lines(text: object) -> str:
    """Return a text as one line, sanitised, with signs for its line ends."""
    return " ".join(sanitise_line(sanitise_log(text).strip()).split())


def format_brief(value: Any) -> str:
    """Return any value as one line, as JSON unless it is a text, cut to 1000 characters."""
    return join_lines(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))[:_MAX_ROW]


def wrap(line: str, width: int, *, further: int | None = None) -> list[str]:
    """Wrap a line at words, and return its rows.

    The last row may be continued: append text to it and wrap it again, with the same widths. rich's `Text.wrap` drops
    blanks at the end of a row, so it would wrap the whole line again for each chunk: 7 s instead of 0.2 s for 8 kB.

    Args:
        line: The line.
        width: Columns of the first row.
        further: Columns of the rows after it; None for `width`.
    """
    rows, row, room = [], "", width
    for word in re.findall(r"\S+|\s+", line):
        if row and cell_len(row) + cell_len(word) > room:
            rows.append(row.rstrip())
            row, room = "", further or width
            if word.isspace():
                continue
        pieces = chop_cells(word, room) if cell_len(word) > room else [word]
        rows += pieces[:-1]
        row += pieces[-1]
    return [*rows, row]


def measure_indent(line: str) -> int:
    """Return the indent of a line's rows after the first, in columns: an item of a list is wrapped below its text."""
    found = _ITEM.match(line)
    return len(found.group()) if found else 0


def cut(output: str) -> list[str]:
    """Return the lines of an output; of a long one its first and last lines, with the number of those between them."""
    lines = [line.rstrip()[:_MAX_ROW] for line in sanitise_plain(output).strip("\n").split("\n")]
    lines = [] if lines == [""] else lines
    missing = len(lines) - HEAD - TAIL
    if missing <= 1:
        return lines
    return [*lines[:HEAD], f"… {missing} more lines", *lines[-TAIL:]]


def format_change(path: object, old: object, new: object) -> list[Text]:
    """Return rows that show a change of a file: the numbers of added and removed lines, and the first of these lines.

    Args:
        path: Path of the file.
        old: Its text before.
        new: Its text after.
    """
    before, after = sanitise_plain(old).splitlines(), sanitise_plain(new).splitlines()
    if max(len(before), len(after)) > MAX_DIFFED:
        return [Text(f"{join_lines(path)}  {len(before)} → {len(after)} lines", "dim")]
    rows = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    rows = [row for row in rows if not row.startswith("@@")]
    added = sum(row.startswith("+") for row in rows)
    head = Text.assemble((join_lines(path), "dim"), "  ", (f"+{added}", "green"), " ", (f"−{len(rows) - added}", "red"))
    shown = [Text(row[:_MAX_ROW], "green" if row.startswith("+") else "red") for row in rows[: HEAD + TAIL]]
    if len(rows) > len(shown):
        shown.append(Text(f"… {len(rows) - len(shown)} more lines", "dim"))
    return [head, *shown]


def coerce_table(value: Any) -> dict[str, Any]:
    """Return a value if it is a JSON object, else an empty one: agents may send any type."""
    return value if isinstance(value, dict) else {}


def coerce_list(value: Any) -> list[Any]:
    """Return a value if it is a list, else an empty one: agents may send any type."""
    return value if isinstance(value, list) else []


def find_subject(raw_input: Any) -> str:
    """Return what a tool call works on, by its input: a command, path, pattern, query or URL; empty if it has none."""
    told = coerce_table(raw_input)
    value = next((told[key] for key in _SUBJECT_KEYS if told.get(key)), "")
    return join_lines(" ".join(map(str, value)) if isinstance(value, list) else value)


def format_output(fields: dict[str, Any]) -> list[Text]:
    """Return rows that show the output of a tool call, or the changes that it has made, cut.

    Args:
        fields: Fields of the call as ACP sends them: `content`, else `raw_output`.
    """
    rows: list[Text] = []
    for content in map(coerce_table, coerce_list(fields.get("content"))):
        if content.get("type") == "diff":
            rows += format_change(content.get("path", ""), content.get("oldText") or "", content.get("newText") or "")
        elif content.get("type") == "content":
            block = coerce_table(content.get("content"))
            text = (
                block.get("text")
                if block.get("type") == "text"
                else format_brief(block.get("uri") or block.get("type"))
            )
            rows += [Text(line, "dim") for line in cut(str(text or ""))]
    return rows or [Text(line, "dim") for line in cut(_find_raw_text(fields.get("raw_output")))]


def _find_raw_text(raw: Any) -> str:
    """Return the text of a tool call's raw output: that of the first known key, else all of it as JSON."""
    if isinstance(raw, str) or not raw:
        return raw or ""
    told = coerce_table(raw)
    value = next((told[key] for key in _OUTPUT_KEYS if key in told), raw)
    return value if isinstance(value, str) else format_brief(value)


def format_usage(usage: dict[str, Any]) -> str:
    """Return usage as `1,200 of 200,000 tokens of context · 0.12 USD`, without the parts that are unknown."""
    parts = []
    if isinstance(usage.get("used"), int):
        size = f" of {usage['size']:,}" if isinstance(usage.get("size"), int) else ""
        parts.append(f"{usage['used']:,}{size} tokens of context")
    for key, name in (("input_tokens", "in"), ("output_tokens", "out"), ("cached_tokens", "cached")):
        if isinstance(usage.get(key), int) and usage[key]:
            parts.append(f"{usage[key]:,} tokens {name}")
    cost = usage.get("cost")
    amount, currency = (cost.get("amount"), cost.get("currency")) if isinstance(cost, dict) else (cost, None)
    if isinstance(amount, int | float):
        parts.append(f"{amount:.4g} {join_lines(currency or usage.get('currency') or 'USD')}")
    return " · ".join(parts)
