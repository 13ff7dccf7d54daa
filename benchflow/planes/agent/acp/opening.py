"""The requests that open a session: `initialize`, `session/new` or `session/load`, its mode, model and effort.

An agent that loads a session replays its history, unless it can resume it. The history is on record where it happened:
it is consumed and belongs to no turn, whichever worker reads the journal and however often.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    LoadSessionResponse,
    McpServerStdio,
    NewSessionResponse,
    SseMcpServer,
)
from pydantic import BaseModel, ValidationError

from benchflow import __version__
from benchflow.contracts.agent import TurnLimits
from benchflow.contracts.agent_record import AgentRecord, ChoiceChannel, texts
from benchflow.contracts.rollout_records import AgentSession
from benchflow.contracts.sandbox_config import McpServer
from benchflow.errors import ACPError, ConfigError, SessionNotLoadedError, UnsupportedFeatureError
from benchflow.planes.agent.acp.agent_start import AgentStart
from benchflow.planes.agent.acp.dialogue import Dialogue
from benchflow.planes.agent.notes import Message

M = TypeVar("M", bound=BaseModel)

_AUTH_REQUIRED = "(code -32000)"
"""Error code of an agent that is not logged in, as `Dialogue` has it in its message."""
_REMEDY = "go on from the record of its calls, or with a new session"
"""Remedy for a session that cannot be loaded: a lower resume mode."""

_MAX_NAME, _MAX_CAPABILITIES = 200, 10_000
"""Maximum characters of the agent's name and version, and of its capabilities: workflows carry them."""


class SessionOpening:
    """Opens one session over a dialogue."""

    def __init__(
        self, session: Dialogue, start: AgentStart, limits: TurnLimits, load: AgentSession | None = None
    ) -> None:
        """Make it.

        Args:
            session: Dialogue with the agent.
            start: Start of the agent.
            limits: Time limits of each request.
            load: Session to load; None for a new one.
        """
        self._session = session
        self._start = start
        self._limits = limits
        self._load = load

    async def run(self) -> dict[str, Any]:
        """Open the session, and return its id, the agent's name, version and capabilities as fields of `AgentSession`.

        Raises:
            ACPError: The agent speaks another version of the protocol, or refuses a request.
            ConfigError: It does not offer the model or effort.
            UnsupportedFeatureError: It cannot reach an MCP server.
            SessionNotLoadedError: The session cannot be loaded.
        """
        said = _validate(InitializeResponse, await self._call("initialize", _initialize(self._start.record)))
        if said.protocol_version != self._start.record.session.protocol_version:
            raise ACPError(
                f"the agent speaks version {said.protocol_version} of the protocol, "
                f"not {self._start.record.session.protocol_version}"
            )
        capabilities = said.agent_capabilities or AgentCapabilities()
        for server in self._start.mcp_servers:
            _require_reachable(server, capabilities, self._start.record.name)
        servers = [format_server(server) for server in self._start.mcp_servers]
        asked = {"cwd": self._start.cwd, "mcpServers": servers}
        if self._load is None:
            answer = await self._call("session/new", asked)
            session = _validate(NewSessionResponse, answer).session_id
        else:
            session = self._load.id
            answer = await self._load_session({"sessionId": session, **asked}, capabilities)
        await self._choose(session, answer)
        told = _dump(capabilities)
        return {
            "id": session,
            "agent": said.agent_info.name[:_MAX_NAME] if said.agent_info else None,
            "version": said.agent_info.version[:_MAX_NAME] if said.agent_info else None,
            "capabilities": told if len(str(told)) <= _MAX_CAPABILITIES else {},
        }

    async def _load_session(self, asked: Message, capabilities: AgentCapabilities) -> Message:
        """Have the agent load or resume the session, and return its answer. Raise `SessionNotLoadedError`."""
        record, can = self._start.record, capabilities.session_capabilities
        if record.session.resume and can is not None and can.resume is not None:
            method, quiet = "session/resume", 0.0
        elif capabilities.load_session:
            # The end of the history may come after the answer.
            method, quiet = "session/load", self._session.timeouts.silence
        else:
            raise SessionNotLoadedError(f"agent {record.name!r} says that it loads no sessions", remedy=_REMEDY)
        try:
            answer = await self._call(method, asked, quiet=quiet)
        except ACPError as error:
            raise SessionNotLoadedError(
                error.message, remedy=error.remedy or _REMEDY, log_tail=error.log_tail
            ) from error
        _validate(LoadSessionResponse, answer)
        return answer

    async def _call(self, method: str, params: Message, request: str | None = None, *, quiet: float = 0.0) -> Message:
        try:
            name = request or method.replace("/", "-")
            return await self._session.call(name, method, params, self._limits, quiet=quiet)
        except ACPError as error:
            if _AUTH_REQUIRED in error.message and error.remedy is None:
                error.remedy = f"give it what it logs in with: bench agent show {self._start.record.name}"
            raise

    async def _choose(self, session: str, new: Message) -> None:
        """Set the session's mode, model and effort, where they are set by requests. new: the answer that opened it."""
        record = self._start.record
        if record.session.mode is not None:
            await self._set_mode(session, record.session.mode, "mode")
        if self._start.settings.model is not None and record.model is not None:
            await self._set(session, new, "model", record.model, self._start.settings.model)
        if self._start.effort is not None and record.effort is not None:
            await self._set(session, new, "effort", record.effort, self._start.effort)

    async def _set(self, session: str, new: Message, what: str, choice: ChoiceChannel, value: str) -> None:
        """Set the model or effort (`what`) in the way of its record."""
        value = (choice.value or "{model}").replace("{model}", value).replace("{effort}", value)
        if choice.by == "mode":
            await self._set_mode(session, value, what)
        elif choice.by == "set_model":
            await self._call("session/set_model", {"sessionId": session, "modelId": value}, what)
        elif choice.by == "config_option":
            offered = _list_offered(new, str(choice.option))
            if value not in offered:
                self._require_set_at_start(what, value, offered)
                return
            params = {"sessionId": session, "configId": choice.option, "value": value}
            await self._call("session/set_config_option", params, what)

    async def _set_mode(self, session: str, mode: str, request: str) -> None:
        await self._call("session/set_mode", {"sessionId": session, "modeId": mode}, request)

    def _require_set_at_start(self, what: str, value: str, offered: Sequence[str]) -> None:
        """Raise `ConfigError` for a value that the session does not offer, unless the agent got it at its start."""
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
    return _dump(request)


def _require_reachable(server: McpServer, capabilities: AgentCapabilities, agent: str) -> None:
    """Raise `UnsupportedFeatureError` if the agent cannot connect to an MCP server."""
    can = capabilities.mcp_capabilities
    reached = {"stdio": True, "streamable-http": bool(can and can.http), "sse": bool(can and can.sse)}
    if not reached[server.transport]:
        raise UnsupportedFeatureError(
            f"agent {agent!r} does not reach MCP servers by {server.transport}",
            key=f"mcp_servers.{server.name}.transport",
            remedy="offer the server by another transport, or use another agent",
        )


def format_server(server: McpServer) -> Message:
    """Return a task's MCP server in the form of `session/new`."""
    if server.transport == "stdio":
        env = [EnvVariable(name=name, value=value) for name, value in server.env.items()]
        return _dump(McpServerStdio(name=server.name, command=server.command or "", args=server.args, env=env))
    headers = [HttpHeader(name=name, value=value) for name, value in server.headers.items()]
    if server.transport == "streamable-http":
        return _dump(HttpMcpServer(type="http", name=server.name, url=server.url or "", headers=headers))
    return _dump(SseMcpServer(type="sse", name=server.name, url=server.url or "", headers=headers))


def _list_offered(new: Message, option: str) -> list[str]:
    """Return the values of a configuration option, those in groups included."""
    values: list[str] = []
    for row in new.get("configOptions") or []:
        if isinstance(row, dict) and row.get("id") == option:
            for choice in row.get("options") or []:
                inner = choice.get("options") if isinstance(choice, dict) else None
                values += [str(one.get("value")) for one in (inner or [choice]) if isinstance(one, dict)]
    return values


def _dump(value: BaseModel) -> Message:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def _validate(kind: type[M], answer: Message) -> M:
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        raise ACPError(
            f"the agent's answer is no {kind.__name__}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from error
