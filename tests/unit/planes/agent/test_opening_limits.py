"""How long the opening of a session may take: the seconds in which a worker attends to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.idle_sandbox import IdleSandbox
from support.moved_clock import MovedClock
from support.small_agents import node_agent

from benchflow.contracts.agent import AgentPlace, ModelRoute
from benchflow.contracts.rollout_records import AgentSession
from benchflow.contracts.sandbox import SandboxExecResult, SandboxRef
from benchflow.errors import AgentExitError, AgentTimeoutError
from benchflow.planes.agent.account import SandboxAccount
from benchflow.planes.agent.acp import connect
from benchflow.planes.agent.acp.agent_start import AgentStart
from benchflow.planes.agent.acp.connect import AgentConnection
from benchflow.planes.agent.acpx import acpx_agent as acpx_agent
from benchflow.planes.agent.acpx.acpx_agent import AcpxAgent
from benchflow.planes.agent.agent_settings import AgentSettings
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.sandbox import timeouts

ACCOUNT = SandboxAccount("root", 0, 0, "/root")
START = AgentStart(node_agent(), AgentSettings({}, {}, (), None, ()), (), (), ACCOUNT, "/", {})
REF = SandboxRef(provider="noop", name="s", handle="s", host_id="h", queue="q", workdir="/")


async def test_a_second_start_has_what_is_left_of_the_seconds_that_were_attended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovedClock()
    monkeypatch.setattr(timeouts, "time", clock)
    monkeypatch.setattr(connect, "_FIRST_RETRY_SEC", 0.0)
    limits: list[float] = []
    session = AgentSession(index=0, id="s-1", directory="d", user="root", uid=0, gid=0, home="/root", cwd="/")

    async def start(
        self: AgentConnection, name: str, index: int, start: AgentStart, within: float, load: None
    ) -> AgentSession:
        limits.append(within)
        # The first one takes its time, and this process is frozen in the second.
        clock.now += (4, 3600, 0)[len(limits) - 1]
        if len(limits) < connect.MAX_STARTS:
            raise AgentExitError("it ended before it had a session")
        return session

    monkeypatch.setattr(AgentConnection, "_open", start)
    opened = await AgentConnection(IdleSandbox(REF), SessionFiles.from_directory(tmp_path)).open(0, START, 60.0)
    assert (opened, limits) == (session, [60.0, 56.0, 56.0])


class Silent(IdleSandbox):
    """A sandbox in which each command runs, and says nothing."""

    async def exec_once(self, key: str, cmd: Sequence[str], **options: Any) -> SandboxExecResult:
        await asyncio.Event().wait()
        raise AssertionError("it has no end")

    async def was_started(self, key: str) -> bool:
        return True


class Toolbox:
    """Has every program."""

    def find_program(self, name: str) -> tuple[str, ...]:
        return (name,)


@pytest.mark.parametrize(("least", "setup"), [(0.0, 0.05), (0.05, 0.01)])
async def test_acpx_has_the_limit_of_the_setup_to_open_its_session_and_never_less_than_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: float, setup: float
) -> None:
    monkeypatch.setattr(acpx_agent, "OPENING_TIMEOUT", least)
    monkeypatch.setattr(timeouts, "POLL_INTERVAL_SEC", 0.01)
    toolbox: Any = Toolbox()
    provider: Any = None
    place = AgentPlace(
        record=START.record,
        provider=provider,
        state=tmp_path,
        directory=tmp_path,
        access="none",
        route=ModelRoute,
        run_relay=provider,
        started=Silent(REF),
        setup_sec=setup,
    )
    session = AcpxAgent(place).make_session("session-0", START, toolbox)
    with pytest.raises(AgentTimeoutError, match=r"acpx sessions ensure took longer than 0\.05 s"):
        await session.open()
