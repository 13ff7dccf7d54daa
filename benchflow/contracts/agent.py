"""The Agent plane's contract: the agent of a rollout and its sessions.

A `RolloutAgent` opens sessions in a rollout's sandbox, and a `Session` takes prompts, turn by turn. Workers die and
others take over: any process may construct both of them again, at any time, so that their state lies in
`AgentPlace.directory` or in the sandbox. A turn that was started is resumed where it was left, with the same trajectory
lines in the same order.

The registry record of an agent is in `contracts.agent_record`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from benchflow.contracts.agent_record import AgentRecord
from benchflow.contracts.resuming import LeastRung, Rung
from benchflow.contracts.rollout_records import AgentSession, Answer, ModelAccess, Permissions, Question, Usage
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_config import McpServer
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import SessionNotLoadedError

Line = dict[str, Any]
"""A line of the trajectory: a JSON object with a `type`."""

Stop = Literal["wall_clock", "idle", "cancelled"]
"""Why the engine ended a turn: `wall_clock` and `idle` are limits that were exceeded; `cancelled` is a cancellation."""

Intervals = Sequence[tuple[float, float]]
"""Start and end of each interval, in seconds of this host's monotonic clock."""

AskBlocked = Callable[[], Awaitable[Intervals | None]]
"""Callback that returns the intervals in which calls of the agent's model waited for the gateway itself; None if the
gateway does not answer, since then all calls wait for it."""

AskUser = Callable[[Question], Awaitable[Answer]]
"""Callback that answers an agent's question to its user. Raises `Unanswered` if there is no answer yet."""


class Unanswered(Exception):  # noqa: N818 - no error: the turn waits
    """Raised when the agent waits for an answer that is not given yet. The turn is not over: prompt again after it."""

    def __init__(self, question: Question) -> None:
        """Make it for a question, which is then its attribute."""
        super().__init__(question.text)
        self.question = question


@dataclass(frozen=True)
class TurnLimits:
    """Time limits of a turn."""

    wall: float | None = None
    """Seconds since the prompt, less the time in which the agent waits for a user or the engine. None for no limit."""

    idle: float | None = 600.0
    """Seconds without output, counted likewise, after which the turn is ended. None for no limit."""

    ask_blocked: AskBlocked | None = None
    """Callback for the intervals in which model calls waited for the gateway: both limits stand still then. None if the
    agent calls its model directly.
    """

    def reached(self, elapsed: float, silent: float) -> Stop | None:
        """Return the limit that is exceeded; None if none is.

        Args:
            elapsed: Seconds since the prompt, without those that do not count.
            silent: Seconds since the last output, likewise.
        """
        if self.wall is not None and elapsed > self.wall:
            return "wall_clock"
        return "idle" if self.idle is not None and silent > self.idle else None


@dataclass
class TurnCounts:
    """Counts of a turn, updated while the agent works; also valid for a turn that fails."""

    tool_calls: set[str] = field(default_factory=set)
    """Ids of the turn's tool calls."""

    usage: Usage | None = None
    """Tokens that the agent reports to have used; None if it reports none. The gateway's counts replace them."""


@dataclass(frozen=True)
class StopReason:
    """The end of a turn."""

    reason: str
    """ACP's stop reason: `end_turn`, `max_tokens`, `refusal`, `cancelled`. An agent may give any other text; `timeout`
    comes from the engine, for an agent that exceeded a limit and did not stop when asked to."""

    ended_by: Stop | None = None
    """Why the engine ended the turn; None if the agent ended it."""


@dataclass(frozen=True)
class TurnRequest:
    """A turn to start, or to resume."""

    number: int
    """Index of the turn's step. Unique within a session, and higher for later turns."""

    prompt: str
    """Text of the user message that starts the turn."""

    limits: TurnLimits
    """Time limits of the turn."""

    heard: Callable[[list[Line]], None]
    """Callback that receives the trajectory lines. A process that resumes the turn passes the same lines in the same
    order."""

    skip: Callable[[int], bool] = lambda lines: False
    """Callback that returns whether the trajectory already has so many further lines of the turn. If so, they count as
    passed to `heard`. By default it has none.
    """


class Session(ABC):
    """A session with an agent.

    Methods raise `ACPError`, `AgentExitError`, `AgentTimeoutError` and other `AgentError`s for failures of the agent,
    and `SandboxLostError` when the sandbox is gone.
    """

    counts: TurnCounts
    """Counts of the turn that was prompted last."""

    @abstractmethod
    async def was_begun(self, turn: int) -> bool:
        """Return whether the turn of this number was prompted, in this process or another one."""

    @abstractmethod
    async def prompt(self, turn: TurnRequest) -> StopReason:
        """Run a turn to its end, or resume one that another process has left.

        When a limit is exceeded, or `cancel` was called, the agent is asked to stop, and killed if it does not.

        Raises:
            Unanswered: The agent waits for an answer of its user.
        """

    async def nudge(self, turn: TurnRequest) -> StopReason:
        """Run a turn with a further user message in a session that has had turns. By default as `prompt`."""
        return await self.prompt(turn)

    @abstractmethod
    def cancel(self, turn: int) -> None:
        """Request the end of the turn of this number, whichever process runs it, and return at once."""

    @abstractmethod
    def on_ask_user(self, answer: AskUser) -> None:
        """Set the callback that answers the agent's questions to its user."""

    @abstractmethod
    async def end(self) -> None:
        """End the agent and all processes that it has started. An agent that has ended already is success."""

    async def capture(self) -> dict[str, Any] | None:
        """Return the state that `RolloutAgent.restore` needs besides the sandbox's files, as a small JSON object.

        Called when the turn is over. None by default, if the sandbox's files are enough.
        """
        return None

    def positions(self) -> Mapping[str, int | str]:
        """Return values that change with each message to or from the agent, by names for error messages.

        A checkpoint is only valid if they are the same before and after it.
        """
        return {}

    async def log_tail(self) -> str | None:
        """Return the end of the agent's log, to explain a failure; None if there is none."""
        return None

    async def close(self) -> None:
        """Release the resources that this process holds for the session. The session continues."""
        return None


@dataclass(frozen=True)
class ModelRoute:
    """Model, address and credentials with which an agent reaches its model."""

    name: str | None = None
    """Model as the user spells it, `provider/model` for most; None for the agent's own choice."""

    base_url: str | None = None
    """Base URL of the endpoint: the gateway's, as it is reached where the agent runs, or the user's; None for the
    provider's own."""

    api_key: str | None = field(default=None, repr=False)
    """A token of the gateway, or the key of an endpoint that is called directly; None if there is no key."""

    effort: str | None = None
    """Reasoning effort that the user asks for; None for the agent's default."""

    socket: Path | None = None
    """Unix socket of the gateway on this host, for agents that run in the worker. None for agents in the sandbox, and
    where the model is called directly."""

    login_files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Content of the agent's login files, by path below its home. Kept out of snapshots. Empty if a key is used."""


@dataclass(frozen=True)
class AgentPlace:
    """Context in which an agent acts: its record, sandbox, model and settings."""

    record: AgentRecord
    """Registry record of the agent."""

    provider: SandboxProvider
    """Provider of the sandbox."""

    state: Path
    """The engine's state directory on this host."""

    directory: Path
    """Directory of this host for the state of the sandbox's agents, who create it. It lasts as long as the sandbox."""

    access: ModelAccess
    """How the agent reaches its model: through the `gateway`, `direct`, or `none` if it uses no model."""

    route: Callable[[], ModelRoute]
    """Callback that returns the route to the model. Only valid once there is a sandbox."""

    run_relay: Callable[[Sequence[str]], Awaitable[None]]
    """Callback that starts the relay in the sandbox, which forwards model calls to the gateway, unless it runs. Takes
    the relay's command without its arguments."""

    started: Sandbox | None = None
    """The sandbox; None before it is started. See `sandbox`."""

    user: str | int = "root"
    """User that the agent acts as in the sandbox: a name or a uid."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment of the rollout's commands in the sandbox, secrets included."""

    agent_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that the user gives the agent (`--agent-env`), secrets included. They override all others."""

    mcp_servers: tuple[McpServer, ...] = ()
    """MCP servers of the task, with secrets put in."""

    permissions: Permissions = "auto"
    """Policy for the agent's questions: `auto` allows, `deny` rejects, `ask` waits for the user. For agents whose own
    client answers them; others get a callback by `Session.on_ask_user`."""

    setup_sec: float = 360.0
    """Seconds within which a session must be open. The engine gives `sandbox_setup_timeout` of the job."""

    job: str = ""
    """Id of the job, for which a worker process imports the code of a Python agent once. Empty outside of a job."""

    @property
    def sandbox(self) -> Sandbox:
        """Return the started sandbox."""
        assert self.started is not None, "the sandbox is not started"
        return self.started


class RolloutAgent(ABC):
    """The agent of a rollout, in the sandbox of its place.

    Make a subclass and name it by an import path (`--agent-import-path module:Class`) or an entry point of
    `benchflow.agents`; run `benchflow.testing.agent_conformance` over it.
    """

    runs_inside: ClassVar[bool] = False
    """Whether the agent is a process of the sandbox and calls its model from there, and not from the worker."""

    resume_mode: ClassVar[LeastRung] = "fresh"
    """Best resume mode of its sessions in a copy of their world: `load` if `restore` works, `replay`, or `fresh`."""

    def __init__(self, place: AgentPlace) -> None:
        """Make it for a place, which is then its attribute."""
        self.place = place

    async def prepare(self, wanted: SandboxSpec, log: Path) -> SandboxSpec:
        """Return the spec with which a sandbox must be started for the agent to act there. By default `wanted`.

        Args:
            wanted: The spec without the agent.
            log: File for the output of builds.

        Raises:
            UnsupportedFeatureError: The agent can't act in such a sandbox.
        """
        return wanted

    async def set_up(self) -> None:
        """Prepare the sandbox before a session is opened. Must be repeatable; by default nothing is done.

        Processes that the first call starts, such as the relay, belong to the world and not to the agent.
        """
        return None

    @abstractmethod
    async def open(self, index: int) -> AgentSession:
        """Open the rollout's session number `index`, or return it if it is open already."""

    async def restore(self, index: int, held: AgentSession, captured: Mapping[str, Any] | None) -> AgentSession:
        """Open a session that resumes another one, which was held in a sandbox of which this one is a copy.

        Args:
            index: Number of the new session.
            held: The other session, as it was opened there.
            captured: Return value of `Session.capture` there.

        Raises:
            SessionNotLoadedError: The session can't be resumed in a copy, which is the default; a new one may be opened
                under this number.
        """
        raise SessionNotLoadedError(f"agent {self.place.record.name!r} cannot go on with its sessions in a copy")

    def rung(self, held: AgentSession, least: Rung) -> Rung:
        """Return the best resume mode of a session in a copy of its world.

        Args:
            held: The session.
            least: The minimum that the user asks for: with `replay`, it is tried also for an agent of which only
                `fresh` is known to work.
        """
        return self.resume_mode

    @abstractmethod
    async def session(self, held: AgentSession) -> Session:
        """Return a handle of a session that this process or another one has opened."""

    async def end(self, held: AgentSession) -> None:
        """End a session's agent and all processes that it has started. An agent that has ended already is success."""
        session = await self.session(held)
        try:
            await session.end()
        finally:
            await session.close()
