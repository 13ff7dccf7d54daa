"""Agents behind acpx: which there are, and what of acpx's output is heard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.agent_record import ChoiceChannel
from benchflow.errors import ACPError, ConfigError, UnsupportedFeatureError
from benchflow.planes.agent.account import SandboxAccount
from benchflow.planes.agent.acp.events import Reading
from benchflow.planes.agent.acp.wire import OutputLine
from benchflow.planes.agent.acpx import Choices, make_choices
from benchflow.planes.agent.acpx.acpx_session import AcpxSession
from benchflow.planes.agent.acpx.acpx_stream import AcpxStream
from benchflow.planes.agent.notes import Message
from benchflow.planes.agent.registry import find_agent, load_agents

# --- which there are -------------------------------------------------------------------------------------


def test_an_agent_behind_acpx_is_the_agent_with_acpx_beside_it() -> None:
    inner, record = find_agent("opencode"), find_agent("acpx/opencode")
    assert record.name == "acpx/opencode"
    assert record.protocol == "acpx"
    assert record.version == f"0.19.1-{inner.version}"
    assert record.install is not None and inner.install is not None
    assert record.install.packages == {**inner.install.packages, "acpx": "0.19.1"}
    assert record.mount_path == f"/opt/benchflow/agents/acpx-opencode-0.19.1-{inner.version}"
    assert (record.launch, record.endpoints, record.model) == (inner.launch, inner.endpoints, inner.model)
    assert record.env.items() > inner.env.items()
    assert set(record.session.hazards) > set(inner.session.hazards)
    assert record.home_dirs == (*inner.home_dirs, ".acpx")


def test_an_alias_may_stand_behind_acpx() -> None:
    assert find_agent("acpx/claude").name == "acpx/claude-agent-acp"


def test_a_name_behind_acpx_that_nobody_has_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="there is no agent 'acpx/opncode'") as caught:
        find_agent("acpx/opncode")
    assert "did you mean 'acpx/opencode'?" in str(caught.value)


@pytest.mark.parametrize("name", ["oracle", "nop", "openhands"])
def test_an_agent_that_acpx_cannot_drive_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=f"agent '{name}'"):
        find_agent(f"acpx/{name}")


def test_acpx_is_no_agent_by_itself() -> None:
    assert "acpx" not in load_agents()
    with pytest.raises(ConfigError, match="there is no agent 'acpx'"):
        find_agent("acpx")


def test_a_user_cannot_name_an_agent_as_if_it_were_behind_acpx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", str(tmp_path))
    table = 'name = "acpx/mine"\ndescription = "Mine."\nprotocol = "acp"\nlaunch = ["mine"]\n'
    (tmp_path / "mine.toml").write_text(table)
    with pytest.raises(ConfigError, match="acpx/"):
        find_agent("mine")


def test_what_a_session_is_told_is_what_its_record_leaves_to_sessions() -> None:
    claude, codex, pi = find_agent("acpx/claude"), find_agent("acpx/codex"), find_agent("acpx/pi")
    assert make_choices(claude, "opus", "high") == Choices("opus", None, {"effort": "high"})
    assert make_choices(codex, "gpt", "high") == Choices(None, "agent-full-access")
    assert make_choices(pi, "model", "low") == Choices(None, None, {"thought_level": "low"})
    by_mode = pi.model_copy(update={"effort": ChoiceChannel(by="mode", value="{effort}")})
    assert make_choices(by_mode, "model", "low") == Choices(None, "low")


def test_an_agent_behind_acpx_can_ask_nobody(tmp_path: Path) -> None:
    nowhere: Any = None
    given: dict[str, Any] = {"pump": (), "argv": (), "inner": (), "env": {}, "cwd": "/"}
    with pytest.raises(UnsupportedFeatureError, match="cannot wait"):
        AcpxSession(nowhere, tmp_path, account=SandboxAccount("root", 0, 0, "/root"), permissions="ask", **given)


# --- what is heard ---------------------------------------------------------------------------------------


def heard(*messages: Message | bytes) -> tuple[AcpxStream, list[Message]]:
    stream, lines = AcpxStream(Reading()), []
    for message in messages:
        raw = message if isinstance(message, bytes) else json.dumps(message).encode()
        lines += stream.read_line(OutputLine(0, raw, None if isinstance(message, bytes) else message))
    return stream, lines


def said(text: str) -> Message:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"update": update}}


PROMPT: Message = {"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": {}}
END: Message = {"jsonrpc": "2.0", "id": 2, "result": {"stopReason": "end_turn", "usage": {"inputTokens": 7}}}


def test_an_answer_to_the_agent_is_not_taken_for_the_end_of_the_turn() -> None:
    ask: Message = {"jsonrpc": "2.0", "id": 2, "method": "session/request_permission", "params": {"toolCall": {}}}
    answer: Message = {"jsonrpc": "2.0", "id": 2, "result": {"outcome": {"outcome": "cancelled"}}}
    stream, lines = heard(PROMPT, ask, answer)
    assert [line["type"] for line in lines] == ["permission_request", "permission_answer"]
    assert stream.result is None
    stream, _ = heard(PROMPT, ask, answer, END)
    assert stream.result == END["result"]


def test_a_refusal_of_what_the_agent_asked_is_not_taken_for_one_of_the_prompt() -> None:
    read: Message = {"jsonrpc": "2.0", "id": 2, "method": "fs/read_text_file", "params": {"path": "/none"}}
    refused: Message = {"jsonrpc": "2.0", "id": 2, "error": {"code": -32603, "message": "no"}}
    stream, lines = heard(PROMPT, read, refused)
    assert [line["type"] for line in lines] == ["client_request"]
    assert stream.failure is None
    stream, _ = heard(PROMPT, read, refused, refused)
    assert isinstance(stream.failure, ACPError)


def test_what_a_session_repeats_before_the_prompt_is_not_said_in_this_turn() -> None:
    _, lines = heard(said("old"), PROMPT, said("new"), END)
    assert [line.get("text") for line in lines if line["type"] == "agent_message"] == ["new"]


def test_stray_text_is_kept() -> None:
    _, lines = heard(PROMPT, b"Warning: hm", END)
    assert lines == [{"type": "noise", "text": "Warning: hm"}]


@pytest.mark.parametrize("what", [b'{"jsonrpc": "2.0", "id"', b"\xff\xfe", {"jsonrpc": "2.0"}, {"id": 3}])
def test_garbage_ends_the_turn(what: Message | bytes) -> None:
    with pytest.raises(ACPError, match="acpx wrote"):
        heard(PROMPT, what)
