"""A clock for modules that read the time by `time.monotonic`: put in the place of their `time`."""

from __future__ import annotations


class MovedClock:
    """A monotonic clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now
