"""The thread in which a Python agent acts, with an event loop of its own, so that blocking code blocks only itself."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress

from benchflow.contracts.failures import MAX_TEXT
from benchflow.errors import AgentExitError
from benchflow.planes.agent.function.function_turn import AgentTurn

Act = Callable[[AgentTurn], Awaitable[str | None]]
"""A function that is an agent. It may return its stop reason, as ACP has it (`refusal`, `max_tokens`)."""

_MAX_MESSAGE = 1000


class ActingThread:
    """The thread of one turn. One that blocks forever is abandoned: Python cannot end it."""

    def __init__(self, act: Act, turn: AgentTurn) -> None:
        """Start the thread.

        Args:
            act: The function.
            turn: The turn, which it receives.
        """
        self._act = act
        self.turn = turn
        self._task: asyncio.Task[str | None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._worker.create_future()
        self._result: str | None = None
        self._failure: BaseException | None = None
        # Steps run in the worker's event loop, and must see the context of the activity.
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

    async def wait_for_end(self, within: float) -> bool:
        """Wait for the end of the function, at most `within` seconds. Return whether it has ended."""
        await asyncio.wait([self._over], timeout=within)
        return self._over.done()

    @property
    def was_cancelled(self) -> bool:
        """Whether the function ended because it was cancelled."""
        return isinstance(self._failure, asyncio.CancelledError)

    def cancel(self) -> None:
        """Cancel the function, and refuse all further steps."""
        self.turn.is_over = True
        # The thread sets these before it reads `is_over`, so that one of both stops it.
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not self._over.done():
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

    def get_result(self) -> str | None:
        """Return the stop reason that the function returned; None if it returned none.

        Raises:
            BaseException: The engine's own failure in one of its steps, whatever the function made of it.
            AgentExitError: The function raised, or returned something else than text.
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
