"""Fixtures of the agent suite: an agent in a sandbox, and processes that run its turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import pytest
import pytest_asyncio

from benchflow.contracts.agent import (
    AgentPlace,
    AskUser,
    Line,
    ModelRoute,
    RolloutAgent,
    StopReason,
    TurnLimits,
    TurnRequest,
)
from benchflow.contracts.images import ImageConfig
from benchflow.contracts.rollout_records import AgentSession
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.planes.agent import create_agent
from benchflow.planes.agent.account import prepare_account
from benchflow.planes.agent.registry import find_agent
from benchflow.planes.sandbox.background import start_once
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures as SandboxFixtures
from benchflow.testing.sandbox_conformance.sandbox_fixtures import Start
from benchflow.testing.waiting import until

PATIENT = TurnLimits(wall=600, idle=300)
"""Limits that no turn of a test reaches, however busy the machine."""

SETUP_SEC = 300.0
"""Timeout of the agent's setup."""

_READY = "mkdir -p /logs/agent /logs/artifacts"
"""Makes the directories of a rollout in the sandbox."""


@dataclass
class Taking:
    """A process that runs a turn of a session."""

    agent: RolloutAgent
    """The process's agent object."""

    held: AgentSession
    """The session."""

    number: int
    """Index of the turn's step."""

    prompt: str
    """Text of the user message."""

    limits: TurnLimits = PATIENT
    """Time limits of the turn."""

    answer: AskUser | None = None
    """Answers the agent's questions; None leaves the agent without a user."""

    is_nudge: bool = False
    """Whether the turn is a nudge."""

    present: int = 0
    """Number of lines that are in the trajectory already."""

    lines: list[Line] = field(default_factory=list)
    """Trajectory lines that the process has received."""

    skipped: int = 0
    """Number of lines that the agent was allowed to leave out, because they are in the trajectory already."""

    tool_calls: int = 0
    """Number of the turn's tool calls; set at its end."""

    async def take(self) -> StopReason:
        """Run the turn to its end, and return why it ended."""

        def skip(lines: int) -> bool:
            if lines > self.present:
                return False
            self.skipped = lines
            return True

        session = await self.agent.session(self.held)
        if self.answer is not None:
            session.on_ask_user(self.answer)
        turn = TurnRequest(self.number, self.prompt, self.limits, self.lines.extend, skip)
        try:
            return await (session.nudge(turn) if self.is_nudge else session.prompt(turn))
        finally:
            self.tool_calls = len(session.counts.tool_calls)
            await session.close()

    @asynccontextmanager
    async def until_it_tells(self) -> AsyncIterator[asyncio.Task[StopReason]]:
        """Run the turn in a task, and yield it once it has sent a line. At the end of the block the process is gone."""
        task = asyncio.ensure_future(self.take())
        try:
            await until(lambda: self.lines or task.done())
            assert not task.done(), task
            yield task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


Take = Callable[..., Taking]
"""Type of the fixture `taking`."""

Place = Callable[[SandboxSpec, Path], Awaitable[AgentPlace]]
"""Type of the fixture `placed`."""


class AgentFixtures(SandboxFixtures):
    """Fixtures of the suite. Its users set the attributes."""

    agent: ClassVar[str]
    """Name or import path of the agent."""

    talks: ClassVar[str]
    """Prompt for a turn that sends trajectory lines, and ends by itself."""

    lasts: ClassVar[str]
    """Prompt for a turn that sends trajectory lines, and then nothing for an hour."""

    asks: ClassVar[str | None] = None
    """Prompt for a turn in which the agent asks its user, sends trajectory lines, and ends. None skips its tests."""

    remembers: ClassVar[tuple[str, str, str] | None] = None
    """Prompt that gives the agent a fact, prompt that asks for it, and text of the answer. None skips this check."""

    async def furnish(self, sandbox: Sandbox) -> None:
        """Put the files that the agent needs into a new sandbox. By default none."""

    @pytest.fixture(scope="class")
    @classmethod
    def image_config(cls, tmp_path_factory: pytest.TempPathFactory) -> ImageConfig:
        """Return the image configuration: a Dockerfile, which a local sandbox takes, too: its host stands for FROM."""
        context = tmp_path_factory.mktemp("environment")
        (context / "Dockerfile").write_text(f"FROM {cls.base_image}\nWORKDIR /app\n")
        return ImageConfig(context=str(context))

    @pytest.fixture
    def route(self) -> ModelRoute | None:
        """Return the route to the agent's model; None for an agent that calls none. Override it for a model."""
        return None

    @pytest.fixture
    def placed(
        self,
        provider: SandboxProvider,
        start: Start,
        state_directory: Path,
        route: ModelRoute | None,
    ) -> Place:
        """Return a function that starts a sandbox with the agent in it, from its spec and a directory on this host."""

        async def begin(wanted: SandboxSpec, directory: Path) -> AgentPlace:
            async def run_relay(program: Sequence[str]) -> None:
                await start_once(sandbox, "relay", program)

            record = find_agent(self.agent)
            bare = AgentPlace(
                record=record,
                provider=provider,
                state=state_directory,
                directory=directory / "agent",
                access="none" if route is None else "gateway",
                route=lambda: route or ModelRoute(),
                run_relay=run_relay,
                setup_sec=SETUP_SEC,
            )
            sandbox = await start(**dict(await create_agent(bare).prepare(wanted, directory / "build.log")))
            await sandbox.control(_READY)
            await self.furnish(sandbox)
            user = await prepare_account(sandbox, record, None, SETUP_SEC)
            made = replace(bare, started=sandbox, user=user)
            await create_agent(made).set_up()
            return made

        return begin

    @pytest_asyncio.fixture
    async def place(self, placed: Place, spec: SandboxSpec, tmp_path: Path) -> AgentPlace:
        """Return the agent's place in a sandbox of this test alone."""
        return await placed(spec, tmp_path)

    @pytest_asyncio.fixture
    async def held(self, place: AgentPlace) -> AsyncIterator[AgentSession]:
        """Yield a session that was opened in `place`."""
        opened = await create_agent(place).open(0)
        yield opened
        await create_agent(place).end(opened)

    @pytest.fixture
    def taking(self, place: AgentPlace, held: AgentSession) -> Take:
        """Return a function that makes a `Taking`, from the turn's number, its prompt, and other fields by keyword."""
        return lambda number, prompt, **more: Taking(create_agent(place), held, number, prompt, **more)
