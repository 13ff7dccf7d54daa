"""Opening a session: the agent's process, `initialize`, `session/new` or `session/load`, its mode, model and effort.

Everything that is said goes out under ids that a second call would choose again, so that a worker that dies in the
middle of it leaves nothing that the next one could not go on with. An agent that ends before it has a session is
started again, in files of its own.

A session is loaded in a copy of the world in which it was held: by a new process, told of the endpoint and the key of
the rollout that it now belongs to, which finds the agent's own files where it has left them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from benchflow.contracts.agent import AgentRecord
from benchflow.contracts.resuming import Rung, is_enough
from benchflow.contracts.rollout import AgentSession
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_config import McpServer
from benchflow.contracts.session import Limits
from benchflow.errors import AgentExitError, AgentTimeoutError, SessionNotLoadedError, UnsupportedFeatureError
from benchflow.planes.agent.account import Account
from benchflow.planes.agent.acp.client import Client
from benchflow.planes.agent.acp.dialogue import Dialogue
from benchflow.planes.agent.acp.mirror import Mirror
from benchflow.planes.agent.acp.process import RUN_DIRECTORY, AgentProcess
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.limits import PATIENCE, Patience
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.agent.settings import AgentSettings
from benchflow.planes.sandbox.timeouts import awake_clock

During = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]

STARTS = 3
"""How often an agent is started that ends before it has a session."""

_FIRST_WAIT = 0.5
_FAILED = "failed"
_OPENED = "opened"


@dataclass(frozen=True)
class Start:
    """What an agent is started with. pump: what holds its stdio; argv: its own start; files: below its home, by path.

    effort: as the agent's record spells it. secret_files: as files, but kept out of every snapshot.
    """

    record: AgentRecord
    settings: AgentSettings
    pump: tuple[str, ...]
    argv: tuple[str, ...]
    account: Account
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    secret_files: Mapping[str, str] = field(default_factory=dict, repr=False)
    mcp_servers: Sequence[McpServer] = ()
    effort: str | None = None


class Connection:
    """The sessions that a sandbox's agents have had. files: of all of them.

    mirrored: the sandbox mounts nothing of this host, and has journals of its own to be kept equal to these.
    """

    def __init__(
        self, sandbox: Sandbox, files: SessionFiles, *, mirrored: bool = False, patience: Patience = PATIENCE
    ) -> None:
        self._sandbox = sandbox
        self._files = files
        self._mirrored = mirrored
        self.patience = patience

    def wire(self, name: str) -> Wire:
        return Wire(self._files.of(name))

    def process(self, name: str) -> AgentProcess:
        """The process whose files have this name."""
        return AgentProcess(self._sandbox, self.wire(name), f"agent-{name}", inside=f"{RUN_DIRECTORY}/{name}")

    @asynccontextmanager
    async def reach(self, name: str) -> AsyncIterator[During]:
        """Be in contact with a process: what is yielded gives the result of work that needs it."""
        process = self.process(name)
        if not self._mirrored:
            yield process.during
            return
        async with Mirror(self._sandbox, self.wire(name), f"{RUN_DIRECTORY}/{name}") as mirror:
            yield lambda work: mirror.during(process.during(work, catch_up=mirror.catch_up))

    async def open(self, index: int, start: Start, within: float, *, load: AgentSession | None = None) -> AgentSession:
        """The rollout's session of this number, opened now if it was not. within: seconds.

        load: a session to go on with, as it was opened in the sandbox that this one is a copy of. Whoever cannot have
        it may open a new one under the same number: it gets a process of its own.

        Raises `AgentExitError`, `AgentTimeoutError`, `ACPError`, `ConfigError`, `UnsupportedFeatureError`; for `load`
        also `SessionNotLoadedError`.
        """
        if load is not None:
            _require_loadable(start, load)
        async with awake_clock() as elapsed:
            for attempt in range(STARTS):
                name = f"{self._sandbox.ref.episode}{index}.{attempt}"
                wire = self.wire(name)
                wire.make()
                if wire.notes.noted(_FAILED) and attempt + 1 < STARTS:
                    continue
                try:
                    return await self._open(name, index, start, max(1.0, within - elapsed()), load)
                except (SessionNotLoadedError, AgentTimeoutError):
                    if load is not None:
                        await self.process(name).kill()
                        wire.notes.note(_FAILED, {})
                    raise
                except AgentExitError:
                    if wire.could_not_start or attempt + 1 == STARTS:
                        raise
                    wire.notes.note(_FAILED, {})
                    await asyncio.sleep(_FIRST_WAIT * 2**attempt)
        raise AssertionError("the last start raises or returns")

    async def _open(
        self, name: str, index: int, start: Start, within: float, load: AgentSession | None
    ) -> AgentSession:
        wire, process = self.wire(name), self.process(name)
        opened = wire.notes.noted(_OPENED)
        if opened is None:
            # The protocol's types take their time, and most workers have seen them before.
            from benchflow.planes.agent.acp.opening import Opening

            await prepare_home(self._sandbox, start)
            if self._mirrored and not await process.was_started():
                # A copy of a world has the files of the sessions that were held there.
                await self._sandbox.control('rm -rf -- "$1"', process.inside)
            client = Client(self._sandbox, user=start.account.name, cwd=start.cwd)
            async with self.reach(name) as during, aclosing(client):
                await process.start(start.pump, start.argv, env=start.env, cwd=start.cwd, account=start.account)
                session = Dialogue(wire, client, self.patience)
                talk = Opening(session, start, Limits(wall=within, idle=None), load)
                opened = wire.notes.note(_OPENED, await during(talk.run()))
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


def session_rung(record: AgentRecord, session: AgentSession, least: Rung = "fresh") -> Rung:
    """The best way known to go on with a session in a copy of its world. least: a replay is tried where that is asked
    for, also of an agent of which nobody knows how it does.
    """
    told, rung = session.capabilities, record.session.rung
    if (is_enough(rung, "load") and told and not told.get("loadSession")) or (rung == "fresh" and least == "replay"):
        rung = "replay"
    # What no record was kept of is answered from none.
    return "fresh" if rung == "replay" and session.model_access == "direct" else rung


def _require_loadable(start: Start, load: AgentSession) -> None:
    record = start.record
    rung = session_rung(record, load)
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


# Files that the agent reads, made by itself: what it left in its home must not lead root anywhere else. $1: home, then
# pairs of a path below it and the variable that holds the content; `-` makes a directory. Secrets lie in memory.
_HOME = r"""umask 077; cd -- "$1" || exit 1; shift
while [ $# -gt 0 ]; do
  case $2 in
    -) mkdir -p -- "$1" ;;
    SECRET_*) mkdir -p -- "$(dirname -- "$1")"; place=$(mktemp -d /dev/shm/benchflow.XXXXXX) || exit 1
      eval "printf %s \"\$$2\"" >"$place/content"; ln -sfn "$place/content" "$1" ;;
    *) mkdir -p -- "$(dirname -- "$1")"; rm -f -- "$1"; eval "printf %s \"\$$2\"" >"$1" ;;
  esac || exit 1
  shift 2
done"""


async def prepare_home(sandbox: Sandbox, start: Start) -> None:
    """Make the directories and files that the agent is to find in its home."""
    words: list[str] = []
    env: dict[str, str] = {}
    for path in start.record.home_dirs:
        words += [path, "-"]
    for kind, files in (("FILE", start.settings.files), ("SECRET", start.secret_files)):
        for number, (path, content) in enumerate(files.items()):
            env[f"{kind}_{number}"] = content
            words += [path, f"{kind}_{number}"]
    if not words:
        return
    account = start.account
    made = await sandbox.exec(
        ["sh", "-c", _HOME, "sh", account.home, *words], env=env, user=account.name, cwd="/", timeout=60
    )
    if made.return_code != 0:
        raise AgentExitError(
            f"the files of agent {start.record.name!r} could not be written below {account.home}",
            remedy="look whether the agent's user may write there",
            log_tail=made.stderr[-2000:] or None,
        )
