"""What `bench submit` refuses of a request for an agent, and what it shows of one, before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import Bench

pytestmark = pytest.mark.usefixtures("state")

CLAUDE = ["--agent", "claude", "--model", "anthropic/some-model"]


@pytest.fixture(autouse=True)
def keyless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user without a login or an agent of their own."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "BENCHFLOW_AGENTS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--agent", "claude", "--model", "nowhere/m"], "'claude-agent-acp' knows no provider 'nowhere'"),
        (["--agent", "claude:nowhere/m"], "remedy: use one of anthropic"),
        ([*CLAUDE, "--effort", "heroic"], "has no effort 'heroic'"),
        (["--agent", "opencode", "--effort", "high"], "effort"),
        ([*CLAUDE, "--base-url", "somewhere/v1"], "'somewhere/v1' is no address"),
        ([*CLAUDE, "--base-url", "ftp://somewhere/v1"], "remedy: write http://host:port/v1"),
        ([*CLAUDE, "--base-url", "http://[::1"], "'http://[::1' is no address"),
        ([*CLAUDE, "--base-url", "http://[::1"], "remedy: write http://host:port/v1"),
        ([*CLAUDE, "--base-url", "http://127.0.0.1:99999/v1"], "'http://127.0.0.1:99999/v1' is no address"),
        ([*CLAUDE, "--base-url", "http://host:port/v1"], "'http://host:port/v1' is no address"),
        ([*CLAUDE, "--base-url", "http:///v1"], "'http:///v1' is no address"),
        ([*CLAUDE, "--base-url", "http://:8000/v1"], "'http://:8000/v1' is no address"),
        ([*CLAUDE, "--base-url", "http://me:s3cr3t@host/v1"], "must not hold a password"),
        ([*CLAUDE, "--base-url", "http://me:s3cr3t@[::1/v1"], "must not hold a password"),
        (["--model", "m"], "agent 'oracle' uses no model"),
        (["--agent", "nop:m"], "agent 'nop' uses no model"),
        (["--agent", "policy"], "agent 'policy' has no model of its own"),
        (["--agent", "policy"], "remedy: name one: --model MODEL"),
        (["--agent", "acpx/nobody"], "there is no agent 'acpx/nobody'"),
        (["--agent", "acpx/opencod"], "did you mean 'acpx/opencode'?"),
        (["--agent", "acpx/oracle"], "acpx"),
        (["--agent-import-path", "no-where:Agent"], "'no-where:Agent' is not an import path"),
        (["--agent-import-path", "no_such_package:Agent"], "agent: no_such_package:Agent cannot be imported"),
        ([*CLAUDE, "--agent-env", "A-B=1"], "'A-B=1' names no variable"),
        ([*CLAUDE, "--permissions", "maybe"], "--permissions"),
        ([*CLAUDE, "--agent-idle-timeout", "0"], "--agent-idle-timeout: must be greater than 0"),
    ],
)
def test_a_request_that_an_agent_cannot_be_given_is_refused(
    bench: Bench, task: Path, state: Path, arguments: list[str], message: str
) -> None:
    ran = bench("submit", task, "--sandbox", "noop", "--dry-run", *arguments)
    assert ran.status == 2, ran.out
    assert message in ran.err
    assert "remedy: " in ran.err
    assert "s3cr3t" not in ran.err
    assert ran.out == ""
    assert not state.exists()


@pytest.mark.parametrize("address", ["http://[::1", "http://127.0.0.1:99999/v1", "http://:8000/v1", "ftp://host/v1"])
@pytest.mark.parametrize("key", [[], ["--judge-key", "OF_MINE"]])
def test_a_judge_at_what_is_no_address_is_refused(bench: Bench, task: Path, key: list[str], address: str) -> None:
    row = "{type: llm-judge, rubric: {criteria: [well done]}, model: openai/gpt-4.1}"
    document = task / "task.md"
    document.write_text(document.read_text().replace("verifier:\n", f"reward:\n  funcs:\n    - {row}\nverifier:\n", 1))
    ran = bench("submit", task, "--sandbox", "noop", "--dry-run", "--judge-base-url", address, *key)
    assert ran.status != 0, ran.out
    assert f"judge.base_url: '{address}' is not an address" in ran.err


def test_a_task_without_a_network_is_for_agents_that_call_their_model_through_the_gateway(
    bench: Bench, task: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    document = task / "task.md"
    document.write_text(document.read_text().replace("sandbox:\n", "sandbox:\n  network_mode: no-network\n"))
    assert bench("submit", task, *CLAUDE, "--sandbox", "local", "--dry-run").status == 0
    # One that logs in by itself calls by itself.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    login = tmp_path / "home" / ".claude" / ".credentials.json"
    login.parent.mkdir(parents=True)
    login.write_text("{}")
    ran = bench("submit", task, *CLAUDE, "--sandbox", "local", "--dry-run")
    assert ran.status == 2
    assert "the task's sandbox has no network, and agent 'claude-agent-acp' reaches its model over one" in ran.err
    assert "greet/task.md: network_mode" in ran.err
    assert bench("submit", task, "--agent", "nop", "--sandbox", "local", "--dry-run").status == 0


def test_a_value_for_an_agent_is_shown_to_nobody(bench: Bench, task: Path) -> None:
    given = ["--agent-env", "ACME_TOKEN=s3cr3t-value", "--agent-env", "ACME_REGION"]
    request = ["submit", task, *CLAUDE, *given, "--sandbox", "noop", "--job-name", "j", "--dry-run"]
    shown, listed = bench(*request), bench(*request, "--json")
    assert (shown.status, listed.status) == (0, 0), shown.err
    (agent,) = listed.json["agents"]
    assert agent["env"]["ACME_REGION"] == "${ACME_REGION}"
    assert agent["env"]["ACME_TOKEN"].startswith("${BENCHFLOW_AGENT_ACME_TOKEN_")
    assert "ACME_REGION" in listed.json["variables_not_set"]
    assert "s3cr3t" not in shown.out + shown.err + listed.out + listed.err


def test_a_value_for_an_agent_of_a_cluster_is_refused(
    bench: Bench, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    request = ["submit", task, *CLAUDE, "--sandbox", "noop", "--dry-run"]
    ran = bench(*request, "--agent-env", "ACME_TOKEN=s3cr3t-value")
    assert ran.status == 2
    assert "--agent-env: the value of ACME_TOKEN would be seen in the history of the cluster" in ran.err
    assert "export ACME_TOKEN where the workers run, and give --agent-env ACME_TOKEN" in ran.err
    assert "s3cr3t" not in ran.err
    assert bench(*request, "--agent-env", "ACME_TOKEN").status == 0


def test_an_agent_by_its_import_path_is_listed_with_what_it_was_given(
    bench: Bench, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"name": "imported", "description": "Mine.", "protocol": "acp", "launch": ["mine"]}
    (tmp_path / "agents_of_mine.py").write_text(f"RECORD = {json.dumps(record)}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ran = bench(
        *("submit", task, "--agent-import-path", "agents_of_mine:RECORD", "--sandbox", "noop"),
        *("--agent-env", "MODE", "--dry-run", "--json"),
    )
    assert ran.status == 0, ran.err
    (agent,) = ran.json["agents"]
    assert (agent["name"], agent["env"]) == ("imported", {"MODE": "${MODE}"})
