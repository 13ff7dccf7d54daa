"""One turn of a real agent process in a real sandbox: what is heard of it, how it fails, and who takes it over."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.acp_room import (
    CWD,
    KINDS,
    LOG,
    PATIENT,
    SELDOM_IN_DOCKER,
    USER,
    DemoSession,
    Room,
    Worker,
    room_in,
)

from benchflow.contracts.agent import TurnLimits
from benchflow.errors import AgentExitError, DaemonUnavailableError, StoreError
from benchflow.planes.agent.acp.agent_process import RUN_DIRECTORY
from benchflow.planes.agent.acp.agent_requests import Client
from benchflow.planes.agent.notes import Message
from benchflow.planes.agent.toolbox import Toolbox
from benchflow.planes.agent.turn_limits import AgentTimeouts
from benchflow.testing.sandbox_conformance.sandbox_fixtures import awake, nap
from benchflow.testing.waiting import until
from benchflow.trajectories.journal import read_journal


@pytest.fixture(params=SELDOM_IN_DOCKER)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def room(
    kind: str, use_state: Callable[[str], None], tmp_path: Path, runtime: Toolbox, base_image: str
) -> AsyncIterator[Room]:
    use_state(kind)
    async with room_in(kind, tmp_path / "agent", runtime, base_image) as made:
        yield made


LOCALLY = pytest.mark.parametrize("kind", KINDS[:1], indirect=True)
"""For what is about the agent and not about where it is."""

EVERYWHERE = pytest.mark.parametrize("kind", KINDS, indirect=True)
"""For what each provider does in its own way."""


def message_of(text: str) -> str:
    """An agent's message as it is on the wire, with every special character escaped."""
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": {"update": update}})


# --- what is heard ---------------------------------------------------------------------------------------


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
        "estimated_calls": 0,
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


@EVERYWHERE
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
    assert room.wire.describe_end() is None


# --- how it fails ----------------------------------------------------------------------------------------


@LOCALLY
@pytest.mark.parametrize(
    ("end", "how"),
    [
        pytest.param([{"exit": -9}], "signal SIGKILL", id="killed", marks=pytest.mark.long),
        pytest.param(
            [{"daemon": "sleep 99999", "keeps_stdout": True}, {"exit": 4}], "exit status 4", id="beside a daemon"
        ),
    ],
)
async def test_an_agent_that_ends_is_a_typed_error(room: Room, end: list[Message], how: str) -> None:
    agent = await room.open({"say": "so far"}, {"stderr": "something is wrong here"}, *end)
    with pytest.raises(AgentExitError, match=how) as caught:
        await agent.prompt()
    assert caught.value.log_tail == "something is wrong here"
    assert agent.texts() == ["so far"]


async def test_an_agent_that_exits_says_how_wherever_it_is(room: Room) -> None:
    agent = await room.open({"say": "so far"}, {"stderr": "out of luck"}, {"half_line": True, "code": 7})
    with pytest.raises(AgentExitError, match="exit status 7") as caught:
        await agent.prompt()
    assert caught.value.log_tail == "out of luck"
    assert agent.texts() == ["so far"]
    assert not (room.wire.files.shared / "out").read_bytes().endswith(b"\n")
    # So says whoever comes later, even when the time of the turn is over.
    again = DemoSession(room, room.session(), agent.id)
    with pytest.raises(AgentExitError, match="exit status 7"):
        await again.prompt(TurnLimits(wall=0.0))
    assert again.lines == agent.lines


@LOCALLY
async def test_an_agent_that_cannot_be_started_says_so(room: Room) -> None:
    await room.start("/opt/not-there")
    with pytest.raises(AgentExitError, match=r"could not be started: .*not-there"):
        await room.session().call("initialize", "initialize", {}, PATIENT)


@pytest.mark.long
@LOCALLY
async def test_an_agent_that_hangs_is_asked_to_stop(room: Room) -> None:
    agent = await (await room.open({"say": "so far"}, {"hang": True})).begun()
    turn = await agent.prompt(TurnLimits(wall=0.0))
    assert (turn.stop_reason, turn.ended_by) == ("cancelled", "wall_clock")
    assert agent.texts() == ["so far"]
    assert [message.get("method") for message in await room.received()].count("session/cancel") == 1


async def test_an_agent_that_talks_without_end_and_does_not_stop_is_killed_with_what_it_started(room: Room) -> None:
    length = nap()
    agent = await room.open(
        {"ignore_cancel": True},
        {"ignore_sigterm": True},
        {"daemon": f"exec sleep {length}"},
        {"flood": 10_000_000_000, "line": 100_000},
    )
    agent = await agent.begun(AgentTimeouts(cancel=0.3))
    turn = await agent.prompt(TurnLimits(wall=0.0))
    assert (turn.stop_reason, turn.ended_by) == ("timeout", "wall_clock")
    assert agent.lines
    await awake(room.sandbox, length)
    left = await room.sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"], cwd="/")
    assert "demo_agent" not in left.stdout and "pump.mjs" not in left.stdout


@pytest.mark.parametrize("size", [20_000_000, pytest.param(100_000_000, marks=pytest.mark.long)], ids=["20", "100"])
async def test_a_flood_and_a_message_of_fifteen_megabytes_are_heard(room: Room, size: int) -> None:
    agent = await room.open({"flood": size, "line": 1000}, {"line": 15_000_000}, {"say": "dry again"})
    await agent.prompt()
    assert len(agent.lines) == size // 1000 + 2
    *_, long, last = agent.texts()
    assert len(long) > 14_999_000
    assert last == "dry again"


# --- who takes it over -----------------------------------------------------------------------------------

PART: Message = {"repeat": 60, "pace": 0.005}
LONG_TURN = [
    PART | {"do": [{"say": "a{i}"}]},
    {"ask": "first", "record": "record"},
    PART | {"do": [{"say": "b{i}"}]},
    {"wait_for": "gate"},
    {"ask": "second", "record": "record"},
    PART | {"do": [{"say": "c{i}"}]},
]
"""180 updates in three parts, behind each of which there is something that the test lets happen."""


async def test_a_turn_survives_those_who_drive_it(room: Room, kind: str, tmp_path: Path) -> None:
    agent = await room.open(*LONG_TURN)
    worker = Worker(room, kind, agent.id, tmp_path / "worker")

    async def killed_at(lines: int) -> None:
        async with worker.running() as process:
            await until(lambda: len(read_journal(worker.trajectory)) >= lines or process.returncode is not None)
            assert process.returncode is None
        assert process.returncode == -signal.SIGKILL

    # What the agent waits for happens only when the worker that saw its part is dead: the turn outlives all three.
    await killed_at(62)  # asked for the first permission, not yet answered
    worker.allow("first")
    await killed_at(90)
    await room.tell("gate")
    await killed_at(126)  # asked for the second
    worker.allow("second")
    async with worker.running() as last:
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
    assert texts == [f"{part}{number}" for part in "abc" for number in range(60)]
    # Whoever was there all the time would have written the same.
    again = DemoSession(room, room.session(), agent.id)
    await again.prompt()
    own = ("seq", "ts", "node", "role")
    assert [{key: line[key] for key in line if key not in own} for line in written] == again.lines


HASTY = AgentTimeouts(last_log=0, cancel=0)


class AwayOnce(Client):
    """Carries out the first request, and loses its answer with the daemon."""

    has_failed = False

    async def serve(self, request: Any, method: str, params: Message) -> Message:
        answer = await super().serve(request, method, params)
        if not self.has_failed:
            self.has_failed = True
            raise DaemonUnavailableError("away")
        return answer


@LOCALLY
async def test_an_agents_request_is_served_again_after_an_outage_and_its_command_runs_once(room: Room) -> None:
    opened = await room.open({"client_run": "echo ran >>count", "record": "record"})
    away = AwayOnce(room.sandbox, user=USER, cwd=CWD)
    agent = DemoSession(room, room.session(away, HASTY), opened.id)
    with pytest.raises(DaemonUnavailableError):
        await agent.prompt(TurnLimits(idle=5))
    again = DemoSession(room, room.session(), agent.id)
    assert (await again.prompt()).stop_reason == "end_turn"
    assert (await room.recorded())[0]["exit"] == {"exitCode": 0, "signal": None}
    assert await room.sandbox.read_bytes(f"{CWD}/count") == b"ran\n"
    answers = [message["id"] for message in await room.received() if "method" not in message]
    assert len(answers) == len(set(answers))


class Reader(Client):
    """Has a large file, without a command of the sandbox."""

    async def serve(self, request: Any, method: str, params: Message) -> Message:
        return {"content": "x" * 262_144}


@LOCALLY
async def test_an_answer_that_the_disk_does_not_take_is_sent_when_there_is_space(room: Room) -> None:
    opened = await room.open({"client_read": "large", "record": "record"})
    reader = Reader(room.sandbox, user=USER, cwd=CWD)
    # Notes are small enough, so that nothing else tells of the disk.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, limits[1]))
    try:
        with pytest.raises(StoreError):
            await DemoSession(room, room.session(reader, HASTY), opened.id).prompt(TurnLimits(idle=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    again = DemoSession(room, room.session(reader), opened.id)
    assert (await again.prompt()).stop_reason == "end_turn"
    assert await room.recorded() == [{"content": "x" * 262_144}]
    assert [message["id"] for message in await room.received() if "method" not in message] == [0]


@LOCALLY
async def test_an_agent_is_started_once(room: Room) -> None:
    agent = await room.open({"say": "here"})
    again = await room.open()
    assert again.id == agent.id
    received = (await room.sandbox.read_bytes(LOG)).decode().splitlines()
    assert len({json.loads(line)["pid"] for line in received}) == 1
    assert [json.loads(json.loads(line)["line"])["method"] for line in received] == ["initialize", "session/new"]
