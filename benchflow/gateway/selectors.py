"""Selectors: places in a JSON document, as text.

    system                                   a member
    messages[*].content                      a member of every item
    messages[role=tool].content              of the items whose member `role` is `tool`
    **.cache_control                         at any depth

`Selectors` follow a walk through the document: at each step they report whether the value is selected, and return the
selectors that remain below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_STEP = re.compile(r"\*\*|[^.\[\]*]+|\[\*\]|\[[^.\[\]=]+=[^\[\]]+\]")

Steps = tuple[str, ...]


def parse_selector(text: str) -> Steps:
    """Return the steps of a selector. Raise `ValueError` if it is none."""
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
    """The selectors that remain at a place of a document."""

    __slots__ = ("_rests",)

    def __init__(self, rests: Iterable[Steps] = ()) -> None:
        """Make them of the remaining steps of each selector."""
        self._rests = tuple(rests)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Selectors:
        """Parse selectors. Raise `ValueError` for an invalid one."""
        return cls(parse_selector(text) for text in texts)

    def down(self, key: str | int, value: Any) -> tuple[bool, Selectors]:
        """Step down to the value at `key`. Return whether it is selected, and the selectors that remain below it."""
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
    """Return whether one step of a selector means the value at `key`."""
    if isinstance(key, str):
        return step == key
    if step == "[*]":
        return True
    name, _, wanted = step[1:-1].partition("=")
    return step[0] == "[" and isinstance(value, dict) and value.get(name) == wanted
