"""`ScriptedModel`: the server as a context manager. It runs in a thread of its own, so that a test may block."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from benchflow.errors import UsageError
from benchflow.testing.scripted_model.choice import Chooser, Program
from benchflow.testing.scripted_model.record import Call, CallLog
from benchflow.testing.scripted_model.script import Reply, Script, SideCalls

if TYPE_CHECKING:
    from benchflow.testing.scripted_model.app import ScriptedApp
    from benchflow.testing.scripted_model.stopping import StoppingServer

Scripted = Script | Program | str | Path | Sequence[Any] | dict[str, Any]
"""A script, a Python callable, a YAML file, or the plain data of a script (a list is a list of replies)."""


class ScriptedModel:
    """A model endpoint that says what a script says.

    Enter it with `with` or `async with`. port 0 takes a free one; host "0.0.0.0" lets containers in. record: a file
    to which every request is appended as a JSON line. side: what a Python callable's side calls get (a script says so
    itself). A callable runs on the server's own event loop, in its thread.
    """

    def __init__(
        self,
        script: Scripted,
        *,
        side: SideCalls | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        record: str | Path | None = None,
    ) -> None:
        self._script = script if isinstance(script, Script) or callable(script) else _load(script)
        self._chooser = Chooser(self._script, side)
        self._log = CallLog(Path(record) if record is not None else None)
        self._host, self._port = host, port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._app: ScriptedApp | None = None
        self._server: StoppingServer | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()

    # --- where it is

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        return self._port

    def url(self, host: str | None = None) -> str:
        """Its address as seen from elsewhere: a container reaches the host under another name than the host itself."""
        own = "127.0.0.1" if self._host == "0.0.0.0" else self._host
        return f"http://{host or own}:{self._port}"

    @property
    def base_url(self) -> str:
        """What Anthropic's and Gemini's clients call the base URL."""
        return self.url()

    @property
    def openai_base_url(self) -> str:
        """What OpenAI's clients call the base URL: with `/v1`."""
        return f"{self.url()}/v1"

    # --- what it received

    @property
    def calls(self) -> list[Call]:
        """Every request, in the order of arrival, model lists and unknown paths included."""
        return self._log.all()

    @property
    def main_calls(self) -> list[Call]:
        """The model calls that belong to the task."""
        return [call for call in self.calls if call.dialect is not None and not call.side]

    @property
    def side_calls(self) -> list[Call]:
        """The model calls that don't: titles, suggestions."""
        return [call for call in self.calls if call.side]

    @property
    def unanswered(self) -> list[Call]:
        """The model calls that the script had no reply for; a test of a whole turn asserts that there are none."""
        return [call for call in self.calls if call.reply == "unanswered"]

    @property
    def in_flight(self) -> list[Call]:
        """The requests that are not answered to the end yet."""
        return [call for call in self.calls if not call.ended]

    def wait_for_calls(self, count: int, *, timeout: float = 120) -> list[Call]:
        """Blocks until so many main calls have arrived. Raises `TimeoutError` saying what did."""
        self._log.wait_until(lambda calls: sum(c.dialect is not None and not c.side for c in calls) >= count, timeout)
        return self.main_calls

    async def arrived(self, count: int, *, timeout: float = 120) -> list[Call]:
        """`wait_for_calls` for async tests."""
        return await asyncio.to_thread(self.wait_for_calls, count, timeout=timeout)

    def wait_until_quiet(self, *, timeout: float = 120) -> None:
        """Blocks until no request is in flight."""
        self._log.wait_until(lambda calls: all(call.ended for call in calls), timeout)

    def release(self, hold: str) -> None:
        """Lets the replies go that wait under this name, and those that will."""
        if self._loop is None or self._app is None:
            raise UsageError("the scripted model is not running")
        app = self._app
        self._loop.call_soon_threadsafe(lambda: app.holds[hold].set())

    # --- start and stop

    def start(self) -> Self:
        """Listens; returns as soon as connections are accepted."""
        if self._thread is not None:
            raise UsageError("the scripted model is already running")
        try:
            import uvicorn

            from benchflow.testing.scripted_model.app import ScriptedApp
            from benchflow.testing.scripted_model.stopping import StoppingServer
        except ImportError as error:
            remedy = "pip install 'benchflow[testing]'"
            raise UsageError(f"the scripted model needs a package: {error}", remedy=remedy) from error
        listener = socket.create_server((self._host, self._port), backlog=512)
        self._port = listener.getsockname()[1]
        models = self._script.models if isinstance(self._script, Script) else ("scripted",)

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._app = ScriptedApp(self._chooser, self._log, models)
            config = uvicorn.Config(
                self._app.asgi,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                timeout_graceful_shutdown=2,
            )
            self._server = StoppingServer(config)
            self._started.set()
            await self._server.serve(sockets=[listener])

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="scripted-model", daemon=True)
        self._thread.start()
        self._started.wait()
        return self

    def stop(self) -> None:
        """Ends what is in flight and closes the port. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._app is None or self._server is None:
            return
        self._loop.call_soon_threadsafe(self._app.closing.set)
        self._loop.call_soon_threadsafe(self._server.stop)
        thread.join()
        self._started.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def _load(script: Any) -> Script:
    if isinstance(script, (str, Path)):
        return Script.from_yaml(script)
    if isinstance(script, Sequence):
        script = {"replies": [reply if not isinstance(reply, Reply) else reply.model_dump() for reply in script]}
    return Script.parse(script)
