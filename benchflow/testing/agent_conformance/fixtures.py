"""What every theme of the suite stands on: an agent in a sandbox, and processes that take its turns."""

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

from benchflow.contracts.images import ImageConfig
from benchflow.contracts.provider import SandboxProvider
from benchflow.contracts.rollout import AgentSession
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.session import Agent, AgentPlace, AskUser, Limits, Line, ModelRoute, StopReason, TurnRequest
from benchflow.planes.agent import agent_in
from benchflow.planes.agent.account import prepare_account
from benchflow.planes.agent.registry import find_agent
from benchflow.planes.sandbox.background import start_once
from benchflow.testing.sandbox_conformance.fixtures import Fixtures as SandboxFixtures
from benchflow.testing.sandbox_conformance.fixtures import Start
from benchflow.testing.waiting import until

PATIENT = Limits(wall=600, idle=300)
"""Limits that no turn of a test reaches, however busy the machine."""

SETUP_SEC = 300.0

_READY = "mkdir -p /logs/agent /logs/artifacts"


@dataclass
class Taking:
    """A process that takes a turn of a session. lines: what it was given of the trajectory."""

    agent: Agent
    held: AgentSession
    number: int
    prompt: str
    limits: Limits = PATIENT
    answer: AskUser | None = None
    is_nudge: bool = False
    present: int = 0
    """Lines that are written already."""

    lines: list[Line] = field(default_factory=list)
    skipped: int = 0
    """Lines that need not be given again, as the agent was told."""

    tool_calls: int = 0

    async def take(self) -> StopReason:
        """Take the turn to its end."""

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
        """Take the turn until it tells something; the process is gone at the end, wherever the turn is then."""
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
Place = Callable[[SandboxSpec, Path], Awaitable[AgentPlace]]


class Fixtures(SandboxFixtures):
    """The fixtures of the suite. What an author gives are the attributes."""

    agent: ClassVar[str]
    """Name or import path of the agent."""

    talks: ClassVar[str]
    """A prompt for a turn that tells something, and ends by itself."""

    lasts: ClassVar[str]
    """A prompt for a turn that tells something, and then nothing for an hour."""

    asks: ClassVar[str | None] = None
    """A prompt for a turn in which the agent asks its user, tells something, and ends."""

    remembers: ClassVar[tuple[str, str, str] | None] = None
    """A prompt that tells it something, one that asks for it, and what it then tells."""

    async def furnish(self, sandbox: Sandbox) -> None:
        """Put into the sandbox what the agent needs there."""

    @pytest.fixture(scope="class")
    @classmethod
    def image_config(cls, tmp_path_factory: pytest.TempPathFactory) -> ImageConfig:
        """What the image of the sandboxes is made from: a Dockerfile, for which this host may stand, too."""
        context = tmp_path_factory.mktemp("environment")
        (context / "Dockerfile").write_text(f"FROM {cls.base_image}\nWORKDIR /app\n")
        return ImageConfig(context=str(context))

    @pytest.fixture
    def route(self) -> ModelRoute | None:
        """The way to the agent's model; None for an agent that calls none."""
        return None

    @pytest.fixture
    def placed(
        self,
        provider: SandboxProvider,
        start: Start,
        state_directory: Path,
        route: ModelRoute | None,
    ) -> Place:
        """Places the agent in a sandbox of its own, whose specification and directory on this host are given."""

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
            sandbox = await start(**dict(await agent_in(bare).prepare(wanted, directory / "build.log")))
            await sandbox.control(_READY)
            await self.furnish(sandbox)
            user = await prepare_account(sandbox, record, None, SETUP_SEC)
            made = replace(bare, started=sandbox, user=user)
            await agent_in(made).set_up()
            return made

        return begin

    @pytest_asyncio.fixture
    async def place(self, placed: Place, spec: SandboxSpec, tmp_path: Path) -> AgentPlace:
        """The agent's place in a sandbox of the test's own."""
        return await placed(spec, tmp_path)

    @pytest_asyncio.fixture
    async def held(self, place: AgentPlace) -> AsyncIterator[AgentSession]:
        """A session that was opened there."""
        opened = await agent_in(place).open(0)
        yield opened
        await agent_in(place).end(opened)

    @pytest.fixture
    def taking(self, place: AgentPlace, held: AgentSession) -> Take:
        """Makes a process that takes a turn: its number, its prompt, and fields of `Taking`."""
        return lambda number, prompt, **more: Taking(agent_in(place), held, number, prompt, **more)
