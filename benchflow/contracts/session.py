"""The Agent plane's contract: who acts in a rollout, and the session in which it does.

An `Agent` opens sessions in a rollout's sandbox, and a `Session` is prompted, turn by turn. Workers die and others take
over: any process makes both of them anew, at any time, and what has to be known again lies in `AgentPlace.directory` or
in the sandbox. A turn that was begun goes on where it was left, and tells the same lines in the same order.

What is data of an agent, its registry record, is in `contracts.agent`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from benchflow.contracts.agent import AgentRecord
from benchflow.contracts.provider import SandboxProvider
from benchflow.contracts.resuming import LeastRung, Rung
from benchflow.contracts.rollout import AgentSession, Answer, ModelAccess, Permissions, Question, Usage
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.task import McpServer
from benchflow.errors import SessionNotLoadedError

Line = dict[str, Any]
"""A line of the trajectory: an object with a `type`, see `docs/trajectories.md`."""

Stop = Literal["wall_clock", "idle", "cancelled"]
"""Why the engine ended a turn."""

Intervals = Sequence[tuple[float, float]]
"""Begin and end of each, of this host's monotonic clock."""

AskBlocked = Callable[[], Awaitable[Intervals | None]]
"""Asks when calls of the agent's model waited for whoever passes them on; None while nobody answers, as then no call
passes either."""

AskUser = Callable[[Question], Awaitable[Answer]]
"""Answers what an agent asks its user. Raises `Unanswered` if nobody can yet."""


class Unanswered(Exception):
    """The agent waits for an answer that is not there yet. The turn is not over: prompt again when it is."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.text)
        self.question = question


@dataclass(frozen=True)
class Limits:
    """How long a turn may take."""

    wall: float | None = None
    """Seconds from its prompt, without the time that a user took to answer. None for no limit."""

    idle: float | None = 600.0
    """Seconds that it may be silent. None for no limit."""

    ask_blocked: AskBlocked | None = None
    """None where the agent's calls do not pass the engine."""

    def reached(self, elapsed: float, silent: float) -> Stop | None:
        """Return which of them is passed."""
        if self.wall is not None and elapsed > self.wall:
            return "wall_clock"
        return "idle" if self.idle is not None and silent > self.idle else None


@dataclass
class TurnCounts:
    """What is counted of a turn while it is taken, also of one that fails."""

    tool_calls: set[str] = field(default_factory=set)
    """Ids of the calls of tools."""

    usage: Usage | None = None
    """Tokens used, as far as the agent itself tells."""


@dataclass(frozen=True)
class StopReason:
    """Why a turn is over."""

    reason: str
    """As in ACP: `end_turn`, `max_tokens`, `refusal`, `cancelled`; an agent may give any text."""

    ended_by: Stop | None = None
    """Why the engine ended it; None for a turn that the agent ended."""


@dataclass(frozen=True)
class TurnRequest:
    """A turn to take, or to go on with."""

    number: int
    """Which of the rollout's. A session has no two turns of one number, and later ones have higher ones."""

    prompt: str

    limits: Limits

    heard: Callable[[list[Line]], None]
    """Takes the lines of the trajectory. Whoever takes a turn again gives it the same lines in the same order."""

    skip: Callable[[int], bool] = lambda lines: False
    """Tells whether the next so many lines are written already, so that `heard` need not be given them again."""


class Session(ABC):
    """A session with an agent.

    Methods raise `ACPError`, `AgentExitError`, `AgentTimeoutError` and other `AgentError`s for what the agent does
    wrong, and `SandboxLostError` when its sandbox is gone.
    """

    counts: TurnCounts
    """Of the turn that was prompted last."""

    @abstractmethod
    async def was_begun(self, turn: int) -> bool:
        """Return whether a turn was prompted, by whichever process."""

    @abstractmethod
    async def prompt(self, turn: TurnRequest) -> StopReason:
        """Take a turn to its end, or go on with it where another process has left it.

        When a limit is reached, or `cancel` was called, the agent is asked to stop, and killed if it does not.

        Raises:
            Unanswered: It waits for its user.
        """

    async def nudge(self, turn: TurnRequest) -> StopReason:
        """Take one more turn in a session that has had some: what a user adds to what was said before."""
        return await self.prompt(turn)

    @abstractmethod
    def cancel(self, turn: int) -> None:
        """Have a turn end, whichever process takes it. Returns at once."""

    @abstractmethod
    def on_ask_user(self, answer: AskUser) -> None:
        """Have what the agent asks its user be answered so."""

    @abstractmethod
    async def end(self) -> None:
        """End the agent with all that it has started. One that has ended is success."""

    async def capture(self) -> dict[str, Any] | None:
        """Return what `Agent.restore` needs beside the sandbox's files, as a small JSON object. The turn is over."""
        return None

    def positions(self) -> Mapping[str, int | str]:
        """Return what changes whenever the agent says something or is told something, by names for people."""
        return {}

    async def log_tail(self) -> str | None:
        """Return the last that the agent wrote to its log, to explain a failure."""
        return None

    async def close(self) -> None:
        """Let go of what this process holds of the session, which goes on."""
        return None


@dataclass(frozen=True)
class ModelRoute:
    """How an agent reaches its model."""

    name: str | None = None
    """As the user has spelled it; None for the agent's own choice."""

    base_url: str | None = None
    """Of the endpoint, where the agent runs; None for the provider's own."""

    api_key: str | None = field(default=None, repr=False)
    """A token of the gateway's, or the key of an endpoint that is called directly."""

    effort: str | None = None

    socket: Path | None = None
    """Unix socket of the gateway on this host, for agents that don't run in the sandbox."""

    login_files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Content of files that the agent logs in with, by path below its home. They belong in no snapshot."""


@dataclass(frozen=True)
class AgentPlace:
    """Where an agent acts, and what it is given there."""

    record: AgentRecord
    provider: SandboxProvider
    """Of the sandbox."""

    state: Path
    """The engine's state directory on this host."""

    directory: Path
    """Directory of this host for the agents of this sandbox, which lasts as long as the sandbox."""

    access: ModelAccess
    """Whether the model is reached by the gateway, directly, or not at all."""

    route: Callable[[], ModelRoute]
    """Returns the way to the model, once there is a sandbox."""

    run_relay: Callable[[Sequence[str]], Awaitable[None]]
    """Runs a program in the sandbox that passes its calls on to the gateway: a command without its arguments."""

    started: Sandbox | None = None
    """None before it is started."""

    user: str | int = "root"
    """Who the agent is in the sandbox."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment of commands in the sandbox, secrets included."""

    agent_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that the user gives the agent, secrets included. They win over all others."""

    mcp_servers: tuple[McpServer, ...] = ()
    permissions: Permissions = "auto"
    """How its questions are answered, for an agent whose own client answers them. Others have `on_ask_user`."""

    setup_sec: float = 360.0
    """Seconds in which a session has to be open."""

    job: str = ""
    """Id of the job."""

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, which is started."""
        assert self.started is not None, "the sandbox is not started"
        return self.started


class Agent(ABC):
    """Who acts in a rollout.

    Make a subclass and name it by an import path (`--agent-import-path module:Class`) or an entry point of
    `benchflow.agents`; run `benchflow.testing.agent_conformance` over it.
    """

    runs_inside: ClassVar[bool] = False
    """Whether it is a process of the sandbox, which calls its model from there."""

    resume_mode: ClassVar[LeastRung] = "fresh"
    """The best way known to go on with its sessions in a copy of their world: `load` if `restore` does so."""

    def __init__(self, place: AgentPlace) -> None:
        self.place = place

    async def prepare(self, wanted: SandboxSpec, log: Path) -> SandboxSpec:
        """Return what a sandbox must be started with for the agent to act there. log: file for what builds print.

        Raises:
            UnsupportedFeatureError: The agent can't act in such a sandbox.
        """
        return wanted

    async def set_up(self) -> None:
        """Put into the sandbox what is there before the first session and belongs to the world, not to the agent."""
        return None

    @abstractmethod
    async def open(self, index: int) -> AgentSession:
        """Open the rollout's session of this number, or find it open."""

    async def restore(self, index: int, held: AgentSession, captured: Mapping[str, Any] | None) -> AgentSession:
        """Open a session that goes on with one that was held in a sandbox of which this one is a copy.

        Args:
            index: Number of the new session.
            held: The session as it was opened there.
            captured: What `Session.capture` returned there.

        Raises:
            SessionNotLoadedError: Its sessions can't go on in a copy; a new one may be opened under this number.
        """
        raise SessionNotLoadedError(f"agent {self.place.record.name!r} cannot go on with its sessions in a copy")

    def rung(self, held: AgentSession, least: Rung) -> Rung:
        """Return the best way known to go on with a session in a copy of its world.

        Args:
            held: The session.
            least: The worst way that is allowed: a replay is tried where it is asked for.
        """
        return self.resume_mode

    @abstractmethod
    async def session(self, held: AgentSession) -> Session:
        """Return a session that was opened, in whichever process."""

    async def end(self, held: AgentSession) -> None:
        """End a session's agent with all that it has started. One that has ended is success."""
        session = await self.session(held)
        try:
            await session.end()
        finally:
            await session.close()
