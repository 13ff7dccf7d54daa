"""Comparison of two normal forms: a diff for a person, and whether one conversation begins with another."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchflow.gateway.normal_form import Normaliser

MAX_LINES = 80
"""Maximum of lines of a diff."""

MAX_WIDTH = 240
"""Maximum of characters in a line of a diff."""

_MAX_COMPARED = 2000
"""Lines that are compared one by one, from the first difference on."""

_CONTEXT = 2

Line = tuple[str, str]
"""Place in the document, and text."""


def lines_of(value: Any, at: str = "", depth: int = 0) -> list[Line]:
    """Return a JSON document as lines, where each line of a multi-line string is a line of its own.

    Args:
        value: The document, or a part of it.
        at: Place of the part in the document.
        depth: Depth of the indentation.
    """
    pad = "  " * depth
    if isinstance(value, dict):
        made = []
        for key in sorted(value):
            made += _member(value[key], f"{at}.{key}" if at else key, f"{pad}{key}:", depth)
        return made or [(at, f"{pad}{{}}")]
    if isinstance(value, list):
        made = []
        for number, item in enumerate(value):
            made += _member(item, f"{at}[{number}]", f"{pad}-", depth)
        return made or [(at, f"{pad}[]")]
    if isinstance(value, str) and "\n" in value:
        return [(at, f"{pad}| {line}") for line in value.split("\n")]
    return [(at, pad + json.dumps(value, ensure_ascii=False))]


def _member(value: Any, at: str, name: str, depth: int) -> list[Line]:
    """Return the lines of a member or an item, on one line with its name if it fits there."""
    if (isinstance(value, dict | list) and value) or (isinstance(value, str) and "\n" in value):
        return [(at, name), *lines_of(value, at, depth + 1)]
    return [(at, f"{name} {lines_of(value, at)[0][1]}")]


def short_diff(before: Any, after: Any) -> str:
    """Return a unified diff of two documents, with places as hunk headers, limited in size; empty if equal."""
    old, new = lines_of(before), lines_of(after)
    start = _count_common([text for _, text in old], [text for _, text in new])
    if start == len(old) == len(new):
        return ""
    start = max(0, start - _CONTEXT)
    shown = _hunks(old[start : start + _MAX_COMPARED], new[start : start + _MAX_COMPARED])
    if len(shown) > MAX_LINES:
        shown = [*shown[:MAX_LINES], f"… {len(shown) - MAX_LINES} more lines"]
    elif max(len(old), len(new)) - start > _MAX_COMPARED:
        shown.append("… and what comes after it was not compared")
    return "\n".join(shown)


def shared_lines(before: Any, after: Any) -> int:
    """Return the number of first lines that two documents have in common."""
    return _count_common([text for _, text in lines_of(before)], [text for _, text in lines_of(after)])


def _hunks(old: Sequence[Line], new: Sequence[Line]) -> list[str]:
    """Return the lines of a unified diff."""
    matcher = difflib.SequenceMatcher(None, [t for _, t in old], [t for _, t in new], autojunk=False)
    shown = []
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        first = next((code for code in group if code[0] != "equal"), group[0])
        place = new[first[3]][0] if first[3] < first[4] else old[first[1]][0]
        shown.append(f"@@ {place} @@")
        for what, i1, i2, j1, j2 in group:
            if what == "equal":
                shown += [" " + _shorten(text) for _, text in old[i1:i2]]
            else:
                shown += _diff_lines([t for _, t in old[i1:i2]], [t for _, t in new[j1:j2]])
    return shown


def _diff_lines(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return removed and added lines; long ones are cut so that their difference can be seen."""
    skips = [_count_common(a, b) for a, b in zip(old, new, strict=False)]
    removed = ["-" + _shorten(text, skips[n] if n < len(skips) else 0) for n, text in enumerate(old)]
    return removed + ["+" + _shorten(text, skips[n] if n < len(skips) else 0) for n, text in enumerate(new)]


def _shorten(text: str, same: int = 0) -> str:
    """Return a long line cut to a window around the end of its first `same` characters."""
    if len(text) <= MAX_WIDTH:
        return text
    start = max(0, min(same - MAX_WIDTH // 4, len(text) - MAX_WIDTH))
    end = start + MAX_WIDTH
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def _count_common(before: Sequence[Any], after: Sequence[Any]) -> int:
    """Return the number of first items that are equal."""
    for number, (one, other) in enumerate(zip(before, after, strict=False)):
        if one != other:
            return number
    return min(len(before), len(after))


@dataclass(frozen=True)
class Prefix:
    """Result of a check whether a conversation begins with another one; true if it does."""

    holds: bool
    """Whether it does."""

    shared: int
    """Number of first messages in common."""

    of: int
    """Number of messages of the earlier conversation."""

    diff: str = ""
    """Diff up to the end of the earlier conversation; empty if equal."""

    def __bool__(self) -> bool:
        """Return whether the check holds."""
        return self.holds


def is_prefix(before: Mapping[str, Any], after: Mapping[str, Any], rules: Normaliser) -> Prefix:
    """Check whether the conversation of `after` begins with that of `before`, with equal system prompts and tools.

    The two are bodies of calls of one agent in one dialect: before a session was loaded or forked, and after.

    Args:
        before: The earlier body.
        after: The later body.
        rules: Normaliser of the agent and the dialect.

    Raises:
        ValueError: The dialect has no conversations.
    """
    name = rules.conversation
    if name is None:
        raise ValueError("in this dialect there is no conversation")
    first = _items(before.get(name))
    # Later messages must not influence how identifiers are renamed.
    head = {**after, name: _items(after.get(name))[: len(first)]}
    old, new = rules({**before, name: first}), rules(head)
    shared = _count_common(old[name], new[name])
    kept = (name, *rules.frame)
    old, new = ({key: form[key] for key in kept if form.get(key)} for form in (old, new))
    return Prefix(old == new, shared, len(first), short_diff(old, new))


def _items(conversation: Any) -> list[Any]:
    """Return the messages of a conversation, which some dialects allow to be a single text."""
    if isinstance(conversation, list):
        return conversation
    return [] if conversation is None else [conversation]
