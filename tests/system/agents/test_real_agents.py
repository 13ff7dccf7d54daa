"""Real agents from the package index solve a real task against a scripted model.

One of them in every run, in a local sandbox. In a long run one of each wire format but Gemini's, and acpx in front of
one, all at once in Docker; the others in a longer one. What is scripted is the model alone: the agents, their tools,
the protocol, the sandbox and the verifier are what a user gets.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from support.made_once import made_once
from support.real_agents import (
    DONE,
    INSTRUCTION,
    PATHS,
    REPORT,
    STOCK,
    Asked,
    answer,
    effort_in,
    host_address,
    key_in,
    write_task,
)

from benchflow.contracts.config import JobConfig
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.jobs import plan_job, submit
from benchflow.paths import RolloutPaths, StatePaths
from benchflow.planes.agent.registry import find_agent
from benchflow.planes.agent.toolbox.toolbox_manifest import read_manifest
from benchflow.testing.scripted_model import ReceivedCall, ScriptedModel
from benchflow.trajectories.journal import read_journal

pytestmark = pytest.mark.agents

CHAT: dict[str, Any] = {"api": "openai-chat", "provider": "openai", "variable": "OPENAI_API_KEY"}

CLAUDE = Asked(
    "claude-agent-acp",
    "anthropic-messages",
    "anthropic",
    "ANTHROPIC_API_KEY",
    says="claude-cli/",
    by_name=True,
    effort="low",
)
AGENTS = [
    # It tells of the last call alone.
    Asked("opencode", **CHAT, says="opencode/"),
    Asked("acpx/opencode", **CHAT, says="opencode/"),
    CLAUDE,
    Asked(
        "codex-acp",
        "openai-responses",
        "openai",
        "OPENAI_API_KEY",
        says="benchflow/",
        raw=False,
        effort="xhigh",
    ),
    Asked("policy", "openai-chat", "openai", "POLICY_API_KEY", says="policy/"),
]

OTHERS = [
    Asked(
        "gemini",
        "gemini",
        "google",
        "GEMINI_API_KEY",
        says="GeminiCLI-acp/",
        raw=False,
        prints=False,
        by_name=True,
    ),
    Asked("pi-acp", **CHAT, says="pi (", raw=False, effort="low"),
    # Their toolboxes have 800 MB each, and take minutes to be built and to start on a small machine.
    Asked("openhands", **CHAT, says="OpenAI/Python", effort="low"),
    Asked("openclaw", **CHAT, says="OpenAI/JS"),
    Asked(
        "acpx/claude",
        "anthropic-messages",
        "anthropic",
        "ANTHROPIC_API_KEY",
        says="claude-cli/",
        effort="low",
    ),
]
"""Too much for a long run."""


@dataclass(frozen=True)
class Shown:
    """What a job of some agents left: their results by agent, and every call of the model."""

    results: dict[str, RolloutResult]
    calls: list[ReceivedCall]

    def of(self, asked: Asked) -> RolloutResult:
        return self.results[find_agent(asked.agent).name]

    def calls_of(self, asked: Asked) -> list[ReceivedCall]:
        """Those of its turn, not those on the side."""
        return [call for call in self.calls if call.dialect and not call.side and call.model == asked.model]

    def lines(self, asked: Asked) -> list[dict[str, Any]]:
        return read_journal(RolloutPaths(Path(str(self.of(asked).directory))).trajectory)

    def sessions(self, asked: Asked) -> Path:
        return RolloutPaths(Path(str(self.of(asked).directory))).sessions


@pytest.fixture(scope="module")
def stack_variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """No agents but our own."""
    keys = {asked.variable: asked.key for asked in (*AGENTS, *OTHERS) if asked.by_name}
    return {"XDG_CONFIG_HOME": str(tmp_path_factory.mktemp("config"))} | keys


def run(asked: Sequence[Asked], root: Path, sandbox: str) -> Shown:
    """Run all these agents at once, in one job."""

    async def results(model: ScriptedModel) -> list[RolloutResult]:
        config = JobConfig(
            paths=[write_task(root)],
            jobs_dir=root / "jobs",
            agents=[one.spec(model) for one in asked],
            sandbox=sandbox,
            concurrency=len(asked),
            # They start, and some are read from the disk for the first time, all on the same cores.
            sandbox_setup_timeout=300,
        )
        job = await submit(plan_job(config))
        await job.wait()
        return job.results()

    with ScriptedModel(answer, host=host_address() if sandbox == "docker" else "127.0.0.1") as model:
        found = {result.agent: result for result in asyncio.run(results(model))}
        assert model.unanswered == []
        return Shown(found, model.calls)


@pytest.mark.local
def test_a_real_agent_solves_a_task(module_jobs: Path, tmp_path: Path) -> None:
    shown = run([CLAUDE], tmp_path, "local")
    for check in (check_result, check_calls, check_trajectory, check_session, check_usage, check_journals):
        check(shown, CLAUDE)
    assert {effort_in(call) for call in shown.calls_of(CLAUDE)} == {CLAUDE.effort}


@made_once()
def shown(root: Path) -> Shown:
    return run(AGENTS, root, "docker")


each = pytest.mark.parametrize("asked", AGENTS, ids=lambda asked: asked.agent)


def in_docker(test: Any) -> Any:
    return pytest.mark.docker(pytest.mark.long(test))


@each
@in_docker
def test_a_real_agent_solves_the_task(shown: Shown, asked: Asked) -> None:
    check_result(shown, asked)


def check_result(shown: Shown, asked: Asked) -> None:
    result = shown.of(asked)
    assert (result.error, result.rewards, result.status) == (None, {"reward": 1.0}, "passed")
    # A local sandbox says what stands for the image.
    assert [text for text in result.warnings if not text.startswith("the host (")] == []
    (outcome,) = result.steps
    assert outcome.turn.stop_reason == "end_turn"
    assert result.n_tool_calls == 4


@each
@in_docker
def test_its_model_was_asked_by_it_with_the_key_that_it_was_given(shown: Shown, asked: Asked) -> None:
    check_calls(shown, asked)


def check_calls(shown: Shown, asked: Asked) -> None:
    calls = shown.calls_of(asked)
    assert [call.request.turn for call in calls if call.request] == [0, 1, 2, 3, 4]
    assert {key_in(call) for call in calls} == {asked.key}
    assert {call.path.startswith(PATHS[asked.api]) for call in calls} == {True}
    assert {asked.says in call.headers["user-agent"] for call in calls} == {True}
    # Nor had anybody else this key: what is asked on the side, of whatever model, is the agent's own.
    assert {call.model for call in shown.calls if key_in(call) == asked.key and not call.side} == {asked.model}


@in_docker
@pytest.mark.parametrize("asked", [asked for asked in AGENTS if asked.effort], ids=lambda asked: asked.agent)
def test_an_effort_reaches_the_model(shown: Shown, asked: Asked) -> None:
    assert {effort_in(call) for call in shown.calls_of(asked)} == {asked.effort}


@each
@in_docker
def test_its_trajectory_tells_what_it_did(shown: Shown, asked: Asked) -> None:
    check_trajectory(shown, asked)


def check_trajectory(shown: Shown, asked: Asked) -> None:
    lines = shown.lines(asked)
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    assert (lines[0]["type"], lines[0]["text"]) == ("user_message", INSTRUCTION.strip())
    calls: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line["type"] in ("tool_call", "tool_call_update"):
            calls.setdefault(line["tool_call_id"], []).append(line)
    assert [told[-1]["status"] for told in calls.values()] == ["completed"] * 4
    read, edit, command, write = (json.dumps(told) for told in calls.values())
    assert STOCK in read
    assert "pears: many" in edit
    assert f"sha256sum {STOCK}" in command
    assert REPORT in write
    assert (f"  {STOCK}" in command) == asked.prints
    for told in calls.values() if asked.raw else ():
        assert any(line.get("raw_input") for line in told) and any(line.get("raw_output") for line in told)
    assert DONE in "".join(line["text"] for line in lines if line["type"] == "agent_message")


@each
@in_docker
def test_what_it_says_of_itself_is_what_the_registry_says(shown: Shown, asked: Asked) -> None:
    check_session(shown, asked)


def check_session(shown: Shown, asked: Asked) -> None:
    (session,) = shown.of(asked).sessions
    record = find_agent(asked.agent)
    assert session.version == record.version
    assert session.user == "agent"
    if record.protocol == "acp" and record.session.rung == "load":
        assert session.capabilities["loadSession"] is True


@each
@in_docker
def test_the_tokens_that_it_used_are_on_record(shown: Shown, asked: Asked) -> None:
    check_usage(shown, asked)


def check_usage(shown: Shown, asked: Asked) -> None:
    """As the gateway has counted it, whatever the agent tells: the task's calls, and perhaps a title."""
    usage = shown.of(asked).steps[0].turn.usage
    assert usage is not None and usage.calls is not None and usage.calls >= 5
    assert 4100 <= usage.input_tokens <= 4200 and 220 <= usage.output_tokens <= 250
    assert usage.cached_tokens == 2400


@each
@in_docker
def test_its_journals_are_kept_without_its_key(shown: Shown, asked: Asked) -> None:
    check_journals(shown, asked)


def check_journals(shown: Shown, asked: Asked) -> None:
    root = shown.sessions(asked) / "0.0"
    held = root / "turn-0" if find_agent(asked.agent).protocol == "acpx" else root
    sent = [json.loads(line)["method"] for line in (held / "in.jsonl").read_text().splitlines() if '"method"' in line]
    assert sent[-1:] == ([] if held != root else ["session/prompt"])
    said = [json.loads(line) for line in (held / "out.jsonl").read_text().splitlines() if line.startswith("{")]
    assert {"stopReason": "end_turn"}.items() <= next(
        message["result"] for message in said if "stopReason" in (message.get("result") or {})
    ).items()
    assert (held / "err.log").is_file()
    for at, _, names in os.walk(str(shown.of(asked).directory)):
        assert not [name for name in names if asked.key.encode() in (Path(at) / name).read_bytes()]


@in_docker
def test_nothing_is_left_of_any_of_them(shown: Shown) -> None:
    check_remains(shown)


def check_remains(shown: Shown) -> None:
    client = docker.from_env()
    try:
        for result in shown.results.values():
            assert client.containers.list(all=True, filters={"name": result.sandbox["name"]}) == []
            assert not (StatePaths.default().sessions / result.sandbox["name"]).exists()
    finally:
        client.close()


def toolboxes_of(asked: Asked) -> dict[str, tuple[int, int]]:
    """The toolboxes of an agent on this host: which directory each is, and when what it says of itself was written."""
    found = StatePaths.default().toolboxes.glob(f"{find_agent(asked.agent).directory_name}-*")
    ours = [path for path in found if read_manifest(path).installed.libc == "glibc"]
    return {path.name: (path.stat().st_ino, (path / "toolbox.json").stat().st_mtime_ns) for path in ours}


@in_docker
def test_a_second_rollout_installs_nothing(shown: Shown, tmp_path: Path) -> None:
    # The one that starts soonest.
    policy = AGENTS[-1]
    before = toolboxes_of(policy)
    # One for each Python that it was asked for with.
    assert before
    again = run([policy], tmp_path, "docker")
    check_result(again, policy)
    assert toolboxes_of(policy) == before


@pytest.mark.docker
@pytest.mark.soak
@pytest.mark.parametrize("asked", OTHERS, ids=lambda asked: asked.agent)
def test_the_others_solve_the_task_too(asked: Asked, module_jobs: Path, tmp_path: Path) -> None:
    shown = run([asked], tmp_path, "docker")
    for check in (check_result, check_calls, check_trajectory, check_session, check_usage, check_journals):
        check(shown, asked)
    assert {effort_in(call) for call in shown.calls_of(asked)} == {asked.effort}
    check_remains(shown)
