"""One look at the host for all who ask for it at once.

Sandboxes that are started together each need to know how the host is now. Whoever asks while somebody else is looking
waits, and shares the next look with the others that do: what anybody is told was looked up after it was asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class SingleFlight(Generic[P, R]):
    """Calls `look`, in one thread at a time, no more often than it takes. asked: how often it was asked for."""

    def __init__(self, look: Callable[P, R]) -> None:
        self._look = look
        self._count = threading.Lock()
        self._looking = threading.Lock()
        self.asked = 0
        self._last: tuple[int, object, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        about = (args, tuple(sorted(kwargs.items())))
        with self._count:
            self.asked += 1
            mine = self.asked
        with self._looking:
            if self._last is not None and self._last[0] >= mine and self._last[1] == about:
                return self._last[2]
            with self._count:
                asked = self.asked
            found = self._look(*args, **kwargs)
            self._last = (asked, about, found)
            return found
