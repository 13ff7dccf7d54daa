"""Commands in a local sandbox: each in a control group of its own, its output and its end in files outside.

A process of ours outside of the sandbox waits for the command and writes its exit status, whether or not the worker
still lives. Exactly once rests on a file of that process, made before the command starts and only if it was not
there. What a command started is what its control group holds, wherever it forked to: one write ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow.contracts.failures import storage_error
from benchflow.contracts.sandbox import ExecChunk, SandboxExecResult
from benchflow.errors import SandboxError, SandboxLostError
from benchflow.planes.sandbox.local.cgroups import Cgroup
from benchflow.planes.sandbox.local.client import Helper, HelperDied
from benchflow.planes.sandbox.local.helper.enter import STARTED
from benchflow.planes.sandbox.local.helper.kernel import punch_hole
from benchflow.planes.sandbox.local.helper.process import open_process
from benchflow.planes.sandbox.outcome import KILLED, LEFT_OUT, OUTPUT_CAP, OUTPUT_ON_DISK, TIMED_OUT, WATCH_EVERY
from benchflow.planes.sandbox.records import file_lock
from benchflow.planes.sandbox.timeouts import Attendance, awake_timeout
from benchflow.store import storage_errors

_PIECE = 64 * 1024
_PAGE = 4096
_BLANK = b"   \n"
"""As long as an exit status is at most."""


@dataclass(frozen=True)
class Command:
    """What to run, as which user, where. user: `name`, `uid`, or either with `:group`. limited: by the task's own.
    together: both outputs as one.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    user: str
    limited: bool = True
    together: bool = False


class Executions:
    """The commands of one sandbox. init: pid and start time of its first process, asked for anew each time."""

    def __init__(self, helper: Helper, cgroup: Cgroup, records: Path, init: Callable[[], tuple[int, int]]) -> None:
        self._helper = helper
        self._cgroup = cgroup
        self._records = records
        self._init = init

    async def run(self, command: Command, timeout: float | None) -> SandboxExecResult:
        """Run to the end. Cancelling kills what was started."""
        leaf = f"x-{secrets.token_hex(6)}"
        out, err = self._unnamed(), self._unnamed()
        try:
            code, timed_out = await self._run(leaf, command, (out, err), timeout)
            return await asyncio.to_thread(_result, code, out, err, timed_out)
        finally:
            os.close(out)
            os.close(err)

    async def _run(
        self, leaf: str, command: Command, outputs: tuple[int, int], timeout: float | None
    ) -> tuple[int, bool]:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        starting = asyncio.ensure_future(self._start(leaf, command, (*outputs, writing), None))
        try:
            async with awake_timeout(timeout):
                # A start under way cannot be called back, so ending it means to see it through first.
                await asyncio.shield(starting)
                os.close(writing)
                writing = -1
                return await self._status(leaf, reading, outputs), False
        except TimeoutError:
            await self._end(leaf, starting)
            return TIMED_OUT, True
        except BaseException:
            await asyncio.shield(self._end(leaf, starting))
            raise
        finally:
            if writing >= 0:
                os.close(writing)
            os.close(reading)
            await asyncio.to_thread(self._cgroup.drop_leaf, leaf)

    async def run_once(self, key: str, command: Command, timeout: float | None) -> SandboxExecResult:
        """Run under a key, or attach to what runs or ran under it. Cancelling leaves it running."""
        room = self._room(key)
        leaf = leaf_of(key)
        async with file_lock(room.with_suffix(".lock")):
            await self._ensure_started(room, leaf, command)
        mark = _read_json(room / STARTED)
        try:
            async with awake_timeout(timeout, Attendance(room / "attended", mark["at"])):
                await self._ended(room, leaf, mark)
        except TimeoutError:
            # Written before the kill: whoever sees the end of the command finds here why it ended.
            _settle(room, {"return_code": TIMED_OUT, "timed_out": True})
            await self._kill(leaf)
        await asyncio.to_thread(self._cgroup.drop_leaf, leaf)
        end = _read_json(room / "end")
        if "lost" in end:
            raise SandboxError(end["lost"])
        with (room / "out").open("rb") as out, (room / "err").open("rb") as err:
            return await asyncio.to_thread(
                _result, end["return_code"], out.fileno(), err.fileno(), end.get("timed_out", False)
            )

    async def begin(self, key: str, command: Command) -> None:
        """Start under a key unless it was, and return without waiting for the end."""
        room = self._room(key)
        async with file_lock(room.with_suffix(".lock")):
            await self._ensure_started(room, leaf_of(key), command)

    async def look(self, key: str, limit: int) -> tuple[bool, int | None, str]:
        """Of what runs or ran under a key: whether it runs, its exit status, the end of its output (bytes)."""
        room = self._room(key)
        if not await self.was_started(key):
            return False, None, ""
        mark = _read_json(room / STARTED)
        waiter = None if (room / "end").exists() else open_process(mark["pid"], mark["started"])
        if waiter is not None:
            os.close(waiter)
        else:
            await self._ended(room, leaf_of(key), mark)
        code = None if waiter is not None else _read_json(room / "end").get("return_code")
        return waiter is not None, code, await asyncio.to_thread(_tail, room / "out", limit)

    async def was_started(self, key: str) -> bool:
        """Whether a command of this key ever began."""
        return (self._room(key) / STARTED).exists()

    async def kill_once(self, key: str) -> None:
        """Kill the command of a key with all it started. One that never was, or ended, is success."""
        if await self.was_started(key):
            await self._kill(leaf_of(key))

    async def stream(self, command: Command) -> AsyncIterator[ExecChunk]:
        """Run and yield output as it comes. Leaving the iteration early kills what was started."""
        leaf = f"x-{secrets.token_hex(6)}"
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        pieces: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        code: int | None = None

        def follow(number: int, fd: int) -> None:
            try:
                piece = os.read(fd, _PIECE)
            except BlockingIOError:
                return
            if not piece:
                loop.remove_reader(fd)
            pieces.put_nowait((number, piece))

        try:
            await self._start(leaf, command, [writing for _, writing in pipes], None)
            for number, (reading, writing) in enumerate(pipes):
                os.close(writing)
                pipes[number] = (reading, -1)
                os.set_blocking(reading, False)
                loop.add_reader(reading, follow, number, reading)
            status = b""
            while True:
                number, piece = await pieces.get()
                if number < 2 and piece:
                    yield ExecChunk(stream="stdout" if number == 0 else "stderr", data=piece)
                elif number == 2 and piece:
                    status += piece
                elif number == 2:
                    break
            # What it left behind may hold the pipes open for ever: what is in them now is the command's own.
            late = [piece for piece in _drained(pieces) if piece[1]]
            for number, piece in [*late, *((n, piece) for n in (0, 1) for piece in _rest(pipes[n][0]))]:
                yield ExecChunk(stream="stdout" if number == 0 else "stderr", data=piece)
            code = self._code(status)
        finally:
            for reading, writing in pipes:
                loop.remove_reader(reading)
                os.close(reading)
                if writing >= 0:
                    os.close(writing)
            if code is None:
                await asyncio.shield(self._kill(leaf))
            await asyncio.to_thread(self._cgroup.drop_leaf, leaf)
        yield ExecChunk(stream="exit", return_code=code)

    # --- starting ------------------------------------------------------------------------------------

    async def _start(self, leaf: str, command: Command, fds: Any, once: Path | None) -> dict[str, Any]:
        pid, started = self._init()
        own, *limits = self._cgroup.join_files(leaf)
        request = {
            "pid": pid,
            "started": started,
            "group": str(Path(own).parent),
            # What the engine does in a sandbox is not the task's to pay for.
            "limits": limits if command.limited else [],
            "argv": list(command.argv),
            "env": command.env,
            "cwd": command.cwd,
            "user": command.user,
            "once": str(once) if once else None,
        }
        return await self._helper.call("run", request, fds)

    async def _ensure_started(self, room: Path, leaf: str, command: Command) -> None:
        """Start the command unless it was. The lock is held."""
        while not (room / STARTED).exists():
            await asyncio.to_thread(room.mkdir, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            (room / "err").touch(0o600)
            err = "out" if command.together else "err"
            fds = [os.open(room / name, flags | os.O_APPEND, 0o600) for name in ("out", err)]
            fds.append(os.open(room / "exit", flags, 0o600))
            try:
                with storage_errors(room / "exit"):
                    # In place of it the exit status is written, also where the disk is full by then.
                    os.pwrite(fds[-1], _BLANK, 0)
                await self._start(leaf, command, fds, room)
            except HelperDied:
                # Whether it had begun is written down; if not, there is nothing to be undone.
                self._init()
            finally:
                for fd in fds:
                    os.close(fd)

    # --- waiting -------------------------------------------------------------------------------------

    async def _status(self, leaf: str, reading: int, outputs: tuple[int, int]) -> int:
        """The exit status, when the process that waits for the command has written it."""
        os.set_blocking(reading, False)
        status = b""
        while not status.endswith(b"\n"):
            await self._readable(reading, outputs)
            piece = os.read(reading, 64)
            if not piece:
                break
            status += piece
        return self._code(status)

    def _code(self, status: bytes) -> int:
        """The exit status, as it was written. Raises when nobody could, because the sandbox or the writer died."""
        text = status.strip()
        if text.isdigit():
            if int(text) == KILLED:
                # Whoever removes a sandbox says so first, and kills its first process last.
                if not (self._records / "running.json").exists():
                    raise SandboxLostError("the sandbox was removed during a command")
                self._init()
            return int(text)
        self._init()
        raise HelperDied("a command's end was not seen: the process that waited for it died")

    async def _ended(self, room: Path, leaf: str, mark: dict[str, Any]) -> None:
        """Return when the end of the execution is settled."""
        if (room / "end").exists():
            return
        waiter = open_process(mark["pid"], mark["started"])
        if waiter is not None:
            with (room / "out").open("r+b") as out, (room / "err").open("r+b") as err:
                try:
                    await self._readable(waiter, (out.fileno(), err.fileno()))
                finally:
                    os.close(waiter)
        try:
            _settle(room, {"return_code": self._code((room / "exit").read_bytes())})
        except SandboxLostError:
            raise
        except SandboxError as error:
            await self._kill(leaf)
            _settle(room, {"lost": error.message})
        except FileNotFoundError as error:
            raise SandboxLostError("the sandbox was removed during a command") from error

    async def _readable(self, fd: int, outputs: tuple[int, int]) -> None:
        """Wait until a handle says something; meanwhile see to it that no output fills the disk."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(fd, ready.set)
        try:
            while not ready.is_set():
                try:
                    async with asyncio.timeout(WATCH_EVERY):
                        await ready.wait()
                except TimeoutError:
                    for output in outputs:
                        await asyncio.to_thread(_trim, output)
        finally:
            loop.remove_reader(fd)

    async def _end(self, leaf: str, starting: asyncio.Future[dict[str, Any]]) -> None:
        """End a command that may just be coming up."""
        await asyncio.wait([starting])
        await self._kill(leaf)
        if not starting.cancelled():
            starting.exception()

    async def _kill(self, leaf: str) -> None:
        """Kill all that a command started, and return when it is gone."""

        def kill() -> None:
            self._cgroup.kill(leaf)
            self._cgroup.wait_empty(leaf=leaf)

        await asyncio.to_thread(kill)

    # --- places --------------------------------------------------------------------------------------

    def _unnamed(self) -> int:
        """A file without a name, gone with whoever holds it open."""
        self._records.mkdir(parents=True, exist_ok=True)
        return os.open(self._records, os.O_TMPFILE | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _room(self, key: str) -> Path:
        return self._records / "exec" / leaf_of(key)


def leaf_of(key: str) -> str:
    """The control group of a key's command."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", key)[:40]
    return f"{readable}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise SandboxLostError("the sandbox was removed during a command") from error
    return content


def _settle(room: Path, end: dict[str, Any]) -> None:
    """Write how it ended, unless somebody who saw it earlier has."""
    part = room / f".end.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        part.write_text(json.dumps(end))
        with contextlib.suppress(FileExistsError):
            (room / "end").hardlink_to(part)
        part.unlink()
    except FileNotFoundError as error:
        raise SandboxLostError("the sandbox was removed during a command") from error
    except OSError as error:
        raise storage_error(error, str(part)) from error


def _result(code: int, out: int, err: int, timed_out: bool) -> SandboxExecResult:
    stdout, cut_out = _shown(out)
    stderr, cut_err = _shown(err)
    return SandboxExecResult(
        return_code=code, stdout=stdout, stderr=stderr, timed_out=timed_out, truncated=cut_out or cut_err
    )


def _shown(fd: int) -> tuple[str, bool]:
    """The content of an output file, without its middle where it is too long."""
    size = os.fstat(fd).st_size
    if size <= OUTPUT_CAP:
        return os.pread(fd, size, 0).decode(errors="replace"), False
    half = OUTPUT_CAP // 2
    head, tail = os.pread(fd, half, 0), os.pread(fd, half, size - half)
    return head.decode(errors="replace") + LEFT_OUT + tail.decode(errors="replace"), True


def _trim(fd: int) -> None:
    """Give back the middle of a file that has grown too large; what is written goes on at its end."""
    size = os.fstat(fd).st_size
    if os.fstat(fd).st_blocks * 512 <= OUTPUT_ON_DISK:
        return
    first = -(-OUTPUT_CAP // 2 // _PAGE) * _PAGE
    last = (size - OUTPUT_CAP // 2) // _PAGE * _PAGE
    # A file system that cannot do it keeps the whole.
    with contextlib.suppress(OSError):
        punch_hole(fd, first, last - first)


def _tail(file: Path, limit: int) -> str:
    with file.open("r+b") as output:
        _trim(output.fileno())
        start = max(0, os.fstat(output.fileno()).st_size - limit)
        return os.pread(output.fileno(), limit, start).decode(errors="replace")


def _drained(pieces: asyncio.Queue[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    found = []
    while not pieces.empty():
        found.append(pieces.get_nowait())
    return found


def _rest(fd: int) -> list[bytes]:
    """What a pipe holds now."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(fd, _PIECE):
            found.append(piece)
    return found
