"""Python agents on the command line: listed, shown, checked and submitted."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Bench

pytestmark = pytest.mark.usefixtures("state")


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "here"
    directory.mkdir()
    (directory / "shown_agent.py").write_text('async def act(turn):\n    """Act as shown."""\n')
    monkeypatch.chdir(directory)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_one_is_shown(bench: Bench) -> None:
    ran = bench("agent", "show", "shown_agent:act")
    assert ran.status == 0, ran.err
    for text in ("Act as shown.", "Python code", "shown_agent:act", "load"):
        assert text in ran.out
    assert bench("agent", "show", "shown_agent:act", "--json").json["protocol"] == "python"


def test_there_is_nothing_to_check(bench: Bench) -> None:
    ran = bench("agent", "check", "shown_agent:act")
    assert ran.status == 2
    assert "is Python code, and was imported: there is nothing to check" in ran.err


def test_one_is_submitted_with_and_without_a_model(bench: Bench, task: Path) -> None:
    request = ("submit", task, "--agent-import-path", "shown_agent:act", "--sandbox", "noop", "--dry-run", "--json")
    ran = bench(*request)
    assert ran.status == 0, ran.err
    (agent,) = ran.json["agents"]
    assert agent["name"] == "shown_agent.act"
    refused = bench(*request, "--model", "nowhere/m")
    assert "knows no provider 'nowhere'" in refused.err
    assert bench(*request, "--model", "m", "--base-url", "http://127.0.0.1:1/v1").status == 0
