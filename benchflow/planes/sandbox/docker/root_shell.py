"""The persistent root shell, which runs the engine's own short scripts in less than a millisecond each.

An exec of its own costs tens of milliseconds. So each attached sandbox has one `/bin/sh`, which receives on its stdin a
script, then a line that prints a random marker on stdout and stderr. The marker makes the end of the output
unmistakable, even in binary data. The shell dies with its client, because its stdin ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Callable

from benchflow.contracts.driver import SCRIPT_ENVIRONMENT, ScriptResult
from benchflow.errors import SandboxBusyError, SandboxError, SandboxLostError
from benchflow.planes.sandbox.docker.container_records import lock_for_exec
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon
from benchflow.planes.sandbox.docker.exec_stream import STDOUT, ExecStream
from benchflow.planes.sandbox.docker.translation import find_passing_error, is_out_of_processes
from benchflow.planes.sandbox.driven.engine_scripts import is_fork_failure
from benchflow.planes.sandbox.driven.wrapped import MARK_AGENT
from benchflow.planes.sandbox.timeouts import AwakeDeadline, awake_timeout

CROWDED_SEC = 10.0
"""Timeout in seconds for retries of a shell that can't start: killed processes free their places a moment later, and
for a moment the daemon still reports a container that is being removed as running."""

MAX_ANSWER = 96 * 1024 * 1024
"""Maximum number of bytes of a script's buffered output; the largest file that is read through the shell fits."""

HOLD_BACK = 64
"""Bytes at the end of stdout that are held back because they may be the marker line; longer than that line."""


class _BrokenShellError(Exception):
    """The shell ended in the middle of a script. The argument is the end of its output."""


class RootShell:
    """A root shell in one container. Scripts run one after another, each in a subshell with an empty stdin."""

    def __init__(self, engine: DockerDaemon, container: str) -> None:
        """Make it. The shell is started by the first script."""
        self._engine = engine
        self._container = container
        self._stream: ExecStream | None = None
        self._turn = asyncio.Lock()

    async def run(
        self,
        script: str,
        *,
        sink: Callable[[bytes], None] | None = None,
        timeout: float | None = 60.0,
    ) -> ScriptResult:
        """Run a script and return its result. A shell that dies is replaced, and the script run again.

        Args:
            script: Text of the script, which must be repeatable.
            sink: Callback that receives stdout in pieces; then there is no second run once it has received any.
            timeout: Seconds for the script; None for no limit.

        Raises:
            SandboxLostError: The container does not run.
            SandboxBusyError: The shell ended after `sink` had received output.
            SandboxError: The container has no usable shell, or the script does not end in time.
        """
        given = 0

        def count(data: bytes) -> None:
            nonlocal given
            given += len(data)
            if sink:
                sink(data)

        deadline = AwakeDeadline(CROWDED_SEC)
        is_widened = False
        async with self._turn, contextlib.AsyncExitStack() as stack:
            while True:
                fresh = self._stream is None
                try:
                    answer = await self._converse(script, count if sink else None, timeout)
                    if not is_fork_failure(answer) or given or deadline.is_over():
                        return answer
                    full = crowded = True
                except _BrokenShellError as broken:
                    # No exec enters a container that is being removed, or is out of pids; which it is shows soon.
                    full = is_out_of_processes(str(broken))
                    crowded = (full or "setns" in str(broken)) and not deadline.is_over()
                    # Output that a sink has received cannot be revoked, so there is no second run.
                    await self._explain(broken, fresh and not crowded)
                    if given:
                        raise SandboxBusyError("the sandbox's shell ended in the middle of an answer") from broken
                if full and not is_widened:
                    await stack.enter_async_context(self._engine.raise_pids_limit(self._container))
                    is_widened = True
                if crowded:
                    await asyncio.sleep(0.05)

    async def is_alive(self) -> bool:
        """Return whether the open shell runs a script; False if none is open."""
        if self._stream is None:
            return False
        try:
            return (await self.run(":")).exit_code == 0
        except SandboxError:
            return False

    @contextlib.asynccontextmanager
    async def close_meanwhile(self) -> AsyncIterator[None]:
        """Close the shell and run no script during the block. The next script starts another shell."""
        async with self._turn:
            self.close()
            yield

    def close(self) -> None:
        """Close the shell, if one is open. The next script starts another one."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    async def _converse(self, script: str, sink: Callable[[bytes], None] | None, timeout: float | None) -> ScriptResult:
        """Send a script to the shell, opened if needed, and return the result. Raise `_BrokenShellError` if it ends."""
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
                    raise _BrokenShellError(str(error)) from error
                answer = await self._listen(self._stream, marker.encode(), sink)
            finished = True
            return answer
        except TimeoutError:
            await self._engine.require_answer()
            raise SandboxError(f"a command of the engine did not end within {timeout} s") from None
        finally:
            # After a cancellation or an error the rest of the output is still to come: the shell can't be used again.
            if not finished:
                self.close()

    async def _open(self) -> ExecStream:
        """Start a shell in the container and return its stream."""
        async with lock_for_exec(self._container):
            made = await self._engine.call_entered(
                self._container,
                lambda client: client.exec_create(
                    self._container, ["/bin/sh"], stdin=True, user="0", environment=SCRIPT_ENVIRONMENT, workdir="/"
                ),
            )
            stream = await self._engine.open_exec(self._container, made["Id"])
        with contextlib.suppress(OSError):
            # If the shell has ended by now, the next script fails and handles that.
            await stream.send(f"{MARK_AGENT}\n".encode())
        return stream

    async def _listen(self, stream: ExecStream, marker: bytes, sink: Callable[[bytes], None] | None) -> ScriptResult:
        """Read the output of a script up to the marker on both streams, and return its result."""
        out, err = bytearray(), bytearray()
        end_out = re.compile(rb"\n" + marker + rb" (\d+)\n\Z")
        end_err = b"\n" + marker + b"\n"
        code: int | None = None
        while code is None or not err.endswith(end_err):
            piece = await stream.read()
            if piece is None:
                raise _BrokenShellError((bytes(out[-2000:]) + bytes(err[-2000:])).decode(errors="replace").strip())
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

    async def _explain(self, broken: _BrokenShellError, fresh: bool) -> None:
        """Raise the error for a broken shell if no other can be started; return if the script may be tried again."""
        state = await self._engine.inspect(self._container)
        if not state["State"]["Running"]:
            raise SandboxLostError(
                f"the container {state['Name'].lstrip('/')} stopped "
                f"(exit status {state['State']['ExitCode']}"
                f"{', out of memory' if state['State']['OOMKilled'] else ''})"
            )
        if "stopped state" in str(broken):
            raise SandboxLostError(f"the container {state['Name'].lstrip('/')} has stopped")
        # A shell that was open before may just have ended with the daemon that it was attached through.
        if fresh and (passing := find_passing_error(str(broken))) is not None:
            raise passing
        if fresh:
            raise SandboxError(
                f"no shell runs in the container: {broken or 'it ended at once'}",
                remedy="the image needs /bin/sh and the usual small commands (coreutils or busybox)",
            )
