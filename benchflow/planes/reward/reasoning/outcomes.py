"""Outcomes of tool calls, as agents report them: status, output and exit status."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_OUTPUT_READ = 200_000
"""Maximum number of characters of an output that are read: from its end, where results are."""

_TEXTS = ("output", "stdout", "formatted_output", "aggregated_output", "result", "content", "stderr")
_CODES = ("exit_code", "exitCode", "exit", "return_code", "returncode")
_STATED_CODE = re.compile(r"\bexit(?:ed with)? (?:code|status):? (-?\d{1,10})\b", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass
class Outcome:
    """The outcome of a tool call."""

    status: str = ""
    """Status that the agent reported last; empty if it reported none."""

    text: str = ""
    """Output, without terminal colours."""

    exit_code: int | None = None
    """Exit status; None if it was not reported."""

    _deltas: list[str] = field(default_factory=list, repr=False)


def read_outcomes(events: tuple[Mapping[str, Any], ...]) -> dict[int, Outcome]:
    """Return the outcomes of the tool calls in the lines of a trajectory, by the `seq` of each call's first line."""
    found: dict[int, Outcome] = {}
    seqs: dict[str, int] = {}
    for place, event in enumerate(events):
        if event.get("type") not in ("tool_call", "tool_call_update"):
            continue
        call, seq = str(event.get("tool_call_id")), event.get("seq")
        if event["type"] == "tool_call" or call not in seqs:
            seqs[call] = seq if isinstance(seq, int) else place
            found[seqs[call]] = Outcome()
        _merge_line(found[seqs[call]], event)
    return found


def _merge_line(outcome: Outcome, event: Mapping[str, Any]) -> None:
    """Merge a line into the outcome of its call."""
    outcome.status = str(event.get("status") or outcome.status)
    raw, meta = event.get("raw_output"), event.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    delta = meta.get("terminal_output_delta") or meta.get("terminal_output")
    if isinstance(delta, dict) and isinstance(delta.get("data"), str):
        outcome._deltas.append(delta["data"])
    text = _read_text(raw) or _join_blocks(event.get("content")) or "".join(outcome._deltas)
    if text:
        outcome.text = _COLOUR.sub("", text[-MAX_OUTPUT_READ:])
    code = _find_code(raw) if isinstance(raw, dict) else None
    code = _find_code(meta.get("terminal_exit")) if code is None else code
    if code is None and raw is not None:
        code = _find_stated_code(outcome.text)
    outcome.exit_code = code if code is not None else outcome.exit_code


def _read_text(raw: Any) -> str:
    """Return the output in a raw output of any agent's format; empty if there is none."""
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, dict):
        return ""
    texts = [str(raw[key]) for key in _TEXTS if isinstance(raw.get(key), str) and raw[key]]
    # The keys are different names for the same output, except stderr.
    if texts:
        errors = raw.get("stderr")
        return texts[0] + (f"\n{errors}" if isinstance(errors, str) and errors not in texts[0] else "")
    return "" if set(raw) <= {*_CODES, *_TEXTS} else json.dumps(raw, default=str)


def _join_blocks(content: Any) -> str:
    """Return the texts of a call's content blocks, joined."""
    found = []
    for block in content if isinstance(content, list) else ():
        inner = block.get("content") if isinstance(block, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("text"), str):
            found.append(inner["text"])
    return "\n".join(found)


def _find_code(table: Any) -> int | None:
    """Return the exit status in a table; None if there is none."""
    if not isinstance(table, dict):
        return None
    codes = (table.get(key) for key in _CODES)
    found = next((code for code in codes if isinstance(code, int) and not isinstance(code, bool)), None)
    return found if found is not None else _find_code(table.get("metadata"))


def _find_stated_code(text: str) -> int | None:
    """Return the exit status in an output's text, on the first line or near the end; None if there is none."""
    found = _STATED_CODE.match(text.lstrip("[ \n")) or next(iter(_STATED_CODE.findall(text[-200:])[-1:]), None)
    return int(found if isinstance(found, str) else found[1]) if found else None
