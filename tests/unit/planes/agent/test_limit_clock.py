"""The limits of a turn whose agent waits for the engine: they stand still for as long as that lasts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from support.moved_clock import MovedClock

from benchflow.contracts.agent import AskBlocked, Intervals, Stop, TurnLimits
from benchflow.planes.agent import turn_limits as limits_module
from benchflow.planes.agent.account import SandboxAccount
from benchflow.planes.agent.acp.dialogue import Dialogue, EndedTurn
from benchflow.planes.agent.acp.events import Reading
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.acpx.acpx_session import AcpxSession
from benchflow.planes.agent.acpx.acpx_stream import AcpxStream
from benchflow.planes.agent.notes import Message, Notes, SessionFiles
from benchflow.planes.agent.turn_limits import AgentTimeouts, LimitClock, read_stop
from benchflow.planes.sandbox.timeouts import Attendance
from benchflow.testing.waiting import until

WAITS: Intervals = [(0.0, 0.0)]
"""The answer at the beginning of a wait, which has no length yet: the gateway puts in the time."""


class Gateway:
    """Answers as it is told, and counts how often it was asked."""

    def __init__(self, answer: Intervals | None) -> None:
        self.answer = answer
        self.asked = 0

    async def blocked(self) -> Intervals | None:
        self.asked += 1
        return [(monotonic(), monotonic())] if self.answer is WAITS else self.answer


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    made = MovedClock()
    monkeypatch.setattr(limits_module, "time", made)
    return made


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    made = Notes(tmp_path)
    made.make()
    return made


@pytest.fixture
def wire(tmp_path: Path) -> Wire:
    made = Wire(SessionFiles.from_directory(tmp_path / "agent"))
    made.make()
    return made


# --- the clock -------------------------------------------------------------------------------------------


async def test_the_gateway_is_asked_only_when_a_limit_seems_reached_and_once_a_second(
    notes: Notes, time: MovedClock
) -> None:
    gateway = Gateway([(1009, 1200)])
    clock, attendance = (
        LimitClock(TurnLimits(wall=10, idle=5, ask_blocked=gateway.blocked), notes, "stop"),
        Attendance(),
    )
    time.now = 1009
    assert await clock.check(1000, attendance, 1005) is None
    assert gateway.asked == 0
    time.now = 1200
    assert await clock.check(1000, attendance, 1005) is None
    assert await clock.check(1000, attendance, 1005) is None
    assert gateway.asked == 1
    time.now = 1206
    gateway.answer = [(1009, 1206)]
    assert await clock.check(1000, attendance, 1005) is None
    time.now = 1206.9
    assert await clock.check(1000, attendance, 1005) is None
    assert gateway.asked == 2
    assert read_stop(notes, "stop") is None


async def test_the_seconds_of_waits_count_for_neither_limit(notes: Notes, time: MovedClock) -> None:
    # The first was before the turn, and two overlap.
    gateway = Gateway([(900, 950), (1002, 1050), (1040, 1102)])
    wall = LimitClock(TurnLimits(wall=10, idle=None, ask_blocked=gateway.blocked), notes, "wall")
    idle = LimitClock(TurnLimits(wall=None, idle=5, ask_blocked=gateway.blocked), notes, "idle")
    attendance = Attendance()
    time.now = 1106
    assert await idle.check(1000, attendance, 1001) is None
    time.now = 1108
    assert await idle.check(1000, attendance, 1001) == "idle"
    assert await wall.check(1000, attendance, 1001) is None
    time.now = 1111
    assert await wall.check(1000, attendance, 1001) == "wall_clock"
    assert (read_stop(notes, "idle"), read_stop(notes, "wall")) == ("idle", "wall_clock")


@pytest.mark.parametrize("missed", [(1002.0, 1102.0), (1004.0, 1104.0), (1050.0, 1080.0)])
async def test_what_is_waited_for_while_nobody_attends_counts_once(
    notes: Notes, time: MovedClock, missed: tuple[float, float]
) -> None:
    gateway = Gateway([(1002, 1102)])
    clock, attendance = (
        LimitClock(TurnLimits(wall=10, idle=None, ask_blocked=gateway.blocked), notes, "stop"),
        Attendance(),
    )
    attendance.missed, attendance.missed_sec = [missed], missed[1] - missed[0]
    over = 1110.5 + max(missed[1] - 1102, 0)
    time.now = over - 1
    assert await clock.check(1000, attendance, 1001) is None
    time.now = over
    assert await clock.check(1000, attendance, 1001) == "wall_clock"


async def test_the_limits_stand_still_while_no_gateway_answers(notes: Notes, time: MovedClock) -> None:
    gateway = Gateway(None)
    clock, attendance = (
        LimitClock(TurnLimits(wall=10, idle=5, ask_blocked=gateway.blocked), notes, "stop"),
        Attendance(),
    )
    for now in range(1011, 7000, 100):
        time.now = now
        assert await clock.check(1001, attendance, 1001) is None
    # It is back, and knows nothing of its absence.
    gateway.answer = []
    time.now += 2
    back = time.now
    assert await clock.check(1001.5, attendance, back) is None
    time.now = back + 0.4
    assert await clock.check(1001.5, attendance, back) is None
    time.now = back + 1.1
    assert await clock.check(1001.5, attendance, back) == "wall_clock"


@pytest.mark.parametrize("ask", [None, Gateway([]).blocked], ids=["no gateway", "nothing waits"])
@pytest.mark.parametrize(("limits", "why"), [((10.0, None), "wall_clock"), ((None, 5.0), "idle")], ids=["wall", "idle"])
async def test_a_limit_is_reached_at_once_where_nothing_waits(
    notes: Notes, time: MovedClock, ask: AskBlocked | None, limits: tuple[float | None, float | None], why: Stop
) -> None:
    clock = LimitClock(TurnLimits(*limits, ask_blocked=ask), notes, "stop")
    attendance = Attendance()
    time.now = 1010.1
    assert await clock.check(1000, attendance, 1005) == why
    assert read_stop(notes, "stop") == why


# --- the turns -------------------------------------------------------------------------------------------


class NoHost:
    """Serves nothing: no agent here asks."""

    ask: Any = None
    serve: Any = None


def take_turn(wire: Wire, gateway: Gateway, lines: list[Message], **limits: float | None) -> asyncio.Task[EndedTurn]:
    async def kill() -> None:
        pass

    timeouts = AgentTimeouts(silence=0.01, cancel=0.0)
    given = TurnLimits(**limits, ask_blocked=gateway.blocked)
    session = Dialogue(Wire(wire.files), NoHost(), timeouts)
    return asyncio.create_task(session.prompt("prompt-0", "s-1", [], lines.extend, given, kill))


def write(wire: Wire, **members: Any) -> None:
    with (wire.files.shared / "out").open("a") as file:
        file.write(json.dumps({"jsonrpc": "2.0", **members}) + "\n")


BOTH = pytest.mark.parametrize("limits", [{"wall": 0.0, "idle": None}, {"idle": 0.0}], ids=["wall", "idle"])


@BOTH
@pytest.mark.parametrize("answer", [WAITS, None], ids=["a call waits", "no gateway"])
async def test_a_turn_goes_on_while_its_call_waits(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float | None], answer: Intervals | None
) -> None:
    monkeypatch.setattr(limits_module, "ASK_INTERVAL_SEC", 0.01)
    gateway = Gateway(answer)
    turn = take_turn(wire, gateway, [], **limits)
    await until(lambda: gateway.asked >= 3 or turn.done())
    assert not turn.done()
    write(wire, id="prompt-0", result={"stopReason": "end_turn"})
    assert ((await turn).stop_reason, (await turn).ended_by) == ("end_turn", None)


@BOTH
async def test_a_turn_is_stopped_once_its_call_waits_no_more(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float | None]
) -> None:
    monkeypatch.setattr(limits_module, "ASK_INTERVAL_SEC", 0.01)
    gateway = Gateway(WAITS)
    turn = take_turn(wire, gateway, [], **limits)
    await until(lambda: gateway.asked >= 3 or turn.done())
    assert not turn.done()
    gateway.answer = ()
    assert (await turn).ended_by == ("idle" if "wall" not in limits else "wall_clock")


@BOTH
async def test_a_turn_behind_acpx_goes_on_while_its_call_waits(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float | None]
) -> None:
    monkeypatch.setattr(limits_module, "ASK_INTERVAL_SEC", 0.01)
    nothing: Any = None
    given: dict[str, Any] = {"pump": (), "argv": (), "inner": (), "env": {}, "cwd": "/"}
    account = SandboxAccount("root", 0, 0, "/root")
    session = AcpxSession(nothing, wire.files, account=account, timeouts=AgentTimeouts(cancel=0.0), **given)

    async def cancel(number: int) -> None:
        pass

    monkeypatch.setattr(session, "_cancel", cancel)
    gateway = Gateway(WAITS)
    bounds = TurnLimits(**limits, ask_blocked=gateway.blocked)
    listening = session._listen(0, wire, AcpxStream(Reading()), lambda lines: None, bounds, 0.0)
    turn = asyncio.create_task(listening)
    await until(lambda: gateway.asked >= 3 or turn.done())
    assert not turn.done()
    gateway.answer = ()
    assert await turn == ("idle" if "wall" not in limits else "wall_clock")
