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

MOST_DIFFED = 2000
"""Maximum number of lines of a file of which a difference is computed."""

_LONGEST_ROW = 1000
"""Maximum number of characters of a line."""

_TELLING = ("command", "cmd", "file_path", "path", "pattern", "query", "url")
"""Keys of a tool's input whose value tells what the call works on, by precedence."""

_OUTPUTS = ("output", "formatted_output", "stdout", "content", "result", "error", "message", "text")
"""Keys of a tool's raw output whose value is its text, by precedence."""


def plain(text: object) -> str:
    """Return a text without characters that control a terminal, with spaces for tabs."""
    return sanitise_log(text).replace("\t", "    ")


def one_line(text: object) -> str:
    """Return a text as one line, sanitised, with signs for its line ends."""
    return " ".join(sanitise_line(sanitise_log(text).strip()).split())


def brief(value: Any) -> str:
    """Return any value as one line, as JSON unless it is a text, cut to 1000 characters."""
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))[:_LONGEST_ROW]


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


def hanging(line: str) -> int:
    """Return the indent of a line's rows after the first, in columns: an item of a list is wrapped below its text."""
    found = _ITEM.match(line)
    return len(found.group()) if found else 0


def cut(output: str) -> list[str]:
    """Return the lines of an output; of a long one its first and last lines, with the number of those between them."""
    lines = [line.rstrip()[:_LONGEST_ROW] for line in plain(output).strip("\n").split("\n")]
    lines = [] if lines == [""] else lines
    missing = len(lines) - HEAD - TAIL
    if missing <= 1:
        return lines
    return [*lines[:HEAD], f"… {missing} more lines", *lines[-TAIL:]]


def change(path: object, old: object, new: object) -> list[Text]:
    """Return rows that show a change of a file: the numbers of added and removed lines, and the first of these lines.

    Args:
        path: Path of the file.
        old: Its text before.
        new: Its text after.
    """
    before, after = plain(old).splitlines(), plain(new).splitlines()
    if max(len(before), len(after)) > MOST_DIFFED:
        return [Text(f"{one_line(path)}  {len(before)} → {len(after)} lines", "dim")]
    rows = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    rows = [row for row in rows if not row.startswith("@@")]
    added = sum(row.startswith("+") for row in rows)
    head = Text.assemble((one_line(path), "dim"), "  ", (f"+{added}", "green"), " ", (f"−{len(rows) - added}", "red"))
    shown = [Text(row[:_LONGEST_ROW], "green" if row.startswith("+") else "red") for row in rows[: HEAD + TAIL]]
    if len(rows) > len(shown):
        shown.append(Text(f"… {len(rows) - len(shown)} more lines", "dim"))
    return [head, *shown]


def as_table(value: Any) -> dict[str, Any]:
    """Return a value if it is a JSON object, else an empty one: agents may send any type."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a value if it is a list, else an empty one: agents may send any type."""
    return value if isinstance(value, list) else []


def subject(raw_input: Any) -> str:
    """Return what a tool call works on, by its input: a command, path, pattern, query or URL; empty if it has none."""
    told = as_table(raw_input)
    value = next((told[key] for key in _TELLING if told.get(key)), "")
    return one_line(" ".join(map(str, value)) if isinstance(value, list) else value)


def output(fields: dict[str, Any]) -> list[Text]:
    """Return rows that show the output of a tool call, or the changes that it has made, cut.

    Args:
        fields: Fields of the call as ACP sends them: `content`, else `raw_output`.
    """
    rows: list[Text] = []
    for content in map(as_table, as_list(fields.get("content"))):
        if content.get("type") == "diff":
            rows += change(content.get("path", ""), content.get("oldText") or "", content.get("newText") or "")
        elif content.get("type") == "content":
            block = as_table(content.get("content"))
            text = block.get("text") if block.get("type") == "text" else brief(block.get("uri") or block.get("type"))
            rows += [Text(line, "dim") for line in cut(str(text or ""))]
    return rows or [Text(line, "dim") for line in cut(_raw_text(fields.get("raw_output")))]


def _raw_text(raw: Any) -> str:
    """Return the text of a tool call's raw output: that of the first known key, else all of it as JSON."""
    if isinstance(raw, str) or not raw:
        return raw or ""
    told = as_table(raw)
    value = next((told[key] for key in _OUTPUTS if key in told), raw)
    return value if isinstance(value, str) else brief(value)


def usage_line(usage: dict[str, Any]) -> str:
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
        parts.append(f"{amount:.4g} {one_line(currency or usage.get('currency') or 'USD')}")
    return " · ".join(parts)
