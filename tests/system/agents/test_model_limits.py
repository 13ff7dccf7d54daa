"""What a job's file says of its model's calls: limits that end a turn, parameters of sampling, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.agent_world import Seen, declare, finished, run_tasks, write_task
from support.model_world import MODEL, SOLVED, calls_of, main_calls, policy, runs, write_model_task

from benchflow.config_file import read_job_file
from benchflow.contracts.config import JobConfig
from benchflow.contracts.job import AgentSpec
from benchflow.jobs import plan_job, submit
from benchflow.testing.scripted_model import ModelRequest, ScriptedModel

pytestmark = pytest.mark.local

MESSENGER = {
    "model": {"by": "env"},
    "endpoints": [
        {
            "api": "anthropic-messages",
            "providers": ["anthropic"],
            "credentials": ["BF_TEST_MESSENGER_KEY"],
            "env": {"MESSENGER_MODEL": "{model}", "MESSENGER_URL": "{base_url}", "MESSENGER_KEY": "{api_key}"},
        }
    ],
}
"""An agent, which calls nobody, of an endpoint without a seed."""

LOGIN = {
    "model": {"by": "env"},
    "credential_files": [".visitor/auth.json"],
    "endpoints": [
        {
            "api": "openai-chat",
            "providers": ["acme"],
            "base_url": "http://acme.invalid/v1",
            "env": {"OPENAI_MODEL": "{model}", "OPENAI_BASE_URL": "{base_url}"},
        }
    ],
}
"""An agent that logs in with a file of its user's."""


def run_file(jobs_dir: Path, task: Path, agent: AgentSpec, **said: Any) -> Seen:
    """One rollout as a YAML file asks for it, beside its agent."""
    file = task.parent / f"{task.name}.yaml"
    table = {"tasks_dir": [str(task)], "jobs_dir": str(jobs_dir), "sandbox": "local"} | said
    file.write_text(yaml.safe_dump(table))
    config = JobConfig.model_validate(read_job_file(file) | {"agents": [agent]})

    async def run() -> Seen:
        return (await finished(await submit(plan_job(config))))[task.name]

    return asyncio.run(run())


def never_ends(request: ModelRequest) -> dict[str, Any]:
    """A model that finds something to do for ever."""
    return runs("echo 42 > answer", f"Step {request.turn}.")


# --- limits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "calls"),
    # A call has 1050 tokens and costs 0.0001520 USD; the one that reaches a limit is the last.
    [({"calls": 3}, 3), ({"total_tokens": 2101}, 3), ({"input_tokens": 1500}, 2), ({"cost_usd": 0.0003}, 2)],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_limit_ends_the_turn_and_what_was_done_is_scored(
    module_jobs: Path, tmp_path: Path, limits: dict[str, float], calls: int
) -> None:
    task = write_model_task(tmp_path, f"limited-{next(iter(limits))}")
    with ScriptedModel(never_ends) as model:
        seen = run_file(module_jobs, task, policy(model), limits=limits)
        assert len(model.calls) == calls
    (name,) = limits
    result, (outcome,) = seen.result, seen.result.steps
    assert (seen.error.category, seen.error.type, seen.error.key) == (
        "budget_exhausted",
        "BudgetExhaustedError",
        f"limits.{name}",
    )
    assert outcome.turn.stop_reason == "budget_exhausted"
    assert (result.is_truncated, result.rewards, result.error_category) == (True, {"reward": 1.0}, "budget_exhausted")
    assert outcome.turn.usage is not None and outcome.turn.usage.calls == calls
    assert [line["limit"] for line in seen.of("budget_exhausted")] == [name]
    # The refused call is on record, and nobody was asked for it.
    refused = calls_of(seen)[calls]
    assert refused.response["error"]["kind"] == "budget_exhausted"
    # It was told, and has not crashed.
    assert not (seen.paths.sessions / "0.0" / "exit.json").exists()
    assert seen.lines[-1]["type"] == "budget_exhausted"


def test_a_limit_that_is_not_reached_changes_nothing(module_jobs: Path, tmp_path: Path) -> None:
    task = write_model_task(tmp_path, "enough")
    with ScriptedModel(SOLVED) as model:
        seen = run_file(module_jobs, task, policy(model), limits={"calls": 2, "cost_usd": 1})
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert seen.result.steps[0].turn.stop_reason == "end_turn"


def test_money_is_no_limit_where_nobody_knows_the_price(module_jobs: Path, tmp_path: Path) -> None:
    task = write_model_task(tmp_path, "unknown-price")
    with ScriptedModel(SOLVED) as model:
        agent = policy(model, model="openai/nobody-sells-this")
        seen = run_file(module_jobs, task, agent, limits={"cost_usd": 1})
        assert model.calls == []
    assert (seen.error.type, seen.error.key) == ("ConfigError", "limits.cost_usd")
    assert "nobody-sells-this" in seen.error.message
    assert seen.result.rewards is None


# --- sampling ----------------------------------------------------------------------------------------------


def test_sampling_reaches_the_model_whatever_the_agent_asks(module_jobs: Path, tmp_path: Path) -> None:
    task = write_model_task(tmp_path, "sampled")
    sampling = {"temperature": 0.25, "top_p": 0.9, "max_tokens": 4000, "seed": 7}
    with ScriptedModel(SOLVED) as model:
        agent = policy(model)
        agent = agent.model_copy(update={"env": agent.env | {"POLICY_TEMPERATURE": "1", "POLICY_MAX_TOKENS": "100"}})
        seen = run_file(module_jobs, task, agent, sampling=sampling)
        asked = [call.body for call in model.calls]
    assert seen.result.rewards == {"reward": 1.0}
    assert [(body["temperature"], body["top_p"], body["seed"]) for body in asked] == [(0.25, 0.9, 7)] * 2
    # The agent's own is lower.
    caps = [body.get("max_completion_tokens", body.get("max_tokens")) for body in asked]
    assert caps == [100, 100]
    for call in main_calls(calls_of(seen)):
        assert call.request["request"]["temperature"] == 1
        assert call.request["sampling_applied"]["temperature"] == 0.25


def test_a_parameter_that_an_endpoint_does_not_have_is_refused(
    module_jobs: Path, agents_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(agents_dir, "messenger", **MESSENGER)
    monkeypatch.setenv("BF_TEST_MESSENGER_KEY", "a-key-of-no-worth")
    task = write_task(tmp_path, "seeded", [{"say": "Never said."}])
    agent = AgentSpec(name="messenger", model="anthropic/claude-haiku-4-5")
    seen = run_file(module_jobs, task, agent, sampling={"seed": 7})
    assert (seen.error.type, seen.error.key, seen.error.phase) == ("ConfigError", "sampling.seed", "connect")
    assert seen.texts == []
    assert seen.result.rewards is None


# --- what does not pass the gateway --------------------------------------------------------------------------


@pytest.fixture
def visitor(agents_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentSpec:
    """An agent whose user has logged in."""
    declare(agents_dir, "visitor", **LOGIN)
    home = tmp_path / "home"
    (home / ".visitor").mkdir(parents=True)
    (home / ".visitor" / "auth.json").write_text('{"refresh": "an-old-session-of-mine"}')
    monkeypatch.setenv("HOME", str(home))
    return AgentSpec(name="visitor", model=f"acme/{MODEL}")


PUBLIC = 'network_mode = "public"'


def test_an_agent_that_logs_in_itself_is_on_record_as_such(
    module_jobs: Path, tmp_path: Path, visitor: AgentSpec
) -> None:
    turn = [{"run": "cp ~/.visitor/auth.json answer", "silent": True}]
    task = write_task(tmp_path, "visited", turn, environment=PUBLIC)
    seen = run_tasks([task], module_jobs, agents=[visitor])["visited"]
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert seen.session.model_access == "direct"
    (outcome,) = seen.result.steps
    assert (outcome.turn.turn_end, outcome.turn.usage) == ("inferred", None)
    assert not seen.paths.model_calls.exists()


@pytest.mark.parametrize(
    "said", [{"limits": {"calls": 3}}, {"sampling": {"temperature": 0}}], ids=lambda said: next(iter(said))
)
def test_what_only_the_gateway_can_do_is_refused_to_it(
    module_jobs: Path, tmp_path: Path, visitor: AgentSpec, said: dict[str, Any]
) -> None:
    task = write_task(tmp_path, f"refused-{next(iter(said))}", [{"say": "Never said."}], environment=PUBLIC)
    seen = run_file(module_jobs, task, visitor, **said)
    assert (seen.error.type, seen.error.key) == ("UnsupportedFeatureError", next(iter(said)))
    assert "logs in by itself" in seen.error.message
    assert seen.texts == []
