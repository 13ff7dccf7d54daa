"""Checking an agent: it is started on this host, asked to initialize, compared with its record, and gone afterwards."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from support.small_agents import agent

from benchflow.errors import ACPError, AgentExitError, AgentTimeoutError, ConfigError
from benchflow.paths import StatePaths
from benchflow.planes.agent.agent_check import check_agent
from benchflow.planes.agent.registry import find_agent
from benchflow.testing.sandbox_conformance.sandbox_fixtures import nap
from benchflow.testing.waiting import until

LOADS = {"session": {"rung": "load"}}


async def test_an_agent_that_is_what_its_record_says_passes(acp_agent: Path) -> None:
    found = await check_agent(agent(launch=[str(acp_agent), "well"], **LOADS))
    assert found.ok
    assert found.reported == {"name": "small", "version": "1.0.0"}
    assert found.capabilities == {"loadSession": True, "promptCapabilities": {"image": True}}
    assert found.start_sec > 0


async def test_another_version_is_a_problem(acp_agent: Path) -> None:
    found = await check_agent(agent(launch=[str(acp_agent), "other"]))
    assert not found.ok
    assert "2.0.0" in found.problems[0]


async def test_a_capability_that_the_record_counts_on_is_missed(acp_agent: Path) -> None:
    found = await check_agent(agent(launch=[str(acp_agent), "forgets"], **LOADS))
    assert "session/load" in found.problems[0]


async def test_an_agent_has_an_empty_home_and_no_secrets(acp_agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary")
    found = await check_agent(agent(launch=[str(acp_agent), "tells"]))
    told = found.capabilities["_meta"]
    assert told["secret"] is None
    assert told["home"] != str(Path.home())
    assert not Path(told["home"]).exists()


async def test_what_an_agent_started_is_gone_afterwards(acp_agent: Path) -> None:
    length = nap()
    assert (await check_agent(agent(launch=[str(acp_agent), "forks", length]))).ok
    # It was killed, and goes as soon as it has its turn.
    await until(lambda: ["sleep", length] not in [row.info["cmdline"] for row in psutil.process_iter(["cmdline"])])


async def test_an_agent_that_ends_is_shown_with_its_last_words(acp_agent: Path) -> None:
    with pytest.raises(AgentExitError) as caught:
        await check_agent(agent(launch=[str(acp_agent), "exits"]))
    assert "no gateway here" in str(caught.value.log_tail)


async def test_an_agent_that_does_not_answer_is_given_up(acp_agent: Path) -> None:
    with pytest.raises(AgentTimeoutError, match=r"within 0\.5 s"):
        await check_agent(agent(launch=[str(acp_agent), "hangs"]), timeout=0.5)


async def test_an_agent_that_writes_anything_else_breaks_the_protocol(acp_agent: Path) -> None:
    with pytest.raises(ACPError, match="not JSON-RPC") as caught:
        await check_agent(agent(launch=[str(acp_agent), "babbles"]))
    assert caught.value.log_tail == "Welcome!\n"


async def test_an_answer_that_is_none_breaks_the_protocol(acp_agent: Path) -> None:
    with pytest.raises(ACPError, match="no answer"):
        await check_agent(agent(launch=[str(acp_agent), "nonsense"]))


async def test_a_program_that_is_not_here_is_named() -> None:
    with pytest.raises(ConfigError, match="no program 'no-such-agent'"):
        await check_agent(agent(launch=["no-such-agent"]))


async def test_the_engines_own_agents_need_no_check() -> None:
    with pytest.raises(ConfigError, match="part of the engine"):
        await check_agent(find_agent("oracle"))


@pytest.mark.long
@pytest.mark.agents
@pytest.mark.parametrize("name", ["claude", "codex", "opencode", "gemini", "pi", "openhands", "openclaw"])
async def test_a_real_agent_starts_from_its_toolbox(name: str, kept: StatePaths) -> None:
    found = await check_agent(find_agent(name), timeout=300, paths=kept)
    assert found.ok, found.problems
    assert found.capabilities["loadSession"] is True
