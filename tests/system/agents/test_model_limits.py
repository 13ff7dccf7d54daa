"""What a job's file says of its model's calls: limits that end a turn, parameters of sampling, and what is refused."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.agent_world import Seen, declare, finished, write_task
from support.made_once import made_once
from support.model_world import MODEL, SOLVED, calls_of, main_calls, policy, runs, write_model_task

from benchflow.config_file import read_job_file
from benchflow.contracts.config import JobConfig
from benchflow.contracts.job import AgentSpec
from benchflow.jobs import Job, plan_job, submit
from benchflow.testing.scripted_model import ModelRequest, ReceivedCall, ScriptedModel

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


async def submit_file(jobs_dir: Path, task: Path, agent: AgentSpec, **said: Any) -> Job:
    """Submit one rollout as a YAML file asks for it, beside its agent."""
    file = task.parent / f"{task.name}.yaml"
    table = {"tasks_dir": [str(task)], "jobs_dir": str(jobs_dir), "sandbox": "local", "preflight": False} | said
    file.write_text(yaml.safe_dump(table))
    config = JobConfig.model_validate(read_job_file(file) | {"agents": [agent]})
    return await submit(plan_job(config))


def never_ends(request: ModelRequest) -> dict[str, Any]:
    """A model that finds something to do for ever."""
    return runs("echo 42 > answer", f"Step {request.turn}.")


@dataclass(frozen=True)
class Limited:
    """Rollouts by their task, and how often the model of each was asked."""

    seen: dict[str, Seen]
    asked: dict[str, list[ReceivedCall]]


# A call has 1050 tokens and costs 0.0001520 USD; the one that reaches a limit is the last.
LIMITS = {"calls": (3, 3), "total_tokens": (2101, 3), "input_tokens": (1500, 2), "cost_usd": (0.0003, 2)}
SAMPLING = {"temperature": 0.25, "top_p": 0.9, "max_tokens": 4000, "seed": 7}
PUBLIC = 'network_mode = "public"'


@made_once()
async def limited(root: Path) -> Limited:
    """Make all rollouts at once."""
    agents_dir, home = Path(os.environ["BENCHFLOW_AGENTS_DIR"]), root / "home"
    declare(agents_dir, "messenger", **MESSENGER)
    declare(agents_dir, "visitor", **LOGIN)
    (home / ".visitor").mkdir(parents=True)
    (home / ".visitor" / "auth.json").write_text('{"refresh": "an-old-session-of-mine"}')
    messenger = AgentSpec(name="messenger", model="anthropic/claude-haiku-4-5")
    visitor = AgentSpec(name="visitor", model=f"acme/{MODEL}")
    silent = [{"say": "Never said."}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BF_TEST_MESSENGER_KEY", "a-key-of-no-worth")
        patch.setenv("HOME", str(home))
        async with (
            ScriptedModel(never_ends) as endless,
            ScriptedModel(SOLVED) as solving,
            ScriptedModel(SOLVED) as unasked,
        ):
            own = policy(solving)
            own = own.model_copy(update={"env": own.env | {"POLICY_TEMPERATURE": "1", "POLICY_MAX_TOKENS": "100"}})
            unpriced = policy(unasked, model="openai/nobody-sells-this")
            visits = [{"run": "cp ~/.visitor/auth.json answer", "silent": True}]
            jobs_dir = root / "jobs"
            jobs = [
                await submit_file(
                    jobs_dir, write_model_task(root, "limited-calls"), policy(endless), limits={"calls": 3}
                ),
                await submit_file(
                    jobs_dir,
                    write_model_task(root, "sampled"),
                    own,
                    sampling=SAMPLING,
                    limits={"calls": 2, "cost_usd": 1},
                ),
                await submit_file(jobs_dir, write_model_task(root, "unpriced"), unpriced, limits={"cost_usd": 1}),
                await submit_file(jobs_dir, write_task(root, "seeded", silent), messenger, sampling={"seed": 7}),
                await submit_file(jobs_dir, write_task(root, "visited", visits, environment=PUBLIC), visitor),
                await submit_file(
                    jobs_dir,
                    write_task(root, "visitor-limits", silent, environment=PUBLIC),
                    visitor,
                    limits={"calls": 3},
                ),
                await submit_file(
                    jobs_dir,
                    write_task(root, "visitor-sampling", silent, environment=PUBLIC),
                    visitor,
                    sampling={"temperature": 0},
                ),
            ]
            seen = {name: one for job in jobs for name, one in (await finished(job)).items()}
            asked = {"limited-calls": endless.calls, "sampled": solving.calls, "unpriced": unasked.calls}
            return Limited(seen, asked)


# --- limits ----------------------------------------------------------------------------------------------


def test_a_limit_ends_the_turn_and_what_was_done_is_scored(limited: Limited) -> None:
    check_limit(limited.seen["limited-calls"], "calls", len(limited.asked["limited-calls"]))


@pytest.mark.long
@pytest.mark.parametrize("name", ["total_tokens", "input_tokens", "cost_usd"])
async def test_every_limit_ends_the_turn(module_jobs: Path, tmp_path: Path, name: str) -> None:
    async with ScriptedModel(never_ends) as model:
        task = write_model_task(tmp_path, f"limited-{name}")
        job = await submit_file(tmp_path / "jobs", task, policy(model), limits={name: LIMITS[name][0]})
        check_limit((await finished(job))[task.name], name, len(model.calls))


def check_limit(seen: Seen, name: str, asked: int) -> None:
    calls = LIMITS[name][1]
    assert asked == calls
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


def test_a_limit_that_is_not_reached_changes_nothing(limited: Limited) -> None:
    seen = limited.seen["sampled"]
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert seen.result.steps[0].turn.stop_reason == "end_turn"


def test_money_is_no_limit_where_nobody_knows_the_price(limited: Limited) -> None:
    seen = limited.seen["unpriced"]
    assert limited.asked["unpriced"] == []
    assert (seen.error.type, seen.error.key) == ("ConfigError", "limits.cost_usd")
    assert "nobody-sells-this" in seen.error.message
    assert seen.result.rewards is None


# --- sampling ----------------------------------------------------------------------------------------------


def test_sampling_reaches_the_model_whatever_the_agent_asks(limited: Limited) -> None:
    seen = limited.seen["sampled"]
    asked = [call.body for call in limited.asked["sampled"]]
    assert seen.result.rewards == {"reward": 1.0}
    assert [(body["temperature"], body["top_p"], body["seed"]) for body in asked] == [(0.25, 0.9, 7)] * 2
    # The agent's own is lower.
    caps = [body.get("max_completion_tokens", body.get("max_tokens")) for body in asked]
    assert caps == [100, 100]
    for call in main_calls(calls_of(seen)):
        assert call.request["request"]["temperature"] == 1
        assert call.request["sampling_applied"]["temperature"] == 0.25


def test_a_parameter_that_an_endpoint_does_not_have_is_refused(limited: Limited) -> None:
    seen = limited.seen["seeded"]
    assert (seen.error.type, seen.error.key, seen.error.phase) == ("ConfigError", "sampling.seed", "connect")
    assert seen.texts == []
    assert seen.result.rewards is None


# --- what does not pass the gateway --------------------------------------------------------------------------


def test_an_agent_that_logs_in_itself_is_on_record_as_such(limited: Limited) -> None:
    seen = limited.seen["visited"]
    assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
    assert seen.session.model_access == "direct"
    (outcome,) = seen.result.steps
    assert (outcome.turn.turn_end, outcome.turn.usage) == ("inferred", None)
    assert not seen.paths.model_calls.exists()


@pytest.mark.parametrize("said", ["limits", "sampling"])
def test_what_only_the_gateway_can_do_is_refused_to_it(limited: Limited, said: str) -> None:
    seen = limited.seen[f"visitor-{said}"]
    assert (seen.error.type, seen.error.key) == ("UnsupportedFeatureError", said)
    assert "logs in by itself" in seen.error.message
    assert seen.texts == []
