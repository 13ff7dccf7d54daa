"""How many bytes of calls the gateway holds at once, in all and of each rollout."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

RESPONSE_LIMIT = 256 * 1024 * 1024
"""Bytes of an answer, which is kept until it is recorded."""

MEMORY_OF_REQUESTS, MEMORY_OF_ANSWERS = 1024**3, 2 * 1024**3
"""Bytes of bodies that the gateway holds at once."""

MEMORY_OF_ONE = 128 * 1024**2
"""Bytes of requests' bodies that it holds for one rollout: no fewer than one request may have."""

LARGE = 1024**2
"""From so many bytes on, a body is parsed in a thread, one of all at a time: the other calls go on meanwhile."""

T = TypeVar("T")


class Reservation:
    """Bytes that a holder has, and may give back before it ends."""

    def __init__(self, budget: MemoryBudget, holder: str, size: int) -> None:
        self._budget, self._holder, self._size = budget, holder, size

    def shrink(self, size: int) -> None:
        """Give back all bytes but so many."""
        self._budget.remove(self._holder, self._size - size)
        self._size = size

    def grow(self, more: int) -> bool:
        """Take more bytes; False, and none, where they would be too many."""
        is_granted = self._budget.add(self._holder, more)
        self._size += more if is_granted else 0
        return is_granted


class MemoryBudget:
    """Bytes that holders reserve before they use them, or add to as they come.

    total: bytes of all holders. of_one: bytes of one of them, at most the total.
    """

    def __init__(self, total: int, of_one: int) -> None:
        self._total, self._of_one = total, of_one
        self._used = 0
        self._by_holder: dict[str, int] = {}
        self._waiting: list[tuple[str, int, asyncio.Future[None]]] = []

    @contextlib.asynccontextmanager
    async def reserved(self, holder: str, size: int) -> AsyncIterator[Reservation]:
        """Wait until the holder may have so many bytes, at most `of_one`, and hold them.

        Whoever waits for what all share gets it in turn, so that a large one is not passed over for ever. Whoever waits
        for a part of the holder's own bytes stands in nobody else's way.
        """
        size = max(1, size)
        if self._waiting or not self.add(holder, size):
            granted = asyncio.get_running_loop().create_future()
            entry = (holder, size, granted)
            self._waiting.append(entry)
            self._grant()
            try:
                await granted
            except asyncio.CancelledError:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                    self._grant()
                elif not granted.cancelled():
                    # It was granted in the moment in which it was cancelled.
                    self.remove(holder, size)
                raise
        reservation = Reservation(self, holder, size)
        try:
            yield reservation
        finally:
            reservation.shrink(0)

    def add(self, holder: str, size: int) -> bool:
        """Give a holder more bytes; False, and nothing, where they would be too many."""
        own = self._by_holder.get(holder, 0) + size
        if own > self._of_one or self._used + size > self._total:
            return False
        self._used += size
        self._by_holder[holder] = own
        return True

    def remove(self, holder: str, size: int) -> None:
        """Take bytes back."""
        if not size:
            return
        self._used -= size
        left = self._by_holder[holder] - size
        if left:
            self._by_holder[holder] = left
        else:
            del self._by_holder[holder]
        self._grant()

    def _grant(self) -> None:
        """Let those go on that may."""
        for entry in list(self._waiting):
            holder, size, granted = entry
            if self._by_holder.get(holder, 0) + size > self._of_one:
                continue
            if granted.cancelled():
                continue
            if not self.add(holder, size):
                # Nobody behind it may take what it waits for.
                return
            self._waiting.remove(entry)
            granted.set_result(None)


class Capacity:
    """What all calls share: memory for bodies, and a turn at parsing large ones."""

    def __init__(self) -> None:
        self.requests = MemoryBudget(MEMORY_OF_REQUESTS, MEMORY_OF_ONE)
        self.answers = MemoryBudget(MEMORY_OF_ANSWERS, RESPONSE_LIMIT)
        self._parsing = asyncio.Lock()

    async def parse(self, size: int, work: Callable[[], T]) -> T:
        """Return what `work` returns, which takes a body of this size apart."""
        if size < LARGE:
            return work()
        async with self._parsing:
            return await asyncio.to_thread(work)
