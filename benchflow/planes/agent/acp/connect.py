"""Opening a session: the agent's process, `initialize`, `session/new`, its mode, model and effort.

Everything that is said goes out under ids that a second call would choose again, so that a worker that dies in the
middle of it leaves nothing that the next one could not go on with. An agent that ends before it has a session is
started again, in files of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from acp.schema import (
    AgentCapabilities,
    ClientCapabilities,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    EnvVariable,
    FileSystemCapabilities,
    HttpHeader,
    HttpMcpServer,
    Implementation,
    InitializeRequest,
    InitializeResponse,
    McpServerStdio,
    NewSessionResponse,
    SseMcpServer,
)
from pydantic import BaseModel, ValidationError

from benchflow import __version__
from benchflow.contracts.agent import AgentRecord, Choice, texts
from benchflow.contracts.rollout import AgentSession
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import McpServer
from benchflow.errors import ACPError, AgentExitError, ConfigError, UnsupportedFeatureError
from benchflow.planes.agent.acp.client import Client
from benchflow.planes.agent.acp.mirror import Mirror
from benchflow.planes.agent.acp.process import RUN_DIRECTORY, Account, AgentProcess
from benchflow.planes.agent.acp.session import Limits, Session
from benchflow.planes.agent.acp.wire import Message, Wire
from benchflow.planes.agent.settings import AgentSettings

M = TypeVar("M", bound=BaseModel)
During = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]

STARTS = 3
"""How often an agent is started that ends before it has a session."""

_FIRST_WAIT = 0.5
_FAILED = "failed"
_OPENED = "opened"
_AUTH_REQUIRED = "(code -32000)"


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
    """The sessions that a sandbox's agents have had, in a directory of this host that the sandbox has, too.

    mirrored: it has one of its own, which is to be kept equal to this one.
    """

    def __init__(self, sandbox: Sandbox, directory: Path, *, mirrored: bool = False) -> None:
        self._sandbox = sandbox
        self._directory = directory
        self._mirrored = mirrored

    def wire(self, name: str) -> Wire:
        return Wire(self._directory / name)

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

    async def open(self, index: int, start: Start, within: float) -> AgentSession:
        """The rollout's session of this number, opened now if it was not. within: seconds.

        Raises `AgentExitError`, `AgentTimeoutError`, `ACPError`, `ConfigError`, `UnsupportedFeatureError`.
        """
        deadline = time.monotonic() + within
        for attempt in range(STARTS):
            name = f"{index}.{attempt}"
            wire = self.wire(name)
            wire.make()
            if wire.noted(_FAILED) and attempt + 1 < STARTS:
                continue
            try:
                return await self._open(name, index, start, max(1.0, deadline - time.monotonic()))
            except AgentExitError:
                if wire.could_not_start or attempt + 1 == STARTS:
                    raise
                wire.note(_FAILED, {})
                await asyncio.sleep(_FIRST_WAIT * 2**attempt)
        raise AssertionError("the last start raises or returns")

    async def _open(self, name: str, index: int, start: Start, within: float) -> AgentSession:
        wire, process = self.wire(name), self.process(name)
        opened = wire.noted(_OPENED)
        if opened is None:
            await prepare_home(self._sandbox, start)
            client = Client(self._sandbox, user=start.account.name, cwd=start.cwd)
            async with self.reach(name) as during, aclosing(client):
                await process.start(start.pump, start.argv, env=start.env, cwd=start.cwd, account=start.account)
                talk = _Opening(Session(wire, client), start, Limits(wall=within, idle=None))
                opened = wire.note(_OPENED, await during(talk.run()))
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


class _Opening:
    """What is said until there is a session."""

    def __init__(self, session: Session, start: Start, limits: Limits) -> None:
        self._session = session
        self._start = start
        self._limits = limits

    async def run(self) -> dict[str, Any]:
        """What of the session is worth keeping, as fields of `AgentSession`."""
        said = _validated(InitializeResponse, await self._call("initialize", _initialize(self._start.record)))
        if said.protocol_version != self._start.record.session.protocol_version:
            raise ACPError(
                f"the agent speaks version {said.protocol_version} of the protocol, "
                f"not {self._start.record.session.protocol_version}"
            )
        capabilities = said.agent_capabilities or AgentCapabilities()
        for server in self._start.mcp_servers:
            _require_reached(server, capabilities, self._start.record.name)
        servers = [acp_server(server) for server in self._start.mcp_servers]
        answer = await self._call("session/new", {"cwd": self._start.cwd, "mcpServers": servers})
        new = _validated(NewSessionResponse, answer)
        await self._choose(new.session_id, answer)
        return {
            "id": new.session_id,
            "agent": said.agent_info.name if said.agent_info else None,
            "version": said.agent_info.version if said.agent_info else None,
            "capabilities": _plain(capabilities),
        }

    async def _call(self, method: str, params: Message, request: str | None = None) -> Message:
        try:
            return await self._session.call(request or method.replace("/", "-"), method, params, self._limits)
        except ACPError as error:
            if _AUTH_REQUIRED in error.message and error.remedy is None:
                error.remedy = f"give it what it logs in with: bench agent show {self._start.record.name}"
            raise

    async def _choose(self, session: str, new: Message) -> None:
        """Its mode, model and effort, where they are a matter of the session's."""
        record = self._start.record
        if record.session.mode is not None:
            await self._set_mode(session, record.session.mode, "mode")
        if self._start.settings.model is not None and record.model is not None:
            await self._set(session, new, "model", record.model, self._start.settings.model)
        if self._start.effort is not None and record.effort is not None:
            await self._set(session, new, "effort", record.effort, self._start.effort)

    async def _set(self, session: str, new: Message, what: str, choice: Choice, value: str) -> None:
        value = (choice.value or "{model}").replace("{model}", value).replace("{effort}", value)
        if choice.by == "mode":
            await self._set_mode(session, value, what)
        elif choice.by == "set_model":
            await self._call("session/set_model", {"sessionId": session, "modelId": value}, what)
        elif choice.by == "config_option":
            offered = _offered(new, str(choice.option))
            if value not in offered:
                self._require_told(what, value, offered)
                return
            params = {"sessionId": session, "configId": choice.option, "value": value}
            await self._call("session/set_config_option", params, what)

    async def _set_mode(self, session: str, mode: str, request: str) -> None:
        await self._call("session/set_mode", {"sessionId": session, "modeId": mode}, request)

    def _require_told(self, what: str, value: str, offered: Sequence[str]) -> None:
        """An agent that offers only what it knows may have been told of another model when it was started."""
        record = self._start.record
        told = any(
            f"{{{what}}}" in text
            for endpoint in record.endpoints
            for place in (endpoint.env, endpoint.argv, [file.content for file in endpoint.files])
            for text in texts(place)
        )
        if not told:
            raise ConfigError(
                f"agent {record.name!r} does not offer the {what} {value!r}",
                key=what,
                remedy=f"use one of: {', '.join(offered)}" if offered else "leave it away",
            )


def _initialize(record: AgentRecord) -> Message:
    needs = record.session.client
    request = InitializeRequest(
        protocol_version=record.session.protocol_version,
        client_capabilities=ClientCapabilities(
            fs=FileSystemCapabilities(read_text_file="fs" in needs, write_text_file="fs" in needs),
            terminal="terminal" in needs,
            elicitation=ElicitationCapabilities(form=ElicitationFormCapabilities()),
        ),
        client_info=Implementation(name="benchflow", title="BenchFlow", version=__version__),
    )
    return _plain(request)


def _require_reached(server: McpServer, capabilities: AgentCapabilities, agent: str) -> None:
    """Raise `UnsupportedFeatureError` for an MCP server that the agent cannot talk to."""
    can = capabilities.mcp_capabilities
    reached = {"stdio": True, "streamable-http": bool(can and can.http), "sse": bool(can and can.sse)}
    if not reached[server.transport]:
        raise UnsupportedFeatureError(
            f"agent {agent!r} does not reach MCP servers by {server.transport}",
            key=f"mcp_servers.{server.name}.transport",
            remedy="offer the server by another transport, or use another agent",
        )


def acp_server(server: McpServer) -> Message:
    """A task's MCP server as `session/new` takes it."""
    if server.transport == "stdio":
        env = [EnvVariable(name=name, value=value) for name, value in server.env.items()]
        return _plain(McpServerStdio(name=server.name, command=server.command or "", args=server.args, env=env))
    headers = [HttpHeader(name=name, value=value) for name, value in server.headers.items()]
    if server.transport == "streamable-http":
        return _plain(HttpMcpServer(type="http", name=server.name, url=server.url or "", headers=headers))
    return _plain(SseMcpServer(type="sse", name=server.name, url=server.url or "", headers=headers))


def _offered(new: Message, option: str) -> list[str]:
    """The values of a configuration option, groups of them included."""
    values: list[str] = []
    for row in new.get("configOptions") or []:
        if isinstance(row, dict) and row.get("id") == option:
            for choice in row.get("options") or []:
                inner = choice.get("options") if isinstance(choice, dict) else None
                values += [str(one.get("value")) for one in (inner or [choice]) if isinstance(one, dict)]
    return values


def _plain(value: BaseModel) -> Message:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def _validated(kind: type[M], answer: Message) -> M:
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        raise ACPError(
            f"the agent's answer is no {kind.__name__}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from error
