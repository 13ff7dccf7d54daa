"""Requests of one rollout that are not passed on: counted, and named as far as that can be bounded.

Their names are an attacker's text: they are shortened, and hold only what a path may hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchflow.contracts.gateway import RefusedRequest

MAX_NAMES = 20
"""Names of one rollout. What is refused beyond them is counted together."""

MAX_METHOD_LENGTH, MAX_PATH_LENGTH, MAX_UNPRICED_LENGTH = 16, 100, 64

_NO_METHOD, _NO_PATH = re.compile(r"[^A-Z]"), re.compile(r"[^A-Za-z0-9._~:/%-]")

_Name = tuple[str | None, str | None, str | None]


class Refusals:
    """Counts what was refused, by method, path and, where that was the reason, what has no known price."""

    def __init__(self) -> None:
        self._counts: dict[_Name, int] = {}

    def add(self, method: str, path: str, unpriced: str | None = None) -> RefusedRequest | None:
        """Count a request. Return its count if it is to be written down: at each doubling, which bounds the lines."""
        name: _Name = (
            _NO_METHOD.sub("?", method[:MAX_METHOD_LENGTH]),
            _NO_PATH.sub("?", path[:MAX_PATH_LENGTH]),
            _NO_PATH.sub("?", unpriced[:MAX_UNPRICED_LENGTH]) if unpriced is not None else None,
        )
        if name not in self._counts and len(self._counts) >= MAX_NAMES:
            name = (None, None, None)
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return _request(name, count) if count & (count - 1) == 0 else None

    def restore(self, line: Mapping[str, Any]) -> None:
        """Take over a line that was written down earlier; later lines count more."""
        names = {name: line.get(name) for name in ("method", "path", "unpriced")}
        request = RefusedRequest(count=line["count"], **names)
        self._counts[request.method, request.path, request.unpriced] = request.count

    def counted(self) -> tuple[RefusedRequest, ...]:
        """Return all of them, in the order in which they first came."""
        return tuple(_request(name, count) for name, count in self._counts.items())


def _request(name: _Name, count: int) -> RefusedRequest:
    return RefusedRequest(method=name[0], path=name[1], unpriced=name[2], count=count)
