"""Opening a session: the agent's process, `initialize`, `session/new` or `session/load`, its mode, model and effort.

All requests have deterministic ids, so that a worker that takes over from a dead one resends nothing and continues. An
agent that exits before it has a session is started again, with files of its own.

A session is loaded in a copy of the world in which it was held: by a new process, which gets the endpoint and the key
of the rollout that it now belongs to, and finds the agent's own files where they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

from benchflow.contracts.agent import TurnLimits
from benchflow.contracts.agent_record import AgentRecord
from benchflow.contracts.resuming import Rung, is_enough
from benchflow.contracts.rollout_records import AgentSession
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import AgentExitError, AgentTimeoutError, SessionNotLoadedError, UnsupportedFeatureError
from benchflow.planes.agent.acp.agent_process import RUN_DIRECTORY, AgentProcess
from benchflow.planes.agent.acp.agent_requests import Client
from benchflow.planes.agent.acp.agent_start import AgentStart, prepare_home
from benchflow.planes.agent.acp.dialogue import Dialogue
from benchflow.planes.agent.acp.mirror import Mirror
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.agent.turn_limits import DEFAULT_TIMEOUTS, AgentTimeouts
from benchflow.planes.sandbox.timeouts import awake_clock

RunWork = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]
"""Function that awaits a coroutine which needs the agent's process, and returns its result."""

MAX_STARTS = 3
"""Maximum number of starts of an agent that exits before it has a session."""

_FIRST_RETRY_SEC = 0.5
"""Seconds before the second start; doubled before each further one."""
_FAILED = "failed"
"""Name of the note that the start of a process has failed."""
_OPENED = "opened"
"""Name of the note with the fields of the opened session."""


class AgentConnection:
    """Opens the sessions of a sandbox's agents, and reaches their processes."""

    def __init__(
        self,
        sandbox: Sandbox,
        files: SessionFiles,
        *,
        mirrored: bool = False,
        timeouts: AgentTimeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        """Make it.

        Args:
            sandbox: Sandbox of the agents.
            files: Files on this host of all its agent processes.
            mirrored: Whether the sandbox mounts nothing of this host: then it has journals of its own, which a `Mirror`
                copies.
            timeouts: Timeouts besides those of turns.
        """
        self._sandbox = sandbox
        self._files = files
        self._mirrored = mirrored
        self.timeouts = timeouts

    def get_wire(self, name: str) -> Wire:
        """Return the files of the process with this name."""
        return Wire(self._files.join(name))

    def get_process(self, name: str) -> AgentProcess:
        """Return a handle of the process with this name."""
        return AgentProcess(self._sandbox, self.get_wire(name), f"agent-{name}", inside=f"{RUN_DIRECTORY}/{name}")

    @asynccontextmanager
    async def reach(self, name: str) -> AsyncIterator[RunWork]:
        """Yield a function that awaits work with a process, and raises if the process's sandbox is lost meanwhile."""
        process = self.get_process(name)
        if not self._mirrored:
            yield process.await_work
            return
        async with Mirror(self._sandbox, self.get_wire(name), f"{RUN_DIRECTORY}/{name}") as mirror:
            yield lambda work: mirror.await_work(process.await_work(work, catch_up=mirror.catch_up))

    async def open(
        self, index: int, start: AgentStart, within: float, *, load: AgentSession | None = None
    ) -> AgentSession:
        """Open the rollout's session number `index`, or return it if it is open.

        Args:
            index: Number of the session.
            start: Start of the agent.
            within: Seconds for all of it.
            load: Session to load, as it was opened in the sandbox that this one is a copy of; None for a new session.
                If it cannot be loaded, a new one may be opened under the same number: it gets a process of its own.

        Raises:
            AgentExitError: The agent exits before it has a session, at each start.
            AgentTimeoutError: It takes too long.
            ACPError: The agent breaks the protocol.
            ConfigError: It does not offer the model, or the like.
            UnsupportedFeatureError: It cannot reach an MCP server, or does not load sessions.
            SessionNotLoadedError: The session `load` cannot be loaded.
        """
        if load is not None:
            _require_loadable(start, load)
        async with awake_clock() as elapsed:
            for attempt in range(MAX_STARTS):
                name = f"{self._sandbox.ref.episode}{index}.{attempt}"
                wire = self.get_wire(name)
                wire.make()
                if wire.notes.read(_FAILED) and attempt + 1 < MAX_STARTS:
                    continue
                try:
                    return await self._open(name, index, start, max(1.0, within - elapsed()), load)
                except (SessionNotLoadedError, AgentTimeoutError):
                    if load is not None:
                        await self.get_process(name).kill()
                        wire.notes.write_once(_FAILED, {})
                    raise
                except AgentExitError:
                    if wire.could_not_start or attempt + 1 == MAX_STARTS:
                        raise
                    wire.notes.write_once(_FAILED, {})
                    await asyncio.sleep(_FIRST_RETRY_SEC * 2**attempt)
        raise AssertionError("the last start raises or returns")

    async def _open(
        self, name: str, index: int, start: AgentStart, within: float, load: AgentSession | None
    ) -> AgentSession:
        wire, process = self.get_wire(name), self.get_process(name)
        opened = wire.notes.read(_OPENED)
        if opened is None:
            # The protocol's types take long to import, and are not needed for a session that is open.
            from benchflow.planes.agent.acp.opening import SessionOpening

            await prepare_home(self._sandbox, start)
            if self._mirrored and not await process.was_started():
                # A copy of a world has the journals of the sessions that were held there.
                await self._sandbox.control('rm -rf -- "$1"', process.inside)
            client = Client(self._sandbox, user=start.account.name, cwd=start.cwd)
            async with self.reach(name) as run_work, aclosing(client):
                await process.start(start.pump, start.argv, env=start.env, cwd=start.cwd, account=start.account)
                session = Dialogue(wire, client, self.timeouts)
                talk = SessionOpening(session, start, TurnLimits(wall=within, idle=None), load)
                opened = wire.notes.write_once(_OPENED, await run_work(talk.run()))
        account = start.account
        return AgentSession(
            index=index,
            directory=name,
            user=account.name,
            uid=account.uid,
            gid=account.gid,
            home=account.home,
            cwd=start.cwd,
            **opened,
        )


def find_resume_mode(record: AgentRecord, session: AgentSession, least: Rung = "fresh") -> Rung:
    """Return the best resume mode that is known for a session in a copy of its world.

    Args:
        record: Registry record of the agent.
        session: The session.
        least: The minimum that the user asks for: with `replay`, it is returned also for an agent that is only known to
            do `fresh`.
    """
    told, rung = session.capabilities, record.session.rung
    if (is_enough(rung, "load") and told and not told.get("loadSession")) or (rung == "fresh" and least == "replay"):
        rung = "replay"
    # Without the gateway there is no record to replay model calls from.
    return "fresh" if rung == "replay" and session.model_access == "direct" else rung


def _require_loadable(start: AgentStart, load: AgentSession) -> None:
    """Raise `UnsupportedFeatureError` or `SessionNotLoadedError` if a session is known not to be loadable."""
    record = start.record
    rung = find_resume_mode(record, load)
    if not is_enough(rung, "load"):
        known = [hazard for hazard in record.session.hazards if "session/load" in hazard]
        raise UnsupportedFeatureError(
            f"agent {record.name!r} does not load sessions in a copy of their world"
            + (f": {'; '.join(known)}" if known else ""),
            key="min_session_rung",
            remedy=f"allow the rung {rung!r}",
        )
    if (start.account.home, start.cwd) != (load.home, load.cwd):
        held = f"the session was held in {load.cwd}, with {load.home} for a home"
        raise SessionNotLoadedError(f"{held}, and agents keep absolute paths: not in {start.cwd}")
