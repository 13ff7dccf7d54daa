"""File sync of a session's journals between this host and a sandbox that mounts nothing of it.

`wire` reads and writes files of this host, the stdio proxy those of its sandbox. The agent's output is followed by one
streaming command, from the size of this host's file on; its input is written at its very offset. Both are repeatable: a
worker that takes over after a crash, or works beside another that still runs, neither loses nor duplicates a byte.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from types import TracebackType
from typing import Any, TypeVar, cast

from benchflow.contracts.sandbox import ExecChunk, Sandbox
from benchflow.errors import SandboxError, SandboxLostError
from benchflow.planes.agent.acp.agent_process import RUN_DIRECTORY
from benchflow.planes.agent.acp.wire import Wire, compute_pause

T = TypeVar("T")

RETRY_SEC = 0.2
"""Seconds before a retry."""
RETRY_TIMEOUT = 60.0
"""Seconds of failing attempts after which the sync fails for good."""

STABLE_SEC = 5.0
"""Seconds that an attempt must run to count as success."""

STALL_SEC = 2.0
"""Seconds without output after which the sizes are compared; longer than the poll interval of any `tail`."""

_BLOCK = 4096
_FILES = {"stdout": "out", "stderr": "err"}

# $1: directory. Makes the files, and prints their sizes in this order.
_MAKE = """umask 077; mkdir -p "$1" && cd "$1" && touch in out err || exit 1
for file in in out err; do wc -c < $file || exit 1; done"""

# $1: directory; $2 and $3: the first bytes of `out` and `err`. Ends when the agent has.
_FOLLOW = """cd "$1" || exit 1
tail -c "+$2" -f out 2>/dev/null & out=$!
tail -c "+$3" -f err >&2 2>/dev/null & err=$!
trap 'kill $out $err' EXIT
trap 'exit 1' HUP INT TERM
until [ -e exit ]; do sleep 0.1 2>/dev/null || sleep 1; done"""

_REST = """cd "$1" && tail -c "+$2" out && tail -c "+$3" err >&2"""

# $1: directory; $2: file with the data, from the start of a block on; $3: number of that block.
_PUT = f"""cd "$1" && dd if="$2" of=in bs={_BLOCK} seek="$3" conv=notrunc 2>&1 && rm -f "$2" """


class Mirror:
    """Keeps the files of one wire equal to those in a sandbox, while it is entered as a context manager.

    Await work that needs the agent by `await_work`.
    """

    def __init__(self, sandbox: Sandbox, wire: Wire, inside: str = RUN_DIRECTORY) -> None:
        """Make it. inside: directory of the files in the sandbox, which root alone may enter."""
        self._sandbox = sandbox
        self._wire = wire
        self._inside = inside
        self._part = f".in.{uuid.uuid4().hex}"
        self._tasks: list[asyncio.Task[None]] = []
        self.failed: asyncio.Future[None]
        """Done, with the error, when the sync has failed for good."""

    async def __aenter__(self) -> Mirror:
        """Make the files in the sandbox, if they are missing, and start the sync. Raise `SandboxError`."""
        await self._read_sizes()
        self.failed = asyncio.get_running_loop().create_future()
        for work in (self._follow, self._send_input):
            self._tasks.append(asyncio.create_task(self._retry(work)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the sync."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.failed.done():
            # `await_work` has raised the error; it must not be logged as unretrieved.
            self.failed.exception()

    async def await_work(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that needs the agent, and return its result.

        Raises:
            SandboxError: The sync has failed for good; `SandboxLostError` if the sandbox is lost.
        """
        task = asyncio.ensure_future(work)
        try:
            both: list[asyncio.Future[Any]] = [task, self.failed]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.failed.result()
            return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def catch_up(self) -> None:
        """Copy the output that the agent has written by now, and its exit record if it has ended."""
        try:
            # Read first: once it exists, there is no more output.
            how = await self._sandbox.read_bytes(f"{self._inside}/exit")
        except FileNotFoundError:
            how = None
        await self._stream(_REST)
        if how is not None:
            self._wire.write_exit(how)

    # --- from the sandbox ----------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Copy the agent's output until it has ended."""
        status = await self._stream(_FOLLOW)
        if status != 0:
            raise SandboxError(f"what follows the agent's output ended with {status}")
        await self.catch_up()

    async def _stream(self, script: str) -> int:
        """Append the output of a script to this host's files, from their ends on. Return the script's exit code."""
        _, out, err = await self._read_sizes()
        at = {"stdout": self._wire.read_size("out"), "stderr": self._wire.read_size("err")}
        if out < at["stdout"]:
            raise SandboxLostError("the sandbox no longer has what its agent said: it is another one")
        if err < at["stderr"]:
            # The stdio proxy has emptied a log that was too long.
            self._wire.empty("err")
            at["stderr"] = 0
        command = ["sh", "-c", script, "sh", self._inside, str(at["stdout"] + 1), str(at["stderr"] + 1)]
        chunks = self._sandbox.exec_stream(command, env={"LC_ALL": "C"}, cwd="/", user="root")
        async with aclosing(self._detect_stall(cast(AsyncGenerator[ExecChunk, None], chunks), at)) as pieces:
            async for chunk in pieces:
                if chunk.stream == "exit":
                    return chunk.return_code or 0
                self._wire.append(_FILES[chunk.stream], at[chunk.stream], chunk.data)
                at[chunk.stream] += len(chunk.data)
        return 1

    async def _detect_stall(
        self, chunks: AsyncGenerator[ExecChunk, None], at: dict[str, int]
    ) -> AsyncGenerator[ExecChunk, None]:
        """Yield the chunks. Raise `SandboxError` if none come though the files grow: a connection may die silently."""
        async with aclosing(chunks):
            while True:
                following = asyncio.ensure_future(anext(chunks, None))
                try:
                    behind = False
                    while not (await asyncio.wait([following], timeout=STALL_SEC))[0]:
                        _, out, err = await self._read_sizes()
                        if behind and not following.done():
                            raise SandboxError("the stream of the agent's output stands still")
                        behind = out > at["stdout"] or err > at["stderr"]
                finally:
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                chunk = following.result()
                if chunk is None:
                    return
                yield chunk

    # --- into the sandbox ----------------------------------------------------------------------------

    async def _send_input(self) -> None:
        """Copy the messages to the agent, forever."""
        given, _, _ = await self._read_sizes()
        last = time.monotonic()
        while True:
            end = await self._write_input(given)
            if end > given:
                given, last = end, time.monotonic()
                continue
            await asyncio.sleep(compute_pause(time.monotonic() - last))

    async def _write_input(self, given: int) -> int:
        """Write the complete lines beyond the offset `given` to the sandbox's `in`. Return its new end.

        A complete line never changes, so that the write is idempotent, also between workers.
        """
        block = given // _BLOCK
        data = self._wire.sent.read_after(block * _BLOCK)
        end = block * _BLOCK + len(data)
        if end <= given:
            return given
        await self._sandbox.write_file(f"{self._inside}/{self._part}", data, mode=0o600)
        answer = await self._sandbox.control(_PUT, self._inside, self._part, str(block))
        if answer.return_code != 0:
            raise SandboxError("cannot write to the agent", log_tail=answer.stderr or answer.stdout or None)
        return end

    # --- both ----------------------------------------------------------------------------------------

    async def _read_sizes(self) -> tuple[int, int, int]:
        """Return the sizes of `in`, `out` and `err` in the sandbox, which are made if they are missing."""
        answer = await self._sandbox.control(_MAKE, self._inside)
        rows = answer.stdout.split()
        if answer.return_code != 0 or len(rows) != 3 or not all(row.isdecimal() and len(row) < 20 for row in rows):
            raise SandboxError("cannot keep the agent's files in the sandbox", log_tail=answer.stderr or None)
        return int(rows[0]), int(rows[1]), int(rows[2])

    async def _retry(self, work: Callable[[], Awaitable[None]]) -> None:
        """Await work, and retry it after transient errors of the sandbox. Set `failed` if it does not recover."""
        failing = None
        while not self.failed.done():
            started = time.monotonic()
            try:
                return await work()
            except Exception as error:
                now = time.monotonic()
                if failing is None or now - started > STABLE_SEC:
                    failing = now
                passes = isinstance(error, SandboxError) and not isinstance(error, SandboxLostError)
                if not passes or now - failing > RETRY_TIMEOUT:
                    if not self.failed.done():
                        self.failed.set_exception(error)
                    return
            await asyncio.sleep(RETRY_SEC)
