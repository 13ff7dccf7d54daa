"""Agents whose model endpoint fails for good: no row says 0, each says what was wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.agent_world import Seen, run_tasks, submit_tasks
from support.failing_endpoints import REPEATED, REPLIES, WORDS, MakeSpec, fault_of, run_faults
from support.made_once import made_once
from support.model_world import KEY, SOLVED, write_model_task
from support.real_agents import Asked

from benchflow.contracts.job import AgentSpec
from benchflow.errors import ModelEndpointError
from benchflow.testing.scripted_model import ScriptedModel, SideCalls


def policy(model: ScriptedModel, fault: str) -> AgentSpec:
    base_url = model.openai_base_url
    return AgentSpec(name="policy", model=f"openai/{fault}", base_url=base_url, env={"POLICY_API_KEY": KEY})


async def run_all(root: Path, agents: list[MakeSpec], idle_sec: float, concurrency: int = 10) -> list[Seen]:
    task = write_model_task(root, "asked")
    given = {"sandbox": "local", "concurrency": concurrency, "agent_idle_timeout_sec": idle_sec}
    # Twenty agents that start at once take minutes on a small machine; and all of them fail.
    given |= {"sandbox_setup_timeout": 400, "stop_after_errors": 0}
    failing = await run_faults(task, root / "jobs", agents, REPLIES, job_name="fail", **given)
    # The limit is short, so that no gateway waits for minutes.
    repeated = await run_faults(
        task, root / "jobs", agents, REPEATED, job_name="wait", endpoint_policy="wait(3s)", **given
    )
    return failing + repeated


@made_once()
async def rows(root: Path) -> dict[str, Seen]:
    return {fault_of(seen): seen for seen in await run_all(root, [policy], 8)}


@pytest.mark.local
@pytest.mark.parametrize("fault", WORDS)
def test_a_rollout_whose_model_never_answered_has_no_reward(rows: dict[str, Seen], fault: str) -> None:
    seen = rows[fault]
    assert (seen.result.status, seen.result.rewards, seen.error.category) == ("errored", None, "model_endpoint")
    assert WORDS[fault] in seen.error.message
    assert seen.error.remedy
    # The verifier was not even asked.
    assert not seen.paths.verifier.exists() or not any(seen.paths.verifier.iterdir())
    [line] = seen.of("model_endpoint")
    assert line["message"] == seen.error.message


@pytest.mark.local
@pytest.mark.usefixtures("module_jobs")
def test_a_job_whose_model_refuses_the_key_does_not_start_and_its_name_is_free(tmp_path: Path) -> None:
    task = write_model_task(tmp_path, "asked")
    given = {"job_name": "mended", "sandbox": "local", "preflight": True}
    side = SideCalls(without_tools=False)
    with ScriptedModel({"replies": [REPLIES["refused-key"]]}, side=side) as refusing, ScriptedModel(SOLVED) as model:
        with pytest.raises(ModelEndpointError, match=r"refuses POLICY_API_KEY: .* the key was revoked") as caught:
            asyncio.run(submit_tasks([task], tmp_path / "jobs", agents=[policy(refusing, "x")], **given))
        assert "--no-preflight" in str(caught.value.remedy)
        assert len(refusing.calls) == 1
        assert not (tmp_path / "jobs" / "mended").exists()
        seen = run_tasks([task], tmp_path / "jobs", agents=[policy(model, "y")], **given)
    assert seen["asked"].result.rewards == {"reward": 1.0}


AGENTS = [
    Asked("opencode", "openai-chat", "openai", "OPENAI_API_KEY", says=""),
    Asked("claude-agent-acp", "anthropic-messages", "anthropic", "ANTHROPIC_API_KEY", says=""),
    Asked("codex-acp", "openai-responses", "openai", "OPENAI_API_KEY", says=""),
    Asked("gemini", "gemini", "google", "GEMINI_API_KEY", says=""),
    Asked("pi-acp", "openai-chat", "openai", "OPENAI_API_KEY", says=""),
]


def real(asked: Asked) -> MakeSpec:
    def make(model: ScriptedModel, fault: str) -> AgentSpec:
        return asked.spec(model).model_copy(update={"model": f"{asked.provider}/{fault}"})

    return make


@pytest.mark.local
@pytest.mark.agents
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("module_jobs")
def test_no_real_agent_is_scored_without_its_model(tmp_path: Path) -> None:
    rows = asyncio.run(run_all(tmp_path, [real(asked) for asked in AGENTS], 60, concurrency=6))
    assert len(rows) == len(AGENTS) * len(WORDS)
    told = {
        f"{seen.result.agent} × {fault_of(seen)}": (seen.result.rewards, seen.error.category, seen.error.message)
        for seen in rows
    }
    unscored = {
        name for name, (rewards, category, _) in told.items() if rewards is None and category == "model_endpoint"
    }
    assert unscored == set(told), told
    assert {name for name, row in told.items() if WORDS[name.split(" × ")[1]] in row[2]} == set(told), told
