"""The persistent root shell: the engine's own small commands at less than a millisecond each.

An execution of its own costs tens of milliseconds. So each attached sandbox keeps one `/bin/sh`, fed over
its standard input: a script, then a line that prints a random marker on both outputs. The marker makes the
answer's end unmistakable in binary data. The shell dies with its client, because its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Callable

from benchflow.contracts.driver import SCRIPT_ENVIRONMENT, ScriptResult
from benchflow.errors import SandboxBusyError, SandboxError, SandboxLostError
from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.records import entering
from benchflow.planes.sandbox.docker.stream import STDOUT, Stream
from benchflow.planes.sandbox.docker.translation import is_out_of_processes, passing_error
from benchflow.planes.sandbox.driven.scripts import gave_up
from benchflow.planes.sandbox.driven.wrapped import MARK_AGENT
from benchflow.planes.sandbox.timeouts import AwakeDeadline, awake_timeout

CROWDED_SEC = 10.0
"""How long a shell that cannot begin is tried again: what was killed leaves its place a moment later, and for a moment
the daemon says of a container that is being removed that it runs.
"""

MAX_ANSWER = 96 * 1024 * 1024
"""Bytes of what a script prints and nobody takes; the largest file that is read through the shell fits."""

HOLD_BACK = 64
"""Bytes at the end of standard output that may be the marker: longer than a marker line."""


class _Broken(Exception):
    """The shell ended in the middle of an answer; the argument is what it had said."""


class RootShell:
    """One shell in one container. Scripts run one after another, each in a subshell with no input."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._container = container
        self._stream: Stream | None = None
        self._turn = asyncio.Lock()

    async def run(
        self,
        script: str,
        *,
        sink: Callable[[bytes], None] | None = None,
        timeout: float | None = 60.0,
    ) -> ScriptResult:
        """Run a script. It must be repeatable: a shell that dies under it is replaced and asked once more.

        sink: receives standard output in pieces. Raises `SandboxLostError` when the container is gone and
        `SandboxError` when it has no usable shell or the script does not end in `timeout` seconds.
        """
        given = 0

        def count(data: bytes) -> None:
            nonlocal given
            given += len(data)
            if sink:
                sink(data)

        giving_up = AwakeDeadline(CROWDED_SEC)
        is_widened = False
        async with self._turn, contextlib.AsyncExitStack() as stack:
            while True:
                fresh = self._stream is None
                try:
                    answer = await self._converse(script, count if sink else None, timeout)
                    if not gave_up(answer) or given or giving_up.is_over():
                        return answer
                    full = crowded = True
                except _Broken as broken:
                    # Nobody enters a container that is being removed, nor one that is full; which it is, shows soon.
                    full = is_out_of_processes(str(broken))
                    crowded = (full or "setns" in str(broken)) and not giving_up.is_over()
                    # What a sink has taken cannot be taken back, so there is no second try.
                    await self._explain(broken, fresh and not crowded)
                    if given:
                        raise SandboxBusyError("the sandbox's shell ended in the middle of an answer") from broken
                if full and not is_widened:
                    await stack.enter_async_context(self._engine.room_for_more(self._container))
                    is_widened = True
                if crowded:
                    await asyncio.sleep(0.05)

    async def alive(self) -> bool:
        """Whether the open shell answers; False when none is open."""
        if self._stream is None:
            return False
        try:
            return (await self.run(":")).exit_code == 0
        except SandboxError:
            return False

    @contextlib.asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """While this is held, no script runs. The next one runs in another shell."""
        async with self._turn:
            self.close()
            yield

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    async def _converse(self, script: str, sink: Callable[[bytes], None] | None, timeout: float | None) -> ScriptResult:
        marker = secrets.token_hex(16)
        text = f"(\n{script}\n) </dev/null\nbf=$?; printf '\\n{marker} %d\\n' $bf; printf '\\n{marker}\\n' >&2\n"
        finished = False
        try:
            async with awake_timeout(timeout):
                if self._stream is None:
                    self._stream = await self._open()
                try:
                    await self._stream.send(text.encode())
                except OSError as error:
                    raise _Broken(str(error)) from error
                answer = await self._listen(self._stream, marker.encode(), sink)
            finished = True
            return answer
        except TimeoutError:
            await self._engine.require_answer()
            raise SandboxError(f"a command of the engine did not end within {timeout} s") from None
        finally:
            # After a cancellation or an error the rest of the answer is still to come: this shell is spent.
            if not finished:
                self.close()

    async def _open(self) -> Stream:
        async with entering(self._container):
            made = await self._engine.about(
                self._container,
                lambda client: client.exec_create(
                    self._container, ["/bin/sh"], stdin=True, user="0", environment=SCRIPT_ENVIRONMENT, workdir="/"
                ),
            )
            stream = await self._engine.open_exec(self._container, made["Id"])
        with contextlib.suppress(OSError):
            # A shell that has ended by now is found out by what it is asked next.
            await stream.send(f"{MARK_AGENT}\n".encode())
        return stream

    async def _listen(self, stream: Stream, marker: bytes, sink: Callable[[bytes], None] | None) -> ScriptResult:
        out, err = bytearray(), bytearray()
        end_out = re.compile(rb"\n" + marker + rb" (\d+)\n\Z")
        end_err = b"\n" + marker + b"\n"
        code: int | None = None
        while code is None or not err.endswith(end_err):
            piece = await stream.read()
            if piece is None:
                raise _Broken((bytes(out[-2000:]) + bytes(err[-2000:])).decode(errors="replace").strip())
            if len(out) + len(err) > MAX_ANSWER:
                raise SandboxError(f"a command of the engine printed more than {MAX_ANSWER} bytes")
            if piece[0] != STDOUT:
                err += piece[1]
                continue
            out += piece[1]
            found = end_out.search(out, max(0, len(out) - HOLD_BACK))
            if found:
                code = int(found.group(1))
                del out[found.start() :]
            if sink and (found or len(out) > HOLD_BACK):
                keep = 0 if found else HOLD_BACK
                sink(bytes(out[: len(out) - keep]))
                del out[: len(out) - keep]
        return ScriptResult(exit_code=code, out=bytes(out), err=bytes(err[: -len(end_err)]))

    async def _explain(self, broken: _Broken, fresh: bool) -> None:
        """Raise if the shell cannot be had again; return if another may be opened."""
        state = await self._engine.about(self._container, lambda client: client.inspect_container(self._container))
        if not state["State"]["Running"]:
            raise SandboxLostError(
                f"the container {state['Name'].lstrip('/')} stopped "
                f"(exit status {state['State']['ExitCode']}"
                f"{', out of memory' if state['State']['OOMKilled'] else ''})"
            )
        if "stopped state" in str(broken):
            raise SandboxLostError(f"the container {state['Name'].lstrip('/')} has stopped")
        # One that was open before ends with the daemon that it is attached by.
        if fresh and (passing := passing_error(str(broken))) is not None:
            raise passing
        if fresh:
            raise SandboxError(
                f"no shell runs in the container: {broken or 'it ended at once'}",
                remedy="the image needs /bin/sh and the usual small commands (coreutils or busybox)",
            )
