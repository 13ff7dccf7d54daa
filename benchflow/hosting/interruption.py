"""Tell work that its rollout is cancelled from work that is interrupted because its worker stops."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

_ask: ContextVar[Callable[[], bool]] = ContextVar("is_cancelled", default=lambda: False)


def is_cancelled() -> bool:
    """Return whether the running work is cancelled for good.

    It is False in work that is interrupted because its worker stops: the next attempt continues it.
    """
    return _ask.get()()


def answer_with(ask: Callable[[], bool]) -> None:
    """Have `is_cancelled` return what `ask` does, in the running task and all that it starts."""
    _ask.set(ask)
