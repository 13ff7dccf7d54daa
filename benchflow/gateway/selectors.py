"""Places in a JSON document, as text: which values a rule means.

    system                                   a member
    messages[*].content                      a member of every item
    messages[role=tool].content              of the items whose member `role` is `tool`
    **.cache_control                         at any depth

`Selectors` walk along while somebody else goes through the document: at each step they say whether a value is meant,
and what may still be meant below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_STEP = re.compile(r"\*\*|[^.\[\]*]+|\[\*\]|\[[^.\[\]=]+=[^\[\]]+\]")

Steps = tuple[str, ...]


def parse_selector(text: str) -> Steps:
    """The steps of a selector. Raises `ValueError`."""
    steps, end = [], 0
    while end < len(text):
        found = _STEP.match(text, end)
        if found is None:
            raise ValueError(f"not a selector: {text!r}")
        steps.append(found[0])
        end = found.end()
        if end < len(text) and text[end] == ".":
            end += 1
    if not steps or steps[-1] == "**" or text.endswith("."):
        raise ValueError(f"not a selector: {text!r}")
    return tuple(steps)


class Selectors:
    """What may be meant from here on down."""

    __slots__ = ("_rests",)

    def __init__(self, rests: Iterable[Steps] = ()) -> None:
        self._rests = tuple(rests)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Selectors:
        """Raises `ValueError` for what is no selector."""
        return cls(parse_selector(text) for text in texts)

    def down(self, key: str | int, value: Any) -> tuple[bool, Selectors]:
        """One step, to the value at `key`: whether it is meant, and the selectors for what is below it."""
        if not self._rests:
            return False, self
        meant, below = False, []
        for rest in self._rests:
            if rest[0] == "**":
                below.append(rest)
                rest = rest[1:]
            if not _fits(rest[0], key, value):
                continue
            if len(rest) == 1:
                meant = True
            else:
                below.append(rest[1:])
        return meant, Selectors(below)


def _fits(step: str, key: str | int, value: Any) -> bool:
    if isinstance(key, str):
        return step == key
    if step == "[*]":
        return True
    name, _, wanted = step[1:-1].partition("=")
    return step[0] == "[" and isinstance(value, dict) and value.get(name) == wanted
