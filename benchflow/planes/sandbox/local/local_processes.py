"""Commands in a local sandbox: each has a cgroup of its own, and its outputs and exit code in files on the host.

A helper process outside of the sandbox waits for the command and writes its exit code, whether or not the worker
lives. A command starts at most once, since that helper process first creates a file, and only the process that creates
it may start the command. All descendants of a command are in its cgroup, wherever they fork to, and one write kills
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchflow.contracts.accelerators import ProcessOutput
from benchflow.contracts.driver import SCRIPT_ENVIRONMENT, Process, ProcessStatus, ScriptResult
from benchflow.contracts.process_table import RunningProcess
from benchflow.contracts.sandbox import ExecChunk
from benchflow.errors import SandboxError, SandboxLostError
from benchflow.host_files import raise_storage_errors
from benchflow.planes.sandbox.host_table import kill_processes, read_process, wait_for_ends
from benchflow.planes.sandbox.local.cgroups import Cgroup
from benchflow.planes.sandbox.local.command_outputs import BLANK, CommandOutputs, NamedOutputs, UnnamedOutputs
from benchflow.planes.sandbox.local.helper.enter import STARTED
from benchflow.planes.sandbox.local.helper_client import Helper, HelperDiedError
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.process_identity import open_process

_SHELL = "/bin/sh"
_PIECE = 64 * 1024


class LocalProcesses:
    """The commands of one sandbox.

    Args:
        helper: Helper that enters the sandbox.
        cgroup: Cgroup of the sandbox.
        records: Directory of the sandbox's records.
        env: Returns the environment that every command has.
        init: Returns pid and start time of the sandbox's first process. Called for each start, and may raise.
    """

    def __init__(
        self,
        helper: Helper,
        cgroup: Cgroup,
        records: Path,
        env: Callable[[], Mapping[str, str]],
        init: Callable[[], tuple[int, int]],
    ) -> None:
        """Make it."""
        self._helper = helper
        self._cgroup = cgroup
        self._records = records
        self._env = env
        self._init = init
        self._unnamed: dict[str, UnnamedOutputs] = {}

    async def spawn(self, process: Process) -> None:
        """Start a command, unless it was started, and return without waiting for its end."""
        if not process.is_kept:
            await self._spawn_unnamed(process)
            return
        room = self._room(process.id)
        while not (room / STARTED).exists():
            await asyncio.to_thread(room.mkdir, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            fds = [os.open(room / name, flags | os.O_APPEND, 0o600) for name in ("out", "err")]
            fds.append(os.open(room / "exit", flags, 0o600))
            try:
                with raise_storage_errors(room / "exit"):
                    # Reserves the space of the exit code, so that it can be written even if the disk is full by then.
                    os.pwrite(fds[-1], BLANK, 0)
                await self._start(process, fds, room)
            except HelperDiedError:
                # The loop's condition tells whether the command was started; if not, there is nothing to undo.
                self._init()
            finally:
                for fd in fds:
                    os.close(fd)

    async def _spawn_unnamed(self, process: Process) -> None:
        """Start a command whose status and output only this process asks for."""
        with raise_storage_errors(self._records):
            unnamed = self._unnamed[process.id] = UnnamedOutputs(self._records)
        try:
            await self._start(process, unnamed.given, None)
        except BaseException:
            self._unnamed.pop(process.id).close()
            raise
        unnamed.leave_to_writer()

    async def status(self, process_id: str) -> ProcessStatus:
        """Return the status of a command.

        Raises:
            SandboxLostError: The sandbox was removed, or no longer runs.
            SandboxError: It has ended with an unknown exit code.
        """
        if (unnamed := self._unnamed.get(process_id)) is not None:
            if not unnamed.is_over():
                return ProcessStatus(was_started=True, is_running=True)
            return await self._ended(process_id)
        room = self._room(process_id)
        if not (room / STARTED).exists():
            return ProcessStatus(was_started=False)
        waiter = _open_waiter(room)
        if waiter is not None:
            os.close(waiter)
            return ProcessStatus(was_started=True, is_running=True)
        return await self._ended(process_id)

    async def wait(self, process_id: str) -> ProcessStatus:
        """Wait for the end of a command and return its status. Raise the errors of `status`."""
        if (unnamed := self._unnamed.get(process_id)) is not None:
            while not unnamed.is_over():
                await _wait_readable(unnamed.end)
            return await self._ended(process_id)
        waiter = _open_waiter(self._room(process_id))
        if waiter is not None:
            try:
                await _wait_readable(waiter)
            finally:
                os.close(waiter)
        return await self._ended(process_id)

    async def _ended(self, process_id: str) -> ProcessStatus:
        """Return the status of a command whose waiting process has ended, and remove its cgroup."""
        unnamed = self._unnamed.get(process_id)
        try:
            said = unnamed.code if unnamed is not None else (self._room(process_id) / "exit").read_bytes()
            code = self._code(said or b"")
        except FileNotFoundError as error:
            raise SandboxLostError("the sandbox was removed during a command") from error
        except HelperDiedError as error:
            await self.kill(process_id)
            raise SandboxError(error.message) from error
        await asyncio.to_thread(self._cgroup.drop_leaf, process_id)
        return ProcessStatus(was_started=True, exit_code=code)

    async def stream(self, process: Process) -> AsyncGenerator[ExecChunk, None]:
        """Run a command and yield its output as it comes, then its exit code.

        Closing the generator early kills the command. Raises as `status`.
        """
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

        starting = asyncio.ensure_future(self._start(process, [fds[1] for fds in pipes], None))
        try:
            # A start in progress can't be cancelled: it is awaited, and killed after that.
            await asyncio.shield(starting)
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
            # Background processes may hold the pipes open for ever: the command's own output is in them now.
            late = [piece for piece in _drained(pieces) if piece[1]]
            for number, piece in [*late, *((n, piece) for n in (0, 1) for piece in _read_rest(pipes[n][0]))]:
                yield ExecChunk(stream="stdout" if number == 0 else "stderr", data=piece)
            code = self._code(status)
        finally:
            try:
                if code is None:
                    await asyncio.shield(self._end(process.id, starting))
            finally:
                # Only after the end of the start, which passes some of them on.
                for reading, writing in pipes:
                    loop.remove_reader(reading)
                    os.close(reading)
                    if writing >= 0:
                        os.close(writing)
            await asyncio.to_thread(self._cgroup.drop_leaf, process.id)
        yield ExecChunk(stream="exit", return_code=code)

    async def run_script(
        self, script: str, sink: Callable[[bytes], None] | None, timeout: float | None
    ) -> ScriptResult:
        """Run a shell script of the engine to its end, without the sandbox's limits.

        Args:
            script: Text of the script.
            sink: Callback that receives stdout in pieces; None to have it in the result.
            timeout: Seconds after which the script is killed and `SandboxError` raised; None for no limit.
        """
        parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        takes = {"stdout": sink or parts["stdout"].append, "stderr": parts["stderr"].append}
        code: int | None = None
        # The image's own PATH may name a directory that the agent can write, and this runs as root.
        env = dict(SCRIPT_ENVIRONMENT)
        process = Process(id=f"s-{secrets.token_hex(8)}", argv=(_SHELL, "-c", script), env=env, is_limited=False)
        try:
            async with awake_timeout(timeout), contextlib.aclosing(self.stream(process)) as chunks:
                async for chunk in chunks:
                    if chunk.stream == "exit":
                        code = chunk.return_code
                    else:
                        takes[chunk.stream](chunk.data)
        except TimeoutError:
            raise SandboxError(f"a script of the engine did not end within {timeout} s") from None
        assert code is not None
        return ScriptResult(exit_code=code, out=b"".join(parts["stdout"]), err=b"".join(parts["stderr"]))

    async def _end(self, process_id: str, starting: asyncio.Future[None]) -> None:
        """Kill a command that may be about to start, after the end of `starting`."""
        await asyncio.wait([starting])
        if not starting.cancelled():
            starting.exception()
        await self.kill(process_id)

    async def kill(self, process_id: str) -> None:
        """Kill a command and all its descendants, and wait for their end."""

        def kill() -> None:
            self._cgroup.kill(process_id)
            self._cgroup.wait_empty(leaf=process_id)
            self._cgroup.drop_leaf(process_id)

        await asyncio.to_thread(kill)

    def all_running(self, groups: tuple[str, Collection[str]]) -> list[RunningProcess]:
        """Return the processes of all commands.

        Args:
            groups: Cgroup of the first process, and those of the image's entrypoint.
        """
        first, entrypoints = groups
        found = [
            read_process(pid, group=leaf, entered=leaf not in entrypoints)
            for leaf in self._cgroup.leaves()
            if leaf != first
            for pid in self._cgroup.pids(leaf)
        ]
        running = [process for process in found if process is not None]
        own, (init, _) = {process.pid for process in running}, self._init()
        # The parent of a command's first process is the helper outside of the sandbox: it is shown as 0.
        parents = {init: 1} | {pid: pid for pid in own}
        return [replace(process, parent=parents.get(process.parent, 0)) for process in running]

    def kill_all_but(
        self, groups: tuple[str, Collection[str]], spared: Callable[[list[RunningProcess]], set[int]]
    ) -> int:
        """Kill the processes of commands, and return how many were killed. The caller holds the sandbox's freezer lock.

        Args:
            groups: Cgroup of the first process, and those of the image's entrypoint.
            spared: Returns the pids to spare, of all processes.
        """
        with contextlib.suppress(SandboxError):
            # Frozen processes can't fork, so the list is complete. The kills work without that, too.
            self._cgroup.freeze()
        try:
            running = self.all_running(groups)
            kept = spared(running)
            kept_leaves = {process.group for process in running if process.pid in kept}
            others = [leaf for leaf in self._cgroup.leaves() if leaf != groups[0] and leaf not in kept_leaves]
            victims = [process for process in running if process.pid not in kept and process.state != "Z"]
            for leaf in others:
                self._cgroup.kill(leaf)
            kill_processes(process for process in victims if process.group in kept_leaves)
        finally:
            self._cgroup.thaw()
        for leaf in others:
            self._cgroup.wait_empty(leaf=leaf)
            self._cgroup.drop_leaf(leaf)
        wait_for_ends(victims)
        return len(victims)

    # --- outputs -------------------------------------------------------------------------------------

    async def output(self, process_id: str) -> ProcessOutput:
        """Return stdout and stderr of a command. Raise `SandboxLostError` if the sandbox was removed."""
        try:
            return await asyncio.to_thread(self._outputs(process_id).content)
        except FileNotFoundError as error:
            raise SandboxLostError("the sandbox was removed during a command") from error

    async def tail(self, process_id: str, limit: int) -> str:
        """Return the last `limit` bytes of a command's stdout, as text."""
        return await asyncio.to_thread(self._outputs(process_id).tail, limit)

    async def trim(self, process_id: str) -> None:
        """Free the disk space of the middle of outputs that have grown too large."""
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(self._outputs(process_id).trim)

    async def forget(self, process_id: str) -> None:
        """Remove the outputs and exit code of a command that has ended."""
        if self._unnamed.pop(process_id, None) is None:
            await asyncio.to_thread(shutil.rmtree, self._room(process_id), ignore_errors=True)

    def _outputs(self, process_id: str) -> CommandOutputs:
        return self._unnamed.get(process_id) or NamedOutputs(self._room(process_id))

    # --- starting ------------------------------------------------------------------------------------

    async def _start(self, process: Process, fds: Sequence[int], once: Path | None) -> None:
        """Have the helper start a command. `fds`: stdout, stderr and exit code. `once`: directory of the start mark."""
        pid, started = self._init()
        own, *limits = self._cgroup.join_files(process.id)
        request: dict[str, Any] = {
            "pid": pid,
            "started": started,
            "group": str(Path(own).parent),
            # The engine's own processes join no version 1 limits; in version 2 each leaf is below the limits.
            "limits": limits if process.is_limited else [],
            "argv": list(process.argv),
            "env": {**self._env(), **process.env},
            "cwd": process.cwd,
            "user": process.user,
            "once": str(once) if once else None,
        }
        await self._helper.call("run", request, fds)

    def _code(self, status: bytes) -> int:
        """Parse an exit code. If it is missing, raise `SandboxLostError` or, while it runs, `HelperDiedError`."""
        text = status.strip()
        if text.isdigit():
            return int(text)
        self._init()
        raise HelperDiedError("a command's end was not seen: the process that waited for it died")

    def _room(self, process_id: str) -> Path:
        """Return the directory of a command's files."""
        return self._records / "exec" / process_id


def _open_waiter(room: Path) -> int | None:
    """Return a pidfd of the process that waits for a command; None if it has ended."""
    try:
        mark = json.loads((room / STARTED).read_text())
    except FileNotFoundError as error:
        raise SandboxLostError("the sandbox was removed during a command") from error
    return open_process(mark["pid"], mark["started"])


async def _wait_readable(fd: int) -> None:
    """Wait until a descriptor is readable."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def _drained(pieces: asyncio.Queue[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Remove and return all items of a queue."""
    found = []
    while not pieces.empty():
        found.append(pieces.get_nowait())
    return found


def _read_rest(fd: int) -> list[bytes]:
    """Read and return what a pipe holds now."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(fd, _PIECE):
            found.append(piece)
    return found
