"""One call of an expensive function for all concurrent callers.

Sandboxes that are started together each need to know the state of the host. A caller that comes during a call waits,
and shares the next one with the others that wait: every result was computed after it was asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class SingleFlight(Generic[P, R]):
    """A function whose concurrent calls are merged: it runs in one thread at a time. Call the instance in its place.

    Args:
        look: The function. Its arguments must be hashable and comparable.

    Attributes:
        asked: Number of calls so far.
    """

    def __init__(self, look: Callable[P, R]) -> None:
        """Make it."""
        self._look = look
        self._count = threading.Lock()
        self._looking = threading.Lock()
        self.asked = 0
        self._last: tuple[int, object, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of a call with these arguments that began after this one."""
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
