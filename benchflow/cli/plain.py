"""What agents wrote, made fit for a terminal: sanitised, and no more of it than fits."""

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
"""Lines of a longer output that are shown: of its beginning and of its end."""

MOST_DIFFED = 2000
"""Lines of a file beyond which its change is not worked out."""

_LONGEST_ROW = 1000
_TELLING = ("command", "cmd", "file_path", "path", "pattern", "query", "url")
"""What of a tool's input says what it is about, where its title does not."""

_OUTPUTS = ("output", "formatted_output", "stdout", "content", "result", "error", "message", "text")


def plain(text: object) -> str:
    """Return a text of which nothing acts upon a terminal, with spaces for tabs."""
    return sanitise_log(text).replace("\t", "    ")


def one_line(text: object) -> str:
    """Return a text as one line, with signs for its line ends."""
    return " ".join(sanitise_line(sanitise_log(text).strip()).split())


def brief(value: Any) -> str:
    """Any value as one line."""
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))[:_LONGEST_ROW]


def wrap(line: str, width: int, *, further: int | None = None) -> list[str]:
    """The rows of one line, those after the first as wide as `further`. The last may be gone on with: what follows is
    put behind it and wrapped again.
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
    """How far the rows of a line are indented after its first: those of a list's item stand below its text."""
    found = _ITEM.match(line)
    return len(found.group()) if found else 0


def cut(output: str) -> list[str]:
    """The lines of an output, or of a long one its beginning and its end."""
    lines = [line.rstrip()[:_LONGEST_ROW] for line in plain(output).strip("\n").split("\n")]
    lines = [] if lines == [""] else lines
    missing = len(lines) - HEAD - TAIL
    if missing <= 1:
        return lines
    return [*lines[:HEAD], f"… {missing} more lines", *lines[-TAIL:]]


def change(path: object, old: object, new: object) -> list[Text]:
    """What was changed in a file: how much, and the first lines of it."""
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
    """A table, whatever an agent put in its place."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """A list, whatever an agent put in its place."""
    return value if isinstance(value, list) else []


def subject(raw_input: Any) -> str:
    """What a tool was told to work on."""
    told = as_table(raw_input)
    value = next((told[key] for key in _TELLING if told.get(key)), "")
    return one_line(" ".join(map(str, value)) if isinstance(value, list) else value)


def output(fields: dict[str, Any]) -> list[Text]:
    """A short cut of what a tool gave, or of what it changed."""
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
    if isinstance(raw, str) or not raw:
        return raw or ""
    told = as_table(raw)
    value = next((told[key] for key in _OUTPUTS if key in told), raw)
    return value if isinstance(value, str) else brief(value)


def usage_line(usage: dict[str, Any]) -> str:
    """`1,200 of 200,000 tokens · 0.12 USD`, as far as it is known."""
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
