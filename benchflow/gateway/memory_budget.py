"""Limits of the memory for calls' bodies, in total and for each rollout."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

RESPONSE_LIMIT = 256 * 1024 * 1024
"""Maximum of bytes of a response, which is kept in memory until it is recorded."""

MEMORY_OF_REQUESTS, MEMORY_OF_ANSWERS = 1024**3, 2 * 1024**3
"""Bytes of bodies that the gateway holds at once."""

MEMORY_OF_ONE = 128 * 1024**2
"""Bytes of request bodies that it holds for one rollout: at least as many as one request may have."""

LARGE = 1024**2
"""Bytes from which on a body is parsed in a thread, one body at a time, so that other calls go on meanwhile."""

T = TypeVar("T")


class Reservation:
    """Reserved bytes of a holder, which can be shrunk or grown."""

    def __init__(self, budget: MemoryBudget, holder: str, size: int) -> None:
        """Make it for bytes that the budget has granted."""
        self._budget, self._holder, self._size = budget, holder, size

    def shrink(self, size: int) -> None:
        """Release all bytes but `size`."""
        self._budget.remove(self._holder, self._size - size)
        self._size = size

    def grow(self, more: int) -> bool:
        """Reserve more bytes. Return False, and reserve none, if they would exceed a limit."""
        is_granted = self._budget.add(self._holder, more)
        self._size += more if is_granted else 0
        return is_granted


class MemoryBudget:
    """Bytes that holders reserve before they use them."""

    def __init__(self, total: int, of_one: int) -> None:
        """Make it.

        Args:
            total: Maximum of bytes of all holders.
            of_one: Maximum of bytes of one holder, at most `total`.
        """
        self._total, self._of_one = total, of_one
        self._used = 0
        self._by_holder: dict[str, int] = {}
        self._waiting: list[tuple[str, int, asyncio.Future[None]]] = []

    @contextlib.asynccontextmanager
    async def reserved(self, holder: str, size: int) -> AsyncIterator[Reservation]:
        """Wait until the holder can have `size` bytes, at most `of_one`, and reserve them for the block.

        Holders that wait for the shared total are served in order, so that a large request is not starved. A holder
        that waits for its own limit delays no other.
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
                    # It was granted just before the cancellation.
                    self.remove(holder, size)
                raise
        reservation = Reservation(self, holder, size)
        try:
            yield reservation
        finally:
            reservation.shrink(0)

    def add(self, holder: str, size: int) -> bool:
        """Grant more bytes to a holder. Return False, and grant none, if they would exceed a limit."""
        own = self._by_holder.get(holder, 0) + size
        if own > self._of_one or self._used + size > self._total:
            return False
        self._used += size
        self._by_holder[holder] = own
        return True

    def remove(self, holder: str, size: int) -> None:
        """Take bytes back from a holder, and grant them to those that wait."""
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
        """Grant the waiting reservations that fit, in order."""
        for entry in list(self._waiting):
            holder, size, granted = entry
            if self._by_holder.get(holder, 0) + size > self._of_one:
                continue
            if granted.cancelled():
                continue
            if not self.add(holder, size):
                # None behind it may take the bytes that it waits for.
                return
            self._waiting.remove(entry)
            granted.set_result(None)


class Capacity:
    """Resources that all calls share: memory for bodies, and a lock for parsing large ones."""

    def __init__(self) -> None:
        """Make it, with nothing reserved."""
        self.requests = MemoryBudget(MEMORY_OF_REQUESTS, MEMORY_OF_ONE)
        self.answers = MemoryBudget(MEMORY_OF_ANSWERS, RESPONSE_LIMIT)
        self._parsing = asyncio.Lock()

    async def parse(self, size: int, work: Callable[[], T]) -> T:
        """Return the result of `work`, which parses a body of `size` bytes; large ones one at a time, in a thread."""
        if size < LARGE:
            return work()
        async with self._parsing:
            return await asyncio.to_thread(work)
