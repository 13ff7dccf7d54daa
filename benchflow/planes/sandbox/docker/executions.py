"""Commands: each runs once, its output in files of the container, its end known exactly.

Output goes to files rather than to the attached stream, so that a command may leave a server behind (whose
output would otherwise hold the stream open), and so that any process can read the result after a crash. The
stream, which only a small wrapper holds, tells without polling when the command ends.

Exactly once rests on three facts: an execution that the daemon has created starts at most once, however often
it is asked to; its id is recorded on the host before it is started; a lock per key lets one process at a time
do that. What the daemon says of the exit status goes before the file that the wrapper leaves, which counts
only when the daemon has forgotten the execution, or has missed its end: it does both when it is started again, the
second also when its containerd is.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import shlex
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow.contracts.sandbox import ExecChunk, SandboxExecResult
from benchflow.errors import DaemonUnavailableError, SandboxError, SandboxLostError
from benchflow.planes.sandbox.docker.endings import BEGUN, NOTICE_SEC, STATUS_WIDTH, Endings
from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.launch import ROOM
from benchflow.planes.sandbox.docker.output import Output
from benchflow.planes.sandbox.docker.processes import MARKER, Processes
from benchflow.planes.sandbox.docker.records import entering
from benchflow.planes.sandbox.docker.shell import MARK_AGENT, RootShell
from benchflow.planes.sandbox.docker.stream import STDOUT, Stream
from benchflow.planes.sandbox.docker.translation import FULL, NotFound, passing_error
from benchflow.planes.sandbox.outcome import NOT_STARTED, TIMED_OUT, WATCH_EVERY
from benchflow.planes.sandbox.records import file_lock, write_record
from benchflow.planes.sandbox.timeouts import Attendance, AwakeDeadline, awake_timeout

KILL_PATIENCE = 60.0
"""Seconds for a killed command to be gone: a process that waits for the disk does so first."""

# $1: directory; the rest: the command. The wrapper's output stays the daemon's stream and carries nothing, not even
# the shell's remark that its child was killed: what arrives there is the daemon's reason not to start.
_WRAPPER = (
    'exec 2>/dev/null; {mark}d=$1; shift; printf "%-{width}s\\n" {begun} 1<>"$d/exit"; '
    '(exec "$@") </dev/null >>"$d/out" 2>>"$d/err"; c=$?; printf "%-{width}s\\n" $c 1<>"$d/exit"; exit $c'
)
_STREAMED = f'{MARK_AGENT}exec "$@"'


@dataclass(frozen=True)
class Command:
    """What to run, as which user, where. user: a name or id, root when None. world: what it starts is the world's."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    user: str
    world: bool = False


class Executions:
    """The commands of one container."""

    def __init__(self, engine: Engine, shell: RootShell, processes: Processes, container: str, records: Path) -> None:
        self._engine = engine
        self._records = records
        self._shell = shell
        self._processes = processes
        self._container = container
        self._output = Output(shell)
        self._endings = Endings(engine, shell, processes, container)
        self._background: set[asyncio.Task[None]] = set()
        # Marks of commands that `run` could not see to their end: their container may outlive the daemon. Whoever tries
        # again is not to find them at work.
        self._abandoned: set[str] = set()

    async def run(self, command: Command, timeout: float | None) -> SandboxExecResult:
        """Run to the end. Cancelling kills what was started."""
        for abandoned in tuple(self._abandoned):
            await self._processes.kill_marked(abandoned)
            self._abandoned.discard(abandoned)
        nonce = secrets.token_hex(8)
        try:
            return await self._run(command, nonce, timeout)
        except DaemonUnavailableError:
            self._abandoned.add(nonce)
            raise

    async def _run(self, command: Command, nonce: str, timeout: float | None) -> SandboxExecResult:
        room = f"{ROOM}/exec/{nonce}"
        await self._make_room(room, command.user)
        exec_id = await self._create(command, _wrapped(command, room), nonce)
        record = {"exec_id": exec_id, "nonce": nonce, "user": command.user}
        # A start under way cannot be called back, so ending it means to see it through first.
        starting = asyncio.ensure_future(self._open(exec_id))
        try:
            async with awake_timeout(timeout):
                said = await self._until_end(await asyncio.shield(starting), record, room)
                if (passing := passing_error(said)) is not None:
                    raise passing
                code = await self._endings.exit_code(record, room)
        except TimeoutError:
            ended = await self._endings.ended_unseen(record, room) if starting.done() else None
            if ended is not None:
                return await self._output.collect(room, ended, remove=True)
            await self._end(exec_id, nonce, starting)
            return await self._output.collect(room, TIMED_OUT, timed_out=True, remove=True)
        except asyncio.CancelledError:
            self._later(self._end_cancelled(exec_id, nonce, starting))
            raise
        if said:
            return SandboxExecResult(return_code=NOT_STARTED, stderr=said)
        return await self._output.collect(room, code, remove=True)

    async def run_once(self, key: str, command: Command, timeout: float | None) -> SandboxExecResult:
        """Run under a key, or attach to what runs or ran under it. Cancelling leaves it running."""
        file = self._record_of(key)
        room = f"{ROOM}/exec/{file.stem}"
        async with file_lock(file.with_suffix(".lock")):
            record, stream = await self._started(file, room, command)
        if "return_code" not in record:
            try:
                async with awake_timeout(timeout, Attendance(_attended(file), record["started_at"])):
                    record = self._settled(file, record | await self._end_of(file, record, stream, room))
            except TimeoutError:
                code = await self._endings.ended_unseen(record, room)
                # Written before the kill: whoever sees the end of the execution finds here why it ended.
                end = {"timed_out": True, "return_code": TIMED_OUT} if code is None else {"return_code": code}
                record = self._settled(file, record | end)
                await self._end(record["exec_id"], record["nonce"])
        if "message" in record:
            return SandboxExecResult(return_code=NOT_STARTED, stderr=record["message"])
        return await self._output.collect(room, record["return_code"], timed_out=record.get("timed_out", False))

    async def begin(self, key: str, command: Command) -> None:
        """Start under a key unless it was, and return without waiting for the end."""
        file = self._record_of(key)
        async with file_lock(file.with_suffix(".lock")):
            _, stream = await self._started(file, f"{ROOM}/exec/{file.stem}", command)
        if stream is not None:
            stream.close()

    async def look(self, key: str, limit: int) -> tuple[bool, int | None, str]:
        """Of what runs or ran under a key: whether it runs, its exit status, the end of its output (bytes)."""
        file = self._record_of(key)
        if not file.exists():
            return False, None, ""
        room = f"{ROOM}/exec/{file.stem}"
        async with file_lock(file.with_suffix(".lock")):
            record = json.loads(file.read_text())
            code, began = record.get("return_code"), True
            if code is None:
                code, began = await self._endings.state(record, room)
                if code is not None:
                    self._settled(file, record | {"return_code": code})
        await self._output.trim(room)
        return began and code is None, code, await self._output.tail(room, limit)

    async def was_started(self, key: str) -> bool:
        """Whether the execution of a key ever began."""
        file = self._record_of(key)
        if not file.exists():
            return False
        async with file_lock(file.with_suffix(".lock")):
            record = json.loads(file.read_text())
            if "return_code" in record:
                return True
            return (await self._endings.state(record, f"{ROOM}/exec/{file.stem}"))[1]

    def nonce_of(self, key: str) -> str | None:
        """What marks the processes of a key's execution; None when there is none."""
        file = self._record_of(key)
        return str(json.loads(file.read_text())["nonce"]) if file.exists() else None

    async def kill_once(self, key: str) -> None:
        """Kill the execution of a key with all it started. One that never was, or ended, is success."""
        file = self._record_of(key)
        if not file.exists():
            return
        async with file_lock(file.with_suffix(".lock")):
            record = json.loads(file.read_text())
        await self._end(record["exec_id"], record["nonce"])

    async def stream(self, command: Command) -> AsyncIterator[ExecChunk]:
        """Run and yield output as it comes. Leaving the iteration early kills what was started."""
        nonce = secrets.token_hex(8)
        exec_id = await self._create(command, ["/bin/sh", "-c", _STREAMED, "benchflow-exec"], nonce)
        stream = await self._open(exec_id)
        finished = False
        try:
            while (piece := await stream.read()) is not None:
                yield ExecChunk(stream="stdout" if piece[0] == STDOUT else "stderr", data=piece[1])
            finished = True
        finally:
            stream.close()
            if not finished:
                await asyncio.shield(self._later(self._end(exec_id, nonce)))
        record = {"exec_id": exec_id, "nonce": nonce, "user": command.user}
        yield ExecChunk(stream="exit", return_code=await self._endings.exit_code(record))

    async def settle(self) -> None:
        """Wait for the kills that cancellations left to do."""
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    # --- starting ------------------------------------------------------------------------------------

    async def _started(self, file: Path, room: str, command: Command) -> tuple[dict[str, Any], Stream | None]:
        """The record of a key, its execution started; the stream if it was started here. The lock is held."""
        if file.exists():
            record = dict(json.loads(file.read_text()))
            if "return_code" in record:
                return record, None
            code, began = await self._endings.state(record, room)
            if code is not None:
                return self._settled(file, record | {"return_code": code}), None
            if began:
                return record, None
            # A process died between recording and starting: time counts from now.
            record["started_at"] = time.monotonic()
            _attended(file).unlink(missing_ok=True)
            if record.pop("refused", False) or not await self._endings.is_known(record["exec_id"]):
                # Such an execution can't be started any more, and was not.
                record["exec_id"] = await self._create(command, _wrapped(command, room), record["nonce"])
        else:
            await self._make_room(room, command.user)
            nonce = secrets.token_hex(8)
            exec_id = await self._create(command, _wrapped(command, room), nonce)
            record = {"exec_id": exec_id, "nonce": nonce, "user": command.user, "started_at": time.monotonic()}
        write_record(file, record)
        return record, await self._open(record["exec_id"])

    async def _make_room(self, room: str, user: str) -> None:
        """A directory with output files that the command's user may write, and nothing else there."""
        give = "" if user == "0" else f" && chown -- {shlex.quote(user)} out err exit"
        blank = " " * STATUS_WIDTH
        # Not every shell tells that it could not write.
        answer = await self._shell.run(
            f"mkdir -p {room} && chmod 0711 {ROOM} {ROOM}/exec {room} && cd {room} && : >>out && : >>err || exit\n"
            f"echo '{blank}' >exit; [ \"$(cat exit)\" = '{blank}' ] || {{ echo '{FULL[0]}' >&2; exit 1; }}\n"
            f"chmod 0600 out err exit{give}"
        )
        if answer.code:
            if (passing := passing_error(answer.complaint)) is not None:
                raise passing
            raise SandboxError(
                f"the user {user!r} cannot run commands: {answer.complaint}",
                key="user",
                remedy="name a user that exists in the image, or add it in the Dockerfile",
            )

    async def _create(self, command: Command, before: list[str], nonce: str) -> str:
        """Make an execution. before: what the command's own words are put behind."""
        async with entering(self._container):
            made = await self._engine.about(
                self._container,
                lambda client: client.exec_create(
                    self._container,
                    [*before, *command.argv],
                    user=command.user,
                    environment=command.env | {MARKER: nonce},
                    workdir=command.cwd,
                ),
            )
        return str(made["Id"])

    async def _open(self, exec_id: str) -> Stream:
        async with entering(self._container):
            return await self._engine.open_exec(self._container, exec_id)

    # --- waiting -------------------------------------------------------------------------------------

    async def _end_of(self, file: Path, record: dict[str, Any], stream: Stream | None, room: str) -> dict[str, Any]:
        """How an execution ended, as fields of its record."""
        if stream is not None:
            said = await self._until_end(stream, record, room)
            if not said:
                return {"return_code": await self._endings.exit_code(record, room)}
            if (passing := passing_error(said)) is not None:
                # What the daemon tells later of its exit status is not the command's.
                self._settled(file, record | {"refused": True})
                raise passing
            # Another process asked to start it in the same moment and won.
            if "already run" not in said:
                return {"return_code": NOT_STARTED, "message": said}
        pause, trimmed = 0.05, time.monotonic()
        while True:
            code, _ = await self._endings.state(record, room)
            if code is not None:
                return {"return_code": code}
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 1.0)
            if time.monotonic() - trimmed > WATCH_EVERY:
                await self._output.trim(room)
                trimmed = time.monotonic()
                if (code := await self._endings.missed(record, room)) is not None:
                    return {"return_code": code}

    async def _until_end(self, stream: Stream, record: dict[str, Any], room: str) -> str:
        """Wait for the end of the stream; what the daemon said on it, which is why nothing started."""
        reading = asyncio.ensure_future(stream.read_all(64 * 1024))
        try:
            while not reading.done():
                await asyncio.wait([reading], timeout=WATCH_EVERY)
                if not reading.done():
                    await self._output.trim(room)
                    if await self._endings.missed(record, room) is not None:
                        return ""
            return reading.result().decode(errors="replace").strip()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            stream.close()

    def _settled(self, file: Path, record: dict[str, Any]) -> dict[str, Any]:
        """The record of an ended execution: that of whoever saw the end first."""
        if not file.exists():
            raise SandboxLostError("the sandbox was removed during a command")
        first: dict[str, Any] = json.loads(file.read_text())
        if "return_code" in first:
            return first
        write_record(file, record)
        return record

    async def _end(self, exec_id: str, nonce: str, starting: asyncio.Future[Stream] | None = None) -> None:
        """Kill an execution with all it started, also one that is just coming up."""
        if starting is not None:
            (await starting).close()
        began, giving_up = time.monotonic(), AwakeDeadline(KILL_PATIENCE)
        while True:
            await self._processes.kill_marked(nonce)
            try:
                state = await self._engine.call(lambda client: client.exec_inspect(exec_id))
            except NotFound:
                return
            if not state["Running"] and (state["ExitCode"] is not None or starting is None):
                return
            if state["Pid"] and time.monotonic() - began > NOTICE_SEC:
                # None of its processes is left, whatever the daemon has missed.
                return
            if giving_up.is_over():
                raise SandboxError("a command could not be killed")
            await asyncio.sleep(0.02)

    async def _end_cancelled(self, exec_id: str, nonce: str, starting: asyncio.Future[Stream]) -> None:
        try:
            await self._end(exec_id, nonce, starting)
        except DaemonUnavailableError:
            self._abandoned.add(nonce)
            raise

    # --- places --------------------------------------------------------------------------------------

    def _record_of(self, key: str) -> Path:
        return self._records / f"{record_name(key)}.json"

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def record_name(key: str) -> str:
    """What the record of a key is called."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", key)[-60:]
    return f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _attended(record: Path) -> Path:
    """Return the file that records for how long a worker attends to the command of a record."""
    return record.with_suffix(".attended")


def _wrapped(command: Command, room: str) -> list[str]:
    wrapper = _WRAPPER.format(mark="" if command.world else MARK_AGENT, begun=BEGUN, width=STATUS_WIDTH)
    return ["/bin/sh", "-c", wrapper, "benchflow-exec", room]
