"""The scripted model's server as a context manager. It runs in a thread of its own, so that a test may block."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from benchflow.errors import UsageError
from benchflow.testing.scripted_model.call_log import CallLog, ReceivedCall
from benchflow.testing.scripted_model.model_script import Reply, Script, SideCalls
from benchflow.testing.scripted_model.reply_choice import Chooser, Program

if TYPE_CHECKING:
    from benchflow.testing.scripted_model.scripted_app import ScriptedApp
    from benchflow.testing.scripted_model.stopping_server import StoppingServer

Scripted = Script | Program | str | Path | Sequence[Any] | dict[str, Any]
"""A script, a Python callable, a YAML file, or the plain data of a script (a list is a list of replies)."""


class ScriptedModel:
    """A model endpoint that replies by a script. Enter it with `with` or `async with`."""

    def __init__(
        self,
        script: Scripted,
        *,
        side: SideCalls | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        record: str | Path | None = None,
    ) -> None:
        """Make the server, without starting it.

        Args:
            script: The script. A callable runs on the server's event loop, in its thread.
            side: Rules for the side calls of a callable, in place of the defaults. A script has its own.
            host: Address to listen at; "0.0.0.0" lets containers in.
            port: Port to listen at; 0 takes a free one.
            record: File to which every request is appended as a JSON line.

        Raises:
            ConfigError: The script is invalid.
        """
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
        """Return the port; once started, the one that it listens at."""
        return self._port

    def url(self, host: str | None = None) -> str:
        """Return the base URL, with the host name by which a client, such as a container, reaches this host."""
        own = "127.0.0.1" if self._host == "0.0.0.0" else self._host
        return f"http://{host or own}:{self._port}"

    @property
    def base_url(self) -> str:
        """Return the base URL for clients of Anthropic and Gemini."""
        return self.url()

    @property
    def openai_base_url(self) -> str:
        """Return the base URL for clients of OpenAI, which ends in `/v1`."""
        return f"{self.url()}/v1"

    # --- what it received

    @property
    def calls(self) -> list[ReceivedCall]:
        """Return all requests in the order of arrival, those for model lists and unknown paths included."""
        return self._log.all()

    @property
    def main_calls(self) -> list[ReceivedCall]:
        """Return the model calls that belong to the task."""
        return [call for call in self.calls if call.dialect is not None and not call.side]

    @property
    def side_calls(self) -> list[ReceivedCall]:
        """Return the model calls that don't belong to the task, such as for titles and suggestions."""
        return [call for call in self.calls if call.side]

    @property
    def unanswered(self) -> list[ReceivedCall]:
        """Return the model calls without a reply in the script. A test of a whole turn asserts that there are none."""
        return [call for call in self.calls if call.reply == "unanswered"]

    @property
    def in_flight(self) -> list[ReceivedCall]:
        """Return the requests whose responses are not over."""
        return [call for call in self.calls if not call.ended]

    def wait_for_calls(self, count: int, *, timeout: float = 120) -> list[ReceivedCall]:
        """Block until `count` main calls have arrived, and return them all.

        Raises:
            TimeoutError: Fewer have arrived after `timeout` seconds; lists the requests.
        """
        self._log.wait_until(lambda calls: sum(c.dialect is not None and not c.side for c in calls) >= count, timeout)
        return self.main_calls

    async def arrived(self, count: int, *, timeout: float = 120) -> list[ReceivedCall]:
        """Wait for calls as `wait_for_calls` does, without blocking the event loop."""
        return await asyncio.to_thread(self.wait_for_calls, count, timeout=timeout)

    def wait_until_quiet(self, *, timeout: float = 120) -> None:
        """Block until no request is in flight. Raise `TimeoutError` after `timeout` seconds."""
        self._log.wait_until(lambda calls: all(call.ended for call in calls), timeout)

    def release(self, hold: str) -> None:
        """Send the replies that wait under this name, and have later ones not wait.

        Raises:
            UsageError: The server doesn't run.
        """
        if self._loop is None or self._app is None:
            raise UsageError("the scripted model is not running")
        app = self._app
        self._loop.call_soon_threadsafe(lambda: app.holds[hold].set())

    # --- start and stop

    def start(self) -> Self:
        """Start the server's thread, and return the server once it accepts connections.

        Raises:
            UsageError: It runs already, or a package of the extra `testing` is missing.
            OSError: It can't listen at its address.
        """
        if self._thread is not None:
            raise UsageError("the scripted model is already running")
        try:
            import uvicorn

            from benchflow.testing.scripted_model.scripted_app import ScriptedApp
            from benchflow.testing.scripted_model.stopping_server import StoppingServer
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
        """End the requests in flight and close the port. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._app is None or self._server is None:
            return
        self._loop.call_soon_threadsafe(self._app.closing.set)
        self._loop.call_soon_threadsafe(self._server.stop)
        thread.join()
        self._started.clear()

    def __enter__(self) -> Self:
        """Start the server."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self.stop()

    async def __aenter__(self) -> Self:
        """Start the server without blocking the event loop."""
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server without blocking the event loop."""
        await asyncio.to_thread(self.stop)


def _load(script: Any) -> Script:
    """Return the script in a YAML file, a list of replies, or plain data."""
    if isinstance(script, (str, Path)):
        return Script.from_yaml(script)
    if isinstance(script, Sequence):
        script = {"replies": [reply if not isinstance(reply, Reply) else reply.model_dump() for reply in script]}
    return Script.parse(script)
