"""The thread in which a Python agent acts, with an event loop of its own: code that blocks does so for itself."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress

from benchflow.contracts.failures import MAX_TEXT
from benchflow.errors import AgentExitError
from benchflow.planes.agent.function.turn import AgentTurn

Act = Callable[[AgentTurn], Awaitable[str | None]]
"""What an agent does in a turn. It may return why it stops, as ACP has it (`refusal`, `max_tokens`)."""

_MAX_MESSAGE = 1000


class ActingThread:
    """The thread of one turn. One that blocks for ever is left behind: Python cannot end it."""

    def __init__(self, act: Act, turn: AgentTurn) -> None:
        """Start it."""
        self._act = act
        self.turn = turn
        self._task: asyncio.Task[str | None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._worker.create_future()
        self._result: str | None = None
        self._failure: BaseException | None = None
        # What the steps do in the worker's loop sees the context of the activity, as all else there.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name="benchflow-agent", daemon=True).start()

    def _run(self) -> None:
        async def run() -> str | None:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self.turn.is_over:
                raise asyncio.CancelledError
            return await self._act(self.turn)

        try:
            self._result = asyncio.run(run())
        except BaseException as error:
            self._failure = error
        # The worker's loop may be closed.
        with suppress(RuntimeError):
            self._worker.call_soon_threadsafe(self._over.set_result, None)

    async def ended(self, within: float) -> bool:
        """Return whether the function has ended, or ends within so many seconds."""
        await asyncio.wait([self._over], timeout=within)
        return self._over.done()

    @property
    def was_cancelled(self) -> bool:
        """Whether the function has ended because it was cancelled."""
        return isinstance(self._failure, asyncio.CancelledError)

    def cancel(self) -> None:
        """Have the function end, and take no further step."""
        self.turn.is_over = True
        # It looks at `is_over` after it has set these.
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not self._over.done():
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

    def result(self) -> str | None:
        """Return what the function has returned.

        Raises:
            BaseException: The engine's own failure in one of its steps, whatever the function made of it.
            AgentExitError: The function raised, or returned no reason to stop.
        """
        if self.turn.failure is not None:
            raise self.turn.failure
        failure = self._failure
        if failure is not None:
            told = traceback.format_exception_only(failure)[-1].strip()[:_MAX_MESSAGE]
            tail = "".join(traceback.format_exception(failure))[-MAX_TEXT:]
            raise AgentExitError(f"the agent raised {told}", log_tail=tail) from failure
        if self._result is not None and not isinstance(self._result, str):
            raise AgentExitError(
                f"the agent returned {type(self._result).__name__}, which is no reason to stop",
                remedy='return nothing, or a text such as "refusal"',
            )
        return self._result
