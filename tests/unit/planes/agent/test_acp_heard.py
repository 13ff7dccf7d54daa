"""What is made of an agent's output, whatever is in it and whoever reads it: an agent here is what it has written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.agent import TurnLimits
from benchflow.errors import ACPError, AgentError, AgentExitError, AgentOutputError, AgentTimeoutError
from benchflow.planes.agent.acp import dialogue as dialogue_module
from benchflow.planes.agent.acp.dialogue import Dialogue, EndedTurn, RefusedError
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.bounds import MAX_REQUESTS
from benchflow.planes.agent.notes import Message, SessionFiles
from benchflow.planes.agent.turn_limits import AgentTimeouts
from benchflow.testing.waiting import until

ENDLESS = TurnLimits(wall=None, idle=None)
PAST = TurnLimits(wall=0.0, idle=0.0)
QUICK = AgentTimeouts(silence=0.01)
"""Where all that an agent says behind its answer is there with it."""


class Host:
    """Answers what an agent asks; with a fault where it is told so."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken

    async def ask(self, question: str, method: str, params: Message) -> Message:
        if self.is_broken:
            raise ZeroDivisionError("no idea")
        return {"outcome": {"outcome": "selected", "optionId": "yes"}}

    async def serve(self, request: Any, method: str, params: Message) -> Message:
        raise RefusedError(-32601, "nothing is served here")


@pytest.fixture
def wire(tmp_path: Path) -> Wire:
    made = Wire(SessionFiles.from_directory(tmp_path / "agent"))
    made.make()
    return made


def line(**members: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", **members})


def said(text: str) -> str:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return line(method="session/update", params={"update": update})


def over(request: str = "prompt-0", reason: str = "end_turn") -> str:
    return line(id=request, result={"stopReason": reason})


def write(wire: Wire, *lines: str | bytes) -> None:
    """Write as the agent does, all in one piece."""
    with (wire.files.shared / "out").open("ab") as file:
        file.write(b"".join((text.encode() if isinstance(text, str) else text) + b"\n" for text in lines))


def sent(wire: Wire) -> list[Message]:
    return [json.loads(text) for text in (wire.sent.file).read_bytes().splitlines()]


async def never() -> None:
    raise AssertionError("the agent was killed")


async def take_turn(
    wire: Wire,
    lines: list[Message],
    request: str = "prompt-0",
    *,
    limits: TurnLimits = ENDLESS,
    timeouts: AgentTimeouts = QUICK,
    host: Host | None = None,
    kill: Callable[[], Awaitable[None]] = never,
) -> EndedTurn:
    session = Dialogue(Wire(wire.files), host or Host(), timeouts)
    return await session.prompt(request, "s-1", [{"type": "text", "text": "go"}], lines.extend, limits, kill)


def texts(lines: list[Message]) -> list[str]:
    return [row["text"] for row in lines if row["type"] == "agent_message"]


# --- when a turn is over ---------------------------------------------------------------------------------


async def test_a_turn_that_was_over_in_time_is_in_time_whenever_it_is_heard(wire: Wire) -> None:
    write(wire, *(said(f"u{number}") for number in range(20)), over())
    lines: list[Message] = []
    turn = await take_turn(wire, lines, limits=PAST)
    assert (turn.stop_reason, turn.ended_by) == ("end_turn", None)
    assert texts(lines) == [f"u{number}" for number in range(20)]
    assert [message["method"] for message in sent(wire)] == ["session/prompt"]


async def test_what_comes_after_the_answer_is_heard_and_the_next_turn_begins_behind_it(wire: Wire) -> None:
    write(wire, over(), said("one more thing"))
    first: list[Message] = []
    assert (await take_turn(wire, first)).stop_reason == "end_turn"
    assert texts(first) == ["one more thing"]
    # It answers once more, which is no answer to what is asked then.
    write(wire, over(reason="refusal"), said("new"), over("prompt-1"))
    second: list[Message] = []
    assert (await take_turn(wire, second, "prompt-1")).stop_reason == "end_turn"
    assert texts(second) == ["new"]


async def test_a_turn_is_over_however_much_is_said_after_its_answer(wire: Wire) -> None:
    write(wire, over())

    async def talk() -> None:
        while True:
            write(wire, said("and"))
            await asyncio.sleep(0)

    talking = asyncio.create_task(talk())
    turn = await take_turn(wire, [], timeouts=AgentTimeouts(silence=300, last_words=0.05))
    talking.cancel()
    assert (turn.stop_reason, turn.ended_by) == ("end_turn", None)


@pytest.mark.parametrize(
    ("limits", "why"),
    [(TurnLimits(wall=0.0, idle=None), "wall_clock"), (TurnLimits(idle=0.0), "idle")],
    ids=["wall", "idle"],
)
async def test_an_agent_that_hangs_is_asked_to_stop(wire: Wire, limits: TurnLimits, why: str) -> None:
    write(wire, said("so far"))
    lines: list[Message] = []
    turning = asyncio.create_task(take_turn(wire, lines, limits=limits, timeouts=replace(QUICK, cancel=300)))
    await until(lambda: "session/cancel" in [message.get("method") for message in sent(wire)])
    write(wire, over(reason="cancelled"))
    turn = await turning
    assert (turn.stop_reason, turn.ended_by) == ("cancelled", why)
    assert texts(lines) == ["so far"]
    # A worker that comes later is told the same, and does not ask again.
    turn = await take_turn(wire, [], limits=limits)
    assert (turn.stop_reason, turn.ended_by) == ("cancelled", why)
    assert [message["method"] for message in sent(wire)].count("session/cancel") == 1


async def test_an_agent_that_does_not_stop_is_killed(wire: Wire) -> None:
    killed = asyncio.Event()

    async def kill() -> None:
        killed.set()

    turn = await take_turn(wire, [], limits=PAST, timeouts=AgentTimeouts(cancel=0.0), kill=kill)
    assert (turn.stop_reason, turn.ended_by) == ("timeout", "wall_clock")
    assert killed.is_set()


async def test_a_turn_that_is_cancelled_while_it_is_heard_ends(wire: Wire) -> None:
    turn = asyncio.ensure_future(take_turn(wire, []))
    await until(lambda: wire.sent.file.exists() and sent(wire))
    Dialogue(Wire(wire.files), Host()).cancel("prompt-0")
    await until(lambda: len(sent(wire)) == 2)
    write(wire, over(reason="cancelled"))
    assert ((await turn).stop_reason, (await turn).ended_by) == ("cancelled", "cancelled")
    assert [message["method"] for message in sent(wire)] == ["session/prompt", "session/cancel"]


async def test_a_request_that_is_not_answered_in_time_is_a_timeout(wire: Wire) -> None:
    with pytest.raises(AgentTimeoutError, match="did not answer initialize"):
        await Dialogue(wire, Host()).call("initialize", "initialize", {}, TurnLimits(wall=0.0))


# --- how it fails ----------------------------------------------------------------------------------------

TROUBLE: dict[str, tuple[str | bytes, type[AgentError], str]] = {
    "invalid UTF-8": (b'{"text": "\xff"}', ACPError, "broken message"),
    "invalid UTF-8 in a stray line": (b"\xff\xfe", ACPError, "not UTF-8"),
    "half a message": ('{"jsonrpc": "2.0", "method', ACPError, "broken message"),
    "other JSON": ('{"hello": "world"}', ACPError, "not JSON-RPC"),
    "a batch": ('[{"jsonrpc": "2.0"}]', ACPError, "broken message"),
    "an answer to nothing": (line(id=987654, result={}), ACPError, "never made: 987654"),
    "an error": (line(id="prompt-0", error={"code": -32001, "message": "no such model"}), ACPError, "no such model"),
}


@pytest.mark.parametrize("name", TROUBLE)
async def test_an_agent_that_writes_what_it_must_not_is_a_typed_error_with_its_log(wire: Wire, name: str) -> None:
    text, error, says = TROUBLE[name]
    (wire.files.shared / "err").write_text("something is wrong here")
    write(wire, said("so far"), text)
    lines: list[Message] = []
    with pytest.raises(error, match=says) as caught:
        await take_turn(wire, lines)
    assert caught.value.log_tail == "something is wrong here"
    assert texts(lines) == ["so far"]


@pytest.mark.parametrize(
    ("how", "says"),
    [({"code": 3, "signal": None}, "exit status 3"), ({"code": None, "signal": "SIGKILL"}, "signal SIGKILL")],
)
async def test_an_agent_that_ends_is_a_typed_error_with_all_that_it_said_before(
    wire: Wire, how: Message, says: str
) -> None:
    (wire.files.shared / "err").write_text("out of luck")
    write(wire, said("so far"))
    (wire.files.shared / "exit").write_text(json.dumps(how))
    lines: list[Message] = []
    # So says whoever comes when the time of the turn is over, too.
    with pytest.raises(AgentExitError, match=f"during its turn: {says}") as caught:
        await take_turn(wire, lines, limits=PAST)
    assert caught.value.log_tail == "out of luck"
    assert texts(lines) == ["so far"]


# --- what it asks ----------------------------------------------------------------------------------------

ASKS = line(id=0, method="session/request_permission", params={"options": []})
ELICITS = line(id=1, method="elicitation/create", params={"message": "who?"})


async def test_an_error_while_permission_is_asked_is_no_permission(wire: Wire) -> None:
    write(wire, ASKS, ELICITS, over())
    lines: list[Message] = []
    assert (await take_turn(wire, lines, host=Host(is_broken=True))).stop_reason == "end_turn"
    answers = {message["id"]: message["result"] for message in sent(wire) if "method" not in message}
    assert answers == {0: {"outcome": {"outcome": "cancelled"}}, 1: {"action": "cancel"}}
    assert [row["type"] for row in lines] == [
        *("permission_request", "permission_answer", "elicitation_request", "elicitation_answer")
    ]
    assert lines[1]["error"] == lines[3]["error"] == "ZeroDivisionError: no idea"


class BusyHost(Host):
    """Serves nothing to its end until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()

    async def serve(self, request: Any, method: str, params: Message) -> Message:
        await self.let_go.wait()
        return {}


async def test_of_very_many_requests_at_once_some_are_refused(wire: Wire) -> None:
    host = BusyHost()
    ids = range(MAX_REQUESTS + 3)
    write(wire, *(line(id=number, method="fs/read_text_file", params={"path": "/a"}) for number in ids))
    turn = asyncio.create_task(take_turn(wire, [], host=host))
    await until(lambda: len(sent(wire)) == 1 + 3)
    host.let_go.set()
    await until(lambda: len(sent(wire)) == 1 + len(ids))
    write(wire, over())
    assert (await turn).stop_reason == "end_turn"
    refused = {message["id"] for message in sent(wire) if "too many requests" in str(message.get("error"))}
    assert refused == set(ids[MAX_REQUESTS:])


async def test_an_agent_that_asks_for_very_much_is_ended(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialogue_module, "MAX_SENT", 1000)
    write(wire, *(line(id=number, method="fs/read_text_file", params={}) for number in range(100)))
    host = BusyHost()
    host.let_go.set()
    turn = asyncio.create_task(take_turn(wire, [], host=host))
    await until(lambda: wire.sent.file.stat().st_size > 1000)
    write(wire, line(id=100, method="fs/read_text_file", params={}))
    with pytest.raises(AgentOutputError, match="asked for more than 1000 bytes"):
        await turn


async def test_the_name_of_a_tools_call_is_as_long_as_one_can_be_held(wire: Wire) -> None:
    calls = [{"sessionUpdate": "tool_call", "toolCallId": f"{'x' * 10_000}{number}"} for number in (1, 1, 2)]
    write(wire, *(line(method="session/update", params={"update": update}) for update in calls), over())
    lines: list[Message] = []
    turn = await take_turn(wire, lines)
    assert [row["type"] for row in lines] == ["tool_call", "tool_call_update", "tool_call"]
    assert {row["tool_call_id"] for row in lines} == turn.reading.tool_calls
    assert max(map(len, turn.reading.tool_calls)) < 100


async def test_two_workers_at_once_prompt_and_answer_once_and_hear_the_same(wire: Wire) -> None:
    heard: list[list[Message]] = [[], []]
    turns = [asyncio.create_task(take_turn(wire, lines)) for lines in heard]
    write(wire, said("before"), ASKS)
    await until(lambda: len(sent(wire)) >= 2)
    write(wire, *(said(f"u{number}") for number in range(50)), over())
    assert [turn.stop_reason for turn in await asyncio.gather(*turns)] == ["end_turn"] * 2
    assert heard[0] == heard[1]
    assert len(heard[0]) == 53
    assert [message.get("method", "answer") for message in sent(wire)] == ["session/prompt", "answer"]
