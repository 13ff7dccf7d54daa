"""`bench agent …`: the table, one record, and a check of one agent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.command_line import Bench

ANSWERS = """
import json, sys
request = json.loads(sys.stdin.readline())
info = {"name": "mine", "version": sys.argv[1]}
result = {"protocolVersion": 1, "agentInfo": info, "agentCapabilities": {"loadSession": True}, "authMethods": []}
print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the user's own, of an agent that says it is version 1.0."""
    program = tmp_path / "mine.py"
    program.write_text(ANSWERS)
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", str(tmp_path))
    file = tmp_path / "mine.toml"
    file.write_text(
        f'name = "mine"\ndescription = "My own."\nprotocol = "acp"\nversion = "1.0"\n'
        f'launch = ["{sys.executable}", "{program}", "1.0"]\nsession = {{ rung = "load" }}\n'
    )
    return file


def test_the_table_shows_what_one_chooses_by(bench: Bench) -> None:
    out = bench("agent", "list").out
    for word in ("opencode", "claude, ", "1.18.33", "acp", "config_option", "replay"):
        assert word.rstrip(", ") in out


def test_the_list_in_json_is_the_registry(bench: Bench) -> None:
    agents = {agent["name"]: agent for agent in bench("agent", "list", "--json").json["agents"]}
    assert agents["codex-acp"]["session"]["mode"] == "agent-full-access"
    assert agents["openhands"]["install"]["runtime"] == "python"


def test_an_agent_is_shown_by_its_alias_with_its_hazards(bench: Bench) -> None:
    out = bench("agent", "show", "claude").out
    assert "@agentclientprotocol/claude-agent-acp 0.100.0" in out
    assert "ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN" in out
    assert "elicitation/create" in out
    assert [line.split() for line in out.splitlines() if line.lstrip().startswith("rung")] == [["rung", "load"]]


def test_an_agent_of_the_users_own_is_listed_and_shown(bench: Bench, mine: Path) -> None:
    assert "My own." in bench("agent", "list").out
    assert str(mine) in bench("agent", "show", "mine").out


def test_a_check_that_passes(bench: Bench, mine: Path) -> None:
    ran = bench("agent", "check", "mine")
    assert ran.status == 0, ran.err
    assert "mine 1.0, started in" in ran.out
    assert "loadSession" in ran.out
    assert "rung      load\n" in ran.out


def test_a_check_in_json(bench: Bench, mine: Path) -> None:
    ran = bench("agent", "check", "mine", "--json")
    assert (ran.status, ran.json["ok"], ran.json["capabilities"]) == (0, True, {"loadSession": True})


def test_a_check_that_finds_a_problem_fails(bench: Bench, mine: Path) -> None:
    mine.write_text(mine.read_text().replace('version = "1.0"', 'version = "2.0"'))
    ran = bench("agent", "check", "mine")
    assert ran.status == 1
    assert "it says that it is version 1.0, the registry says 2.0" in ran.out


def test_an_agent_that_does_not_start_is_an_error(bench: Bench, mine: Path) -> None:
    mine.write_text(mine.read_text().replace('"1.0"]', '"1.0", "x"]').replace("mine.py", "nothing.py"))
    ran = bench("agent", "check", "mine", "--json")
    assert ran.status == 1
    assert ran.json["error"]["category"] == "agent_exit"
    assert "nothing.py" in ran.err


def test_a_file_that_is_wrong_is_named(bench: Bench, mine: Path) -> None:
    mine.write_text(mine.read_text().replace("launch", "lanch"))
    ran = bench("agent", "list")
    assert ran.status == 2
    assert f"{mine}: lanch: is not a known key" in ran.err


@pytest.mark.docker
def test_an_agent_without_a_key_is_refused_by_its_name(
    bench: Bench, task: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    ran = bench("submit", task, "--agent", "opencode", "--model", "openai/some-model", "--sandbox", "docker")
    assert ran.status == 2
    assert "'opencode' has nothing to log in with" in ran.err
    assert "export OPENAI_API_KEY" in ran.err
