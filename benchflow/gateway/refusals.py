"""Requests of one rollout that are not forwarded: counted, and recorded by bounded names.

The names are chosen by a possible attacker: they are shortened, and reduced to characters that a path may have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchflow.contracts.gateway import RefusedRequest

MAX_NAMES = 20
"""Maximum of distinct names of one rollout. Further ones are counted together."""

MAX_METHOD_LENGTH, MAX_PATH_LENGTH, MAX_UNPRICED_LENGTH = 16, 100, 64

_NO_METHOD, _NO_PATH = re.compile(r"[^A-Z]"), re.compile(r"[^A-Za-z0-9._~:/%-]")

_Name = tuple[str | None, str | None, str | None]


class Refusals:
    """Counts refused requests by method, path and, if that was the reason, the part without a known price."""

    def __init__(self) -> None:
        """Make it empty."""
        self._counts: dict[_Name, int] = {}

    def add(self, method: str, path: str, unpriced: str | None = None) -> RefusedRequest | None:
        """Count a request. Return its count if it is to be recorded: at each doubling, which bounds the lines."""
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
        """Restore a count from a recorded line; later lines have higher counts."""
        names = {name: line.get(name) for name in ("method", "path", "unpriced")}
        request = RefusedRequest(count=line["count"], **names)
        self._counts[request.method, request.path, request.unpriced] = request.count

    def to_requests(self) -> tuple[RefusedRequest, ...]:
        """Return all counts, in the order in which the names first occurred."""
        return tuple(_request(name, count) for name, count in self._counts.items())


def _request(name: _Name, count: int) -> RefusedRequest:
    return RefusedRequest(method=name[0], path=name[1], unpriced=name[2], count=count)
