"""Tell a cancellation of the rollout from an interruption by a worker that stops; both raise `CancelledError`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

_check: ContextVar[Callable[[], bool]] = ContextVar("is_cancelled", default=lambda: False)


def is_cancelled() -> bool:
    """Return whether the rollout of the running work is cancelled.

    It is False if the work is interrupted because its worker stops: the next attempt resumes it.
    """
    return _check.get()()


def set_cancellation_check(ask: Callable[[], bool]) -> None:
    """Set the callback whose value `is_cancelled` returns in the running asyncio task and all tasks that it starts."""
    _check.set(ask)
