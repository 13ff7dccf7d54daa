"""A session with an agent behind acpx: each turn is one command, whose stdout is processed.

acpx stores its session in the agent's home, and keeps the agent itself alive between two turns, in a process that the
first turn leaves behind. Each command runs behind a stdio proxy in a directory of its own and is started at most once,
so that any worker can follow it from its first byte and derive the same lines.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

from benchflow.contracts.agent import (
    AskUser,
    Line,
    Session,
    Stop,
    StopReason,
    TurnCounts,
    TurnLimits,
    TurnRequest,
)
from benchflow.contracts.rollout_records import Permissions
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import ACPError, AgentExitError, AgentTimeoutError, UnsupportedFeatureError
from benchflow.planes.agent.account import SandboxAccount
from benchflow.planes.agent.acp.agent_process import RUN_DIRECTORY, AgentProcess
from benchflow.planes.agent.acp.dialogue import EndedTurn
from benchflow.planes.agent.acp.events import Reading
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.acpx import NO_CHOICES, Choices
from benchflow.planes.agent.acpx.acpx_stream import AcpxStream, parse_failure
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.agent.turn_limits import DEFAULT_TIMEOUTS, AgentTimeouts, LimitClock, note_stop, read_stop
from benchflow.planes.sandbox.timeouts import Attendance, awake_timeout

OPENING_TIMEOUT = 300.0
"""Seconds for a command that is no turn: the agent is started for it, and some take half a minute."""

AGENT_LOG = ".acpx-agent.log"
"""File below the agent's home with the agent's stderr, which acpx discards."""

_FILES = "/run/benchflow/acpx"
"""Directory in the sandbox for the input files of commands."""
_STOP = "stop"
"""Name of the note that says why a turn is ended."""
_PERMISSIONS: dict[Permissions, str] = {"auto": "--approve-all", "deny": "--deny-all"}
"""Flags of acpx by policy."""

# $1: directory, which root owns: the agent reads acpx's input there, and cannot change it.
_MAKE_DIRECTORY = 'mkdir -p "$1" && chmod 0711 /run/benchflow "${1%/*}" "$1"'
# $0: the log; the rest: the agent.
_LOGGED = 'exec "$@" 2>>"$0"'


class AcpxSession(Session):
    """A handle of one session.

    Args:
        sandbox: Sandbox of the agent.
        files: Files of the session on this host.
        pump: Command of the stdio proxy.
        argv: Command of acpx.
        inner: Command of the agent.
        env: Variables of acpx and the agent.
        account: Account that they run as.
        cwd: Working directory of the session.
        permissions: Policy for the agent's questions.
        choices: Model, mode and options of the session.
        offers: Client capabilities that acpx serves, as the agent's user.
        servers: MCP servers, as in `session/new`.
        inside: Directory of the session's files in the sandbox.
        name: acpx's name of the session; by default the name of its directory.
        within: Seconds for a command that is no turn.
        timeouts: Timeouts besides those of turns.

    Raises:
        UnsupportedFeatureError: The permissions wait for a user.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        files: SessionFiles,
        *,
        pump: Sequence[str],
        argv: Sequence[str],
        inner: Sequence[str],
        env: Mapping[str, str],
        account: SandboxAccount,
        cwd: str,
        permissions: Permissions = "auto",
        choices: Choices = NO_CHOICES,
        offers: Collection[Literal["fs", "terminal"]] = (),
        servers: Sequence[Mapping[str, Any]] = (),
        inside: str = RUN_DIRECTORY,
        name: str | None = None,
        within: float = OPENING_TIMEOUT,
        timeouts: AgentTimeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        """Make it."""
        if permissions not in _PERMISSIONS:
            raise UnsupportedFeatureError(
                "an agent behind acpx cannot wait for an answer to what it asks",
                key="permissions",
                remedy=f"use {' or '.join(_PERMISSIONS)}, or the agent without acpx",
            )
        self.counts: TurnCounts = Reading()
        self._sandbox = sandbox
        self._session_files = files
        self._directory_name = PurePosixPath(files.name).name
        self._pump = tuple(pump)
        self._argv = tuple(argv)
        self._env = dict(env)
        self._account = account
        self._cwd = cwd
        self._choices = choices
        self._servers = [dict(server) for server in servers]
        self._inside = inside
        self._name = name or self._directory_name
        self._within = within
        self._timeouts = timeouts
        self._files = f"{_FILES}/{self._directory_name}"
        self._log = f"{self._env.get('HOME', account.home).rstrip('/')}/{AGENT_LOG}"
        # Without an idle timeout: the process that holds the agent ends with the session.
        flags = ["--cwd", cwd, "--format", "json", "--json-strict", _PERMISSIONS[permissions], "--ttl", "0"]
        flags += [flag for flag, what in (("--no-fs", "fs"), ("--no-terminal", "terminal")) if what not in offers]
        # Always a file of the engine, since acpx would take servers from the workspace.
        flags += ["--mcp-config", f"{self._files}/mcp.json"]
        self._flags = (*flags, "--agent", shlex.join(["/bin/sh", "-c", _LOGGED, self._log, *inner]))

    async def open(self) -> str:
        """Open the session, unless it is open, and return the agent's id of it.

        Raises:
            AgentExitError: The agent exits.
            AgentTimeoutError: A command takes too long.
            ACPError: acpx or the agent reports another error.
        """
        if not await self._sandbox.was_started(self._make_key("open")):
            await self._write_file("mcp.json", {"mcpServers": self._servers})
        # acpx sends these choices again to an agent that it restarts. A turn that named the model would undo that.
        model = ("--model", self._choices.model) if self._choices.model else ()
        opened = await self._run_command("open", "sessions", "ensure", "--name", self._name, flags=model)
        if self._choices.mode:
            await self._run_command("mode", "set-mode", self._choices.mode, "--session", self._name)
        for number, (option, value) in enumerate(self._choices.options.items()):
            await self._run_command(f"option-{number}", "set", option, value, "--session", self._name)
        return str(opened.get("acpxSessionId"))

    async def prompt(self, turn: TurnRequest) -> StopReason:
        """Run a turn to its end, or resume it, and return why it ended."""
        reading = Reading()
        self.counts = reading
        ended = await self.run_turn(turn.number, turn.prompt, turn.heard, reading, turn.limits)
        return StopReason(ended.stop_reason, ended.ended_by)

    async def run_turn(
        self, number: int, prompt: str, sink: Callable[[list[Line]], None], reading: Reading, limits: TurnLimits
    ) -> EndedTurn:
        """Run a turn to its end, or resume it. At a limit acpx is asked to cancel, then all processes are killed.

        Args:
            number: Number of the turn, higher than those before.
            prompt: Text of the prompt.
            sink: Callback for the trajectory lines. It receives all of the turn's lines at every call of this method.
            reading: Object for the counts.
            limits: Time limits of the turn.

        Raises:
            ACPError: acpx or the agent reports an error.
            AgentExitError: The agent exits, or has exited since the last turn.
            AgentTimeoutError: The session could not be opened in time.
        """
        await self.open()
        name = f"turn-{number}"
        wire, process = self._open_command(name)
        started = float(wire.notes.write_once("started", {"at": time.monotonic()})["at"])
        if not await self._sandbox.was_started(self._make_key(name)):
            await self._write_file(f"{name}.json", [{"type": "text", "text": prompt}])
        await self._start_command(process, "prompt", "--session", self._name, "--file", f"{self._files}/{name}.json")
        stream = AcpxStream(reading)
        try:
            stop = await process.await_work(self._listen(number, wire, stream, sink, limits, started))
        except ACPError as error:
            error.log_tail = await self._read_log_tail(wire)
            raise
        if stop is not None and stream.result is None:
            await self.end()
            return EndedTurn("cancelled" if stop == "cancelled" else "timeout", reading, stop)
        if stream.result is None:
            failure = stream.failure or AgentExitError(f"acpx ended without a result: {wire.describe_end()}")
            failure.log_tail = await self._read_log_tail(wire)
            raise failure
        turns = (path.name.removeprefix("turn-") for path in self._session_files.own_notes.glob("turn-*"))
        if stream.began_anew and any(int(turn) < number for turn in turns):
            await self.end()
            raise AgentExitError(
                "the agent ended between two turns, and could not load its session again",
                log_tail=await self._read_log_tail(wire),
            )
        return EndedTurn(str(stream.result.get("stopReason", "end_turn")), reading, stop)

    def cancel(self, turn: int) -> None:
        """Request the end of a turn, whichever process runs it."""
        note_stop(self._make_wire(f"turn-{turn}").notes, _STOP, "cancelled")

    def on_ask_user(self, answer: AskUser) -> None:
        """Do nothing: acpx answers the agent's questions, by its flags."""

    async def was_begun(self, turn: int) -> bool:
        """Return whether a turn was prompted, by any process of the engine."""
        return await self._sandbox.was_started(self._make_key(f"turn-{turn}"))

    async def end(self) -> None:
        """Kill all processes of the session, the agent's included."""
        await end_session(self._sandbox, self._session_files)

    async def log_tail(self) -> str | None:
        """Return the end of the agent's log, else of acpx's stderr; None if both are empty."""
        return await self._read_log_tail(self._make_wire("open"))

    # --- listening -----------------------------------------------------------------------------------

    async def _listen(
        self,
        number: int,
        wire: Wire,
        stream: AcpxStream,
        sink: Callable[[list[Line]], None],
        limits: TurnLimits,
        started: float,
    ) -> Stop | None:
        """Process the output of a turn's command until it has ended, or a limit is reached and it does not stop.

        Returns:
            Why the turn is ended; None if the agent ended it.
        """
        before = wire.output_size
        offset = 0
        heard_at = time.monotonic()
        attendance = Attendance(wire.notes.get_path("attended"))
        over_at = give_up_at = None
        ended = False
        cancelling: asyncio.Task[None] | None = None
        clock = LimitClock(limits, wire.notes, _STOP)
        stop = read_stop(wire.notes, _STOP)
        last = wire.notes.read("end")
        try:
            async for heard in wire.follow(0):
                now = time.monotonic()
                if attendance.poll():
                    heard_at = now
                if heard is not None:
                    lines = stream.read_line(heard)
                    if lines:
                        sink(lines)
                    heard_at, offset = now, heard.end
                    # Not held while other sessions run: it may be a long message.
                    del heard, lines
                    if last is not None and offset >= last["to"]:
                        return stop
                    if offset <= before:
                        # Output that existed when this worker took over is processed to its end, whatever limit is
                        # reached.
                        continue
                elif ended:
                    return stop
                else:
                    # Its last output may have come after the last read: read once more.
                    ended = wire.describe_end() is not None
                    if ended:
                        continue
                if stream.is_over:
                    over_at = over_at or now
                    if now - over_at > self._timeouts.last_words:
                        # Noted, since a worker that reads the output again must stop at the same place.
                        last = wire.notes.write_once("end", {"to": offset})
                        return stop
                    continue
                stop = stop or read_stop(wire.notes, _STOP)
                stop = stop or await clock.check(started, attendance, heard_at)
                if stop is not None and cancelling is None:
                    give_up_at = now + self._timeouts.cancel
                    cancelling = asyncio.ensure_future(self._cancel(number))
                if give_up_at is not None and now > give_up_at:
                    return stop
        finally:
            if cancelling is not None:
                cancelling.cancel()
                await asyncio.gather(cancelling, return_exceptions=True)
        raise AssertionError("a command's output has no end")

    async def _cancel(self, number: int) -> None:
        """Have acpx ask the agent to end a turn."""
        _, process = self._open_command(f"cancel-{number}")
        await self._start_command(process, "cancel", "--session", self._name)

    async def _read_log_tail(self, wire: Wire) -> str | None:
        """Return the end of the agent's log, or else of a command's stderr."""
        # Read as the agent's user: the file is the agent's, and may be a link to anything.
        said = await self._sandbox.exec(
            ["tail", "-c", "4000", "--", self._log], user=self._account.uid, cwd="/", timeout=30
        )
        return (said.stdout.strip() if said.return_code == 0 else "") or wire.read_log_tail()

    # --- commands ------------------------------------------------------------------------------------

    async def _run_command(self, name: str, *words: str, flags: Sequence[str] = ()) -> dict[str, Any]:
        """Run a command of acpx to its end, unless it was run, and return the JSON object that it prints.

        Args:
            name: Name of the command in this session, part of its idempotency key.
            words: Arguments of acpx.
            flags: Flags before them.

        Raises:
            AgentTimeoutError: It takes too long.
            ACPError: It reports an error; `AgentExitError` if the agent has ended.
        """
        wire, process = self._open_command(name)
        await self._start_command(process, *flags, *words)
        try:
            async with awake_timeout(self._within):
                said = await process.await_work(_read_document(wire))
        except TimeoutError as error:
            raise AgentTimeoutError(
                f"acpx {' '.join(words[:2])} took longer than {self._within:g} s",
                log_tail=await self._read_log_tail(wire),
            ) from error
        if "error" in said or not said:
            failure = parse_failure(
                said.get("error") or {"message": wire.describe_end()}, f"acpx {' '.join(words[:2])}"
            )
            failure.log_tail = await self._read_log_tail(wire)
            raise failure
        return said

    async def _start_command(self, process: AgentProcess, *words: str) -> None:
        argv = (*self._argv, *self._flags, *words)
        await process.start(self._pump, argv, env=self._env, cwd=self._cwd, account=self._account)

    async def _write_file(self, name: str, content: Any) -> None:
        """Write a file that the agent's user may read, but not change."""
        made = await self._sandbox.control(_MAKE_DIRECTORY, self._files)
        if made.return_code != 0:
            raise ACPError("there is no place for what acpx is to be told", log_tail=made.stderr or None)
        await self._sandbox.write_file(f"{self._files}/{name}", json.dumps(content), mode=0o644)

    def _open_command(self, name: str) -> tuple[Wire, AgentProcess]:
        """Return files and process of the command with a name."""
        wire = self._make_wire(name)
        return wire, AgentProcess(self._sandbox, wire, self._make_key(name), inside=f"{self._inside}/{name}")

    def _make_wire(self, name: str) -> Wire:
        wire = Wire(self._session_files.join(name))
        wire.make()
        return wire

    def _make_key(self, name: str) -> str:
        return _make_key(self._session_files, name)


def _make_key(files: SessionFiles, name: str) -> str:
    """Return the idempotency key of a session's command."""
    return f"acpx-{PurePosixPath(files.name).name}-{name}"


async def end_session(sandbox: Sandbox, files: SessionFiles) -> None:
    """Kill all processes of a session, the agent's included. files: of the session."""
    notes = files.own_notes
    for path in sorted(notes.iterdir()) if notes.is_dir() else ():
        if path.is_dir():
            await sandbox.kill_once(_make_key(files, path.name))


async def _read_document(wire: Wire) -> dict[str, Any]:
    """Return the last JSON object that a command has printed, once it has ended; empty if there is none."""
    found: dict[str, Any] = {}
    ended = False
    async for heard in wire.follow(0):
        if heard is not None:
            found = heard.message or found
        elif ended:
            return found
        else:
            ended = wire.describe_end() is not None
    raise AssertionError("a command's output has no end")
