"""Runs of real agents, replayed from the records of their model calls, with the model switched off.

Strictly: each must ask what it asked before, in a new sandbox, at another time, under another name, or it fails. Three
agents of three wire formats, without a network, in one job.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.agent_world import Seen
from support.made_once import made_once
from support.model_world import calls_of, main_calls
from support.real_agents import Api, Asked, answer, write_task

from benchflow.cli.chosen import choose
from benchflow.cli.resume import plan_replay
from benchflow.contracts.config import JobConfig
from benchflow.gateway.form_difference import is_prefix
from benchflow.gateway.normal_form import Normaliser
from benchflow.jobs import Job, JobPlan, plan_job, submit
from benchflow.testing.scripted_model import ScriptedModel

pytestmark = [pytest.mark.docker, pytest.mark.agents, pytest.mark.long]

APIS: dict[str, tuple[Api, str, str]] = {
    "opencode": ("openai-chat", "openai", "OPENAI_API_KEY"),
    "claude-agent-acp": ("anthropic-messages", "anthropic", "ANTHROPIC_API_KEY"),
    "codex-acp": ("openai-responses", "openai", "OPENAI_API_KEY"),
}
AGENTS = [Asked(name, api, provider, variable, says="") for name, (api, provider, variable) in APIS.items()]

ARTIFACTS = 'artifacts = ["/app/stock.txt", "/app/report.txt"]\n'
OFFLINE = '[environment]\nnetwork_mode = "no-network"\n'

_PASSING = re.compile(
    # What is made up anew in each run, and points of time.
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[\d:.]+Z?|\b1[78]\d{8,11}\b"
)
_TEXTS = ("agent_message", "agent_thought")

TELLS_AT_ONCE = ("claude-agent-acp", "codex-acp")
"""Tells of several things at once (a call and the question for permission, its commands and its usage), so that any
of them may come first in any of its runs."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Twice:
    """A rollout, and its replay."""

    first: Seen
    again: Seen


@made_once()
def runs(root: Path) -> dict[str, Twice]:
    task, jobs_dir = write_task(root), root / "jobs"
    config = task / "task.toml"
    config.write_text(ARTIFACTS + config.read_text() + OFFLINE)
    options: dict[str, Any] = {"sandbox": "docker", "concurrency": 3, "sandbox_setup_timeout": 300}
    with ScriptedModel(answer) as model:
        agents = [asked.spec(model) for asked in AGENTS]
        asked = JobConfig(paths=[task], jobs_dir=jobs_dir, job_name="first", agents=agents, **options)
        (job,) = asyncio.run(_run(plan_job(asked)))
        assert model.unanswered == []
    # From here on nobody answers at that address.
    first = {result.agent: Seen(result) for result in job.results()}
    plans = [
        plan_replay(
            choose(f"first/{seen.result.rollout_name}", jobs_dir), until=None, strict=True, job_name=f"again-{agent}"
        )
        for agent, seen in first.items()
    ]
    again = {result.agent: Seen(result) for job in asyncio.run(_run(*plans)) for result in job.results()}
    return {agent: Twice(first[agent], again[agent]) for agent in APIS}


async def _run(*plans: JobPlan) -> list[Job]:
    jobs = [await submit(plan) for plan in plans]
    for job in jobs:
        await job.wait()
    return jobs


each = pytest.mark.parametrize("agent", APIS)


@each
def test_both_runs_solve_the_task(runs: dict[str, Twice], agent: str) -> None:
    for seen in (runs[agent].first, runs[agent].again):
        assert (seen.result.error, seen.result.rewards) == (None, {"reward": 1.0})
        assert seen.session.model_access == "gateway"


@each
def test_every_call_of_the_replay_is_answered_from_the_record(runs: dict[str, Twice], agent: str) -> None:
    first, again = main_calls(calls_of(runs[agent].first)), main_calls(calls_of(runs[agent].again))
    assert {call.request["source"] for call in first} == {"live"}
    assert {call.request["source"] for call in again} == {"replay"}
    assert [call.response["response"] for call in again] == [call.response["response"] for call in first]
    replay = runs[agent].again.result.steps[0].turn.replay
    assert replay is not None
    assert (replay.state, replay.left, replay.divergence) == ("replaying", 0, None)


@each
def test_the_replay_leaves_the_same_files(runs: dict[str, Twice], agent: str) -> None:
    first, again = (_files(seen.paths.artifacts) for seen in (runs[agent].first, runs[agent].again))
    assert len(first) == 2
    assert again == first


def _files(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


@each
def test_the_replay_tells_of_the_same(runs: dict[str, Twice], agent: str) -> None:
    first, again = _by_what(told(runs[agent].first)), _by_what(told(runs[agent].again))
    assert len([name for name in first if name.startswith("tool call")]) == 4
    assert again == first


@pytest.mark.parametrize("agent", [agent for agent in APIS if agent not in TELLS_AT_ONCE])
def test_the_replay_tells_it_in_the_same_order(runs: dict[str, Twice], agent: str) -> None:
    first, again = told(runs[agent].first), told(runs[agent].again)
    assert len(first) > 6
    assert again == first


def _by_what(lines: list[str]) -> dict[str, list[Json]]:
    """The lines by their type, each tool call as it was in the end, updates without their order."""
    found: dict[str, list[Json]] = {}
    for line in map(json.loads, lines):
        kind = line.pop("type")
        if kind in ("tool_call", "tool_call_update"):
            (call,) = found.setdefault(f"tool call {line['tool_call_id']}", [{"meta": {}, "printed": ""}])
            # What a command prints comes in pieces, before its end or with it.
            meta = line.pop("meta", None) or {}
            call["printed"] += (meta.pop("terminal_output_delta", None) or {}).get("data", "")
            call["meta"].update(meta)
            call.update(line)
        else:
            found.setdefault(kind, []).append(line)
    found.get("update", []).sort(key=lambda line: json.dumps(line, sort_keys=True))
    return found


def told(seen: Seen) -> list[str]:
    """The lines without what is new in every run; a text that came in pieces is one, wherever it was cut."""
    lines: list[dict[str, Any]] = []
    for line in seen.lines:
        kept = {key: value for key, value in line.items() if key not in ("seq", "ts")}
        if kept.get("update", {}).get("sessionUpdate") == "available_commands_update":
            # It is about the session, and may come before the first turn, too.
            continue
        if lines and kept["type"] in _TEXTS and lines[-1]["type"] == kept["type"]:
            lines[-1]["text"] += kept["text"]
        else:
            lines.append(kept)
    return [_PASSING.sub("*", json.dumps(line, sort_keys=True)) for line in lines]


@each
def test_each_call_begins_with_the_one_before_it(runs: dict[str, Twice], agent: str) -> None:
    rules = Normaliser.of(agent, APIS[agent][0])
    for seen in (runs[agent].first, runs[agent].again):
        bodies = [call.request["request"] for call in main_calls(calls_of(seen))]
        assert len(bodies) == 5
        for before, after in itertools.pairwise(bodies):
            found = is_prefix(before, after, rules)
            assert found, found.diff
