"""One turn of a real agent process in a real sandbox: what is heard of it, how it fails, and who takes it over."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.acp_room import CWD, KINDS, LOG, PATIENT, SELDOM_ON_LOCAL, USER, DemoSession, Room, Worker, room_in

from benchflow.errors import ACPError, AgentError, AgentExitError, AgentTimeoutError
from benchflow.planes.agent.acp import session as session_module
from benchflow.planes.agent.acp.client import Client
from benchflow.planes.agent.acp.events import Reading
from benchflow.planes.agent.acp.limits import Limits
from benchflow.planes.agent.acp.process import RUN_DIRECTORY
from benchflow.planes.agent.acp.wire import Message, Wire
from benchflow.planes.agent.toolbox import Toolbox
from benchflow.testing.sandbox_conformance.fixtures import awake, nap
from benchflow.testing.waiting import until
from benchflow.trajectories.journal import read_journal


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def room(kind: str, state: Path, tmp_path: Path, runtime: Toolbox, base_image: str) -> AsyncIterator[Room]:
    async with room_in(kind, tmp_path / "agent", runtime, base_image) as made:
        yield made


LOCALLY = pytest.mark.parametrize("kind", KINDS[:1], indirect=True)
"""For what is about the agent and not about where it is."""

EARLY = json.dumps({"jsonrpc": "2.0", "id": "prompt-0", "result": {"stopReason": "end_turn"}})
"""The answer to the first prompt, for the agent to write at a moment of ours."""


def message_of(text: str) -> str:
    """An agent's message as it is on the wire, with every special character escaped."""
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": {"update": update}})


# --- what is heard ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", [None, "text", {}, {"sessionUpdate": ["a"]}, {"sessionUpdate": "tool_call"}])
def test_an_update_that_makes_no_sense_is_kept_as_it_came(update: Any) -> None:
    assert Reading().lines(update) == [{"type": "update", "update": update}]


def test_usage_that_makes_no_sense_counts_as_nothing() -> None:
    reading = Reading()
    reading.end({"usage": {"inputTokens": float("inf"), "outputTokens": "many", "cachedReadTokens": -1}})
    assert reading.usage is not None and reading.usage.model_dump(exclude_none=True) == dict.fromkeys(
        ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"), 0
    )


async def test_a_turn_is_heard_whole_once_and_in_order(room: Room) -> None:
    unknown = {"sessionUpdate": "mood_update", "mood": {"deep": ["fine"]}}
    form = {"type": "object", "properties": {"name": {"type": "string", "default": "Ada"}}, "required": ["name"]}
    options = [["no", "reject_once"], ["always", "allow_always"], ["yes", "allow_once"]]
    usage = {"inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 3, "thoughtTokens": 2}
    agent = await room.open(
        {"say": "hello", "chunks": 2},
        {"think": "hmm"},
        {"plan": ["first"]},
        {"ask": "may I?", "options": options, "record": "record"},
        {"elicit": "who?", "schema": form, "record": "record"},
        {"update": unknown},
        {"tool_call": {"title": "late", "rawInput": {"a": 1}}, "announce": False},
        {"raw": "Loading the model..."},
        {"raw": json.dumps({"jsonrpc": "2.0", "method": "_vendor/notice", "params": {"n": 1}})},
        {"raw": message_of("half of a pair: \ud83d")},
        {"repeat": 300, "do": [{"say": "update {i}"}]},
        {"usage": {"used": 1, "size": 2, "cost": {"amount": 0.5, "currency": "EUR"}}},
        {"end": "end_turn", "usage": usage},
    )
    turn = await agent.prompt()
    assert (turn.stop_reason, turn.ended_by) == ("end_turn", None)
    assert await room.recorded() == ["yes", {"action": "accept", "content": {"name": "Ada"}}]
    assert [line["type"] for line in agent.lines[:16]] == [
        *("agent_message", "agent_message", "agent_thought", "plan"),
        *("tool_call", "permission_request", "permission_answer", "tool_call_update"),
        *("elicitation_request", "elicitation_answer", "update", "tool_call"),
        *("noise", "notification", "agent_message", "agent_message"),
    ]
    assert agent.texts() == ["hel", "lo", "half of a pair: \ud83d", *(f"update {number}" for number in range(300))]
    assert agent.of("update")[0] == {"type": "update", "update": unknown}
    assert agent.of("permission_answer")[0]["result"] == {"outcome": {"outcome": "selected", "optionId": "yes"}}
    unannounced = agent.of("tool_call")[1]
    assert (unannounced["tool_call_id"], unannounced["status"]) == ("call_2", "completed")
    assert turn.reading.usage is not None
    assert turn.reading.usage.model_dump() == {
        "calls": None,
        "input_tokens": 10,
        "output_tokens": 5,
        "cached_tokens": 3,
        "reasoning_tokens": 2,
        "cost": 0.5,
        "currency": "EUR",
    }

    # Whoever asks again hears the same, and the agent nothing more.
    before = await room.received()
    again = DemoSession(room, room.session(), agent.id)
    assert (await again.prompt()).reading.usage == turn.reading.usage
    assert again.lines == agent.lines
    assert await room.received() == before


@LOCALLY
async def test_a_turn_that_was_over_in_time_is_in_time_whenever_it_is_heard(room: Room) -> None:
    agent = await room.open({"repeat": 20, "do": [{"say": "u{i}"}]})
    await agent.prompt()
    late = DemoSession(room, room.session(), agent.id)
    turn = await late.prompt(Limits(wall=0.0, idle=0.0))
    assert (turn.stop_reason, turn.ended_by) == ("end_turn", None)
    assert late.lines == agent.lines
    assert "session/cancel" not in [message.get("method") for message in await room.received()]


@LOCALLY
async def test_what_comes_after_the_answer_is_heard_and_the_next_turn_begins_behind_it(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine what comes next may take a while.
    monkeypatch.setattr(session_module, "SILENCE", 2.0)
    agent = await room.open({"raw": EARLY}, {"raw": message_of("one more thing")})
    assert (await agent.prompt()).stop_reason == "end_turn"
    assert agent.texts() == ["one more thing"]
    agent.lines.clear()
    assert (await agent.prompt(request="prompt-1")).stop_reason == "end_turn"
    assert agent.texts() == ["Done."]


async def test_the_agent_reaches_none_of_its_files(room: Room) -> None:
    seen = f"ls {RUN_DIRECTORY}; cat {RUN_DIRECTORY}/in; echo 0 >{RUN_DIRECTORY}/exit; mv {RUN_DIRECTORY} /tmp/mine"
    # The shell's parent is the agent, and the agent's is the pump.
    above = 'pump=$(awk "/^PPid/ {print \\$2}" /proc/$PPID/status); ls /proc/$pump/fd; cat /proc/$pump/environ; '
    agent = await room.open(
        {"run": seen, "silent": True, "record": "record"},
        {"run": above + "kill -9 $pump", "silent": True, "record": "record"},
        {"run": "id -un; id -G", "silent": True, "record": "record"},
    )
    await agent.prompt()
    files, process, who = await room.recorded()
    assert files["output"].lower().count("permission denied") == 4, files
    assert files["code"] != 0
    assert process["output"].lower().count("permission denied") == 2, process
    assert "not permitted" in process["output"].lower(), process
    assert who["output"].split()[0] == USER and len(who["output"].split()) == 2
    assert room.wire.ended() is None


# --- how it fails ----------------------------------------------------------------------------------------

TROUBLE: dict[str, tuple[list[Message], type[AgentError], str]] = {
    "exits": ([{"exit": 3}], AgentExitError, "exit status 3"),
    "is killed": ([{"exit": -9}], AgentExitError, "signal SIGKILL"),
    "dies in half a line": ([{"half_line": True}], AgentExitError, "exit status 1"),
    "exits beside a daemon": ([{"daemon": "sleep 99999", "keeps_stdout": True}, {"exit": 4}], AgentExitError, "4"),
    "writes invalid UTF-8": ([{"invalid_utf8": True}], ACPError, "broken message"),
    "writes half a message": ([{"raw": '{"jsonrpc": "2.0", "method'}], ACPError, "broken message"),
    "writes other JSON": ([{"raw": '{"hello": "world"}'}], ACPError, "not JSON-RPC"),
    "writes a batch": ([{"raw": '[{"jsonrpc": "2.0"}]'}], ACPError, "broken message"),
    "answers a wrong id": ([{"wrong_id": True}], ACPError, "never made: 987654"),
    "answers with an error": ([{"error": "no such model", "code": -32001}], ACPError, "no such model"),
}


@LOCALLY
@pytest.mark.parametrize("name", TROUBLE)
async def test_an_agent_that_breaks_off_is_a_typed_error(
    room: Room, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its log comes by a pipe of its own, and may come later.
    monkeypatch.setattr(session_module, "LAST_LOG", 60.0)
    actions, error, said = TROUBLE[name]
    agent = await room.open({"say": "so far"}, {"stderr": "something is wrong here"}, *actions, {"hang": True})
    with pytest.raises(error, match=said) as caught:
        await agent.prompt()
    assert "something is wrong here" in (caught.value.log_tail or "")
    assert agent.texts()[:1] == ["so far"]


async def test_an_agent_that_exits_says_how_wherever_it_is(room: Room) -> None:
    agent = await room.open({"say": "so far"}, {"stderr": "out of luck"}, {"half_line": True, "code": 7})
    with pytest.raises(AgentExitError, match="exit status 7") as caught:
        await agent.prompt()
    assert caught.value.log_tail == "out of luck"
    assert agent.texts() == ["so far"]
    assert not (room.wire.directory / "out").read_bytes().endswith(b"\n")
    # So says whoever comes later, even when the time of the turn is over.
    again = DemoSession(room, room.session(), agent.id)
    with pytest.raises(AgentExitError, match="exit status 7"):
        await again.prompt(Limits(wall=0.0))
    assert again.lines == agent.lines


@LOCALLY
async def test_an_agent_that_cannot_be_started_says_so(room: Room) -> None:
    await room.start("/opt/not-there")
    with pytest.raises(AgentExitError, match=r"could not be started: .*not-there"):
        await room.session().call("initialize", "initialize", {}, PATIENT)


@LOCALLY
async def test_a_request_that_is_not_answered_in_time_is_a_timeout(room: Room) -> None:
    await room.start("sleep", "99999")
    with pytest.raises(AgentTimeoutError, match="did not answer initialize"):
        await room.session().call("initialize", "initialize", {}, Limits(wall=0.3))


@LOCALLY
@pytest.mark.parametrize(
    ("limits", "why"), [(Limits(wall=0.5), "wall_clock"), (Limits(idle=0.5), "idle")], ids=["wall", "idle"]
)
async def test_an_agent_that_hangs_is_asked_to_stop(
    room: Room, limits: Limits, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "CANCEL_GRACE", 60.0)
    agent = await (await room.open({"say": "so far"}, {"hang": True})).begun()
    turn = await agent.prompt(limits)
    assert (turn.stop_reason, turn.ended_by) == ("cancelled", why)
    assert agent.texts() == ["so far"]
    # A worker that comes later is told the same, and does not ask again.
    turn = await DemoSession(room, room.session(), agent.id).prompt(limits)
    assert (turn.stop_reason, turn.ended_by) == ("cancelled", why)
    assert [message.get("method") for message in await room.received()].count("session/cancel") == 1


async def test_an_agent_that_does_not_stop_is_killed_with_what_it_started(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "CANCEL_GRACE", 0.3)
    length = nap()
    agent = await room.open(
        {"ignore_cancel": True},
        {"ignore_sigterm": True},
        {"daemon": f"exec sleep {length}"},
        {"say": "so far"},
        {"hang": True},
    )
    agent = await agent.begun()
    turn = await agent.prompt(Limits(wall=1.0))
    assert (turn.stop_reason, turn.ended_by) == ("timeout", "wall_clock")
    assert agent.texts() == ["so far"]
    await awake(room.sandbox, length)
    left = await room.sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"], cwd="/")
    assert "demo_agent" not in left.stdout and "pump.mjs" not in left.stdout


@LOCALLY
async def test_an_agent_that_talks_without_end_reaches_its_limit(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "CANCEL_GRACE", 0.3)
    agent = await room.open({"ignore_cancel": True}, {"flood": 10_000_000_000, "line": 100_000})
    agent = await agent.begun()
    turn = await agent.prompt(Limits(wall=0.5))
    assert (turn.stop_reason, turn.ended_by) == ("timeout", "wall_clock")
    assert agent.lines


@pytest.mark.parametrize("size", [20_000_000, pytest.param(100_000_000, marks=pytest.mark.soak)], ids=["20", "100"])
async def test_a_flood_is_heard_to_its_end(room: Room, size: int) -> None:
    agent = await room.open({"flood": size, "line": 1000}, {"say": "dry again"})
    await agent.prompt()
    assert len(agent.lines) == size // 1000 + 1
    assert agent.texts()[-1] == "dry again"


@LOCALLY
async def test_a_message_of_twenty_megabytes_is_heard(room: Room) -> None:
    agent = await room.open({"line": 20_000_000}, {"say": "that was it"})
    await agent.prompt()
    assert [len(text) > 19_999_000 for text in agent.texts()] == [True, False]


@LOCALLY
async def test_a_turn_is_over_however_much_is_said_after_its_answer(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "LAST_WORDS", 0.3)
    agent = await room.open({"raw": EARLY}, {"flood": 10_000_000_000, "line": 100_000})
    assert (await agent.prompt(Limits(wall=None))).stop_reason == "end_turn"
    await room.process.kill()


class Broken(Client):
    """A handler of questions with a fault."""

    async def ask(self, question: str, method: str, params: Message) -> Message:
        raise ZeroDivisionError("no idea")


@LOCALLY
async def test_an_error_while_permission_is_asked_is_no_permission(room: Room) -> None:
    actions: list[Any] = [{"ask": "may I?", "record": "record"}, {"elicit": "who?", "record": "record"}]
    agent = await room.open(*actions, host=Broken(room.sandbox, user=USER, cwd=CWD))
    assert (await agent.prompt()).stop_reason == "end_turn"
    assert await room.recorded() == ["cancelled", {"action": "cancel"}]
    permission, elicitation = agent.of("permission_answer")[0], agent.of("elicitation_answer")[0]
    assert permission["result"] == {"outcome": {"outcome": "cancelled"}}
    assert permission["error"] == elicitation["error"] == "ZeroDivisionError: no idea"


# --- who takes it over -----------------------------------------------------------------------------------


def long_turn(pace: float) -> list[Message]:
    """300 updates in five parts, each of which ends with something that the test lets happen."""
    part: Message = {"repeat": 60, "pace": pace}
    return [
        part | {"do": [{"say": "a{i}"}]},
        {"ask": "first", "record": "record"},
        part | {"do": [{"say": "b{i}"}]},
        {"wait_for": "gate-2"},
        part | {"do": [{"say": "c{i}"}]},
        {"wait_for": "gate-3"},
        part | {"do": [{"say": "d{i}"}]},
        {"ask": "second", "record": "record"},
        part | {"do": [{"say": "e{i}"}]},
        {"wait_for": "gate-5"},
    ]


def without_ids(lines: list[Message]) -> list[Message]:
    """Lines of the trajectory without what differs between two turns that are the same."""
    own = ("seq", "ts", "node", "role")
    plain = [{key: value for key, value in line.items() if key not in own} for line in lines]
    for line in plain:
        if "params" in line:
            line["params"] = {key: value for key, value in line["params"].items() if key != "sessionId"}
    return plain


@pytest.mark.parametrize("kind", SELDOM_ON_LOCAL, indirect=True)
async def test_a_turn_survives_those_who_drive_it(
    room: Room, kind: str, tmp_path: Path, runtime: Toolbox, base_image: str
) -> None:
    agent = await room.open(*long_turn(0.02))
    worker = Worker(room, kind, agent.id, tmp_path / "worker")

    async def killed_at(lines: int) -> None:
        async with worker.running() as process:
            await until(lambda: len(read_journal(worker.trajectory)) >= lines or process.returncode is not None)
            assert process.returncode is None
        assert process.returncode == -signal.SIGKILL

    # What the agent waits for happens only when the worker that saw its part is dead: the turn outlives all five.
    await killed_at(62)  # asked for the first permission, not yet answered
    worker.allow("first")
    await killed_at(90)
    await room.tell("gate-2")
    await killed_at(150)
    await room.tell("gate-3")
    await killed_at(246)  # asked for the second
    worker.allow("second")
    await killed_at(270)
    await room.tell("gate-5")
    async with asyncio.timeout(300), worker.running() as last:
        said, _ = await last.communicate()

    assert json.loads(said) == {"stop_reason": "end_turn", "ended_by": None}
    received = await room.received()
    assert [message.get("method") for message in received].count("session/prompt") == 1
    answers = [message for message in received if "method" not in message]
    assert [message["id"] for message in answers] == [0, 1]
    assert await room.recorded() == ["allow", "allow"]
    written = read_journal(worker.trajectory)
    assert [line["seq"] for line in written] == list(range(len(written)))
    texts = [line["text"] for line in written if line["type"] == "agent_message"]
    assert texts == [f"{part}{number}" for part in "abcde" for number in range(60)]

    async with room_in(kind, tmp_path / "undisturbed", runtime, base_image) as other:
        undisturbed = await other.open(*long_turn(0))
        for gate in ("gate-2", "gate-3", "gate-5"):
            await other.tell(gate)
        await undisturbed.prompt()
    assert without_ids(written) == without_ids(undisturbed.lines)


@LOCALLY
async def test_two_workers_at_once_prompt_and_answer_once(room: Room) -> None:
    agent = await room.open({"ask": "may I?", "record": "record"}, {"repeat": 50, "do": [{"say": "u{i}"}]})
    other = DemoSession(room, Room(room.sandbox, Wire(room.wire.directory), room.pump).session(), agent.id)
    await asyncio.gather(agent.prompt(), other.prompt())
    assert agent.lines == other.lines
    received = await room.received()
    assert [message.get("method") for message in received].count("session/prompt") == 1
    assert len([message for message in received if "method" not in message]) == 1


@LOCALLY
async def test_an_agent_is_started_once(room: Room) -> None:
    agent = await room.open({"say": "here"})
    again = await room.open()
    assert again.id == agent.id
    received = (await room.sandbox.read_file(LOG)).decode().splitlines()
    assert len({json.loads(line)["pid"] for line in received}) == 1
    assert [json.loads(json.loads(line)["line"])["method"] for line in received] == ["initialize", "session/new"]
