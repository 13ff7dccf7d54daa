"""The limits of a turn whose agent waits for the engine: they stand still for as long as that lasts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from benchflow.planes.agent.acp import limits as limits_module
from benchflow.planes.agent.acp.events import Reading
from benchflow.planes.agent.acp.limits import AskBlocked, Blocked, LimitClock, Limits, Patience, Stop, noted_stop
from benchflow.planes.agent.acp.notes import Message, Notes, SessionFiles
from benchflow.planes.agent.acp.process import Account
from benchflow.planes.agent.acp.session import Session, Turn
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.acpx.session import AcpxSession
from benchflow.planes.agent.acpx.stream import Stream
from benchflow.testing.waiting import until

WAITS = Blocked(total_sec=0.0, ended_ago_sec=0.0)
"""The answer at the beginning of a wait."""


class Gateway:
    """Answers as it is told, and counts how often it was asked."""

    def __init__(self, answer: Blocked | None) -> None:
        self.answer = answer
        self.asked = 0

    async def blocked(self) -> Blocked | None:
        self.asked += 1
        return self.answer


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(limits_module, "time", made)
    return made


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    made = Notes(tmp_path)
    made.make()
    return made


@pytest.fixture
def wire(tmp_path: Path) -> Wire:
    made = Wire(SessionFiles.below(tmp_path / "agent"))
    made.make()
    return made


# --- the clock -------------------------------------------------------------------------------------------


async def test_the_gateway_is_asked_only_when_a_limit_seems_reached_and_once_a_second(notes: Notes, time: Time) -> None:
    gateway = Gateway(Blocked(total_sec=1.0, ended_ago_sec=0.0))
    clock = LimitClock(Limits(wall=10, idle=5, ask_blocked=gateway.blocked), notes, "stop")
    assert await clock.reached(9, time.now - 4) is None
    assert gateway.asked == 0
    for _ in range(3):
        assert await clock.reached(200, 0) is None
    assert gateway.asked == 1
    time.now += 1
    assert await clock.reached(200, 0) is None
    assert gateway.asked == 2
    assert noted_stop(notes, "stop") is None


async def test_the_seconds_of_waits_count_for_neither_limit(notes: Notes, time: Time) -> None:
    gateway = Gateway(Blocked(total_sec=100, ended_ago_sec=4))
    clock = LimitClock(Limits(wall=10, idle=5, ask_blocked=gateway.blocked), notes, "stop")
    assert await clock.reached(109, 0) is None
    time.now += 1.5
    gateway.answer = Blocked(total_sec=100, ended_ago_sec=5.5)
    assert await clock.reached(109, 0) == "idle"
    other = LimitClock(Limits(wall=10, idle=None, ask_blocked=gateway.blocked), notes, "other")
    assert await other.reached(111, 0) == "wall_clock"
    assert (noted_stop(notes, "stop"), noted_stop(notes, "other")) == ("idle", "wall_clock")


async def test_the_limits_stand_still_while_no_gateway_answers(notes: Notes, time: Time) -> None:
    gateway = Gateway(None)
    clock = LimitClock(Limits(wall=10, idle=5, ask_blocked=gateway.blocked), notes, "stop")
    began = time.now
    for _ in range(60):
        assert await clock.reached(10.5 + time.now - began, began) is None
        time.now += 100
    # It knows nothing of its absence, and the agent goes on.
    gateway.answer = Blocked()
    time.now += 1
    back = time.now
    assert await clock.reached(9.5 + time.now - began, time.now) is None
    time.now += 1
    assert await clock.reached(9.5 + time.now - began, back) == "wall_clock"


@pytest.mark.parametrize("ask", [None, Gateway(Blocked()).blocked], ids=["no gateway", "nothing waits"])
@pytest.mark.parametrize(("limits", "why"), [((10.0, None), "wall_clock"), ((None, 5.0), "idle")], ids=["wall", "idle"])
async def test_a_limit_is_reached_at_once_where_nothing_waits(
    notes: Notes, time: Time, ask: AskBlocked | None, limits: tuple[float | None, float | None], why: Stop
) -> None:
    clock = LimitClock(Limits(*limits, ask_blocked=ask), notes, "stop")
    assert await clock.reached(10.1, time.now - 5.1) == why
    assert noted_stop(notes, "stop") == why


# --- the turns -------------------------------------------------------------------------------------------


class NoHost:
    """Serves nothing: no agent here asks."""

    ask: Any = None
    serve: Any = None


def take_turn(wire: Wire, gateway: Gateway, lines: list[Message], **limits: float | None) -> asyncio.Task[Turn]:
    async def kill() -> None:
        pass

    patience = Patience(silence=0.01, cancel=0.0)
    given = Limits(**limits, ask_blocked=gateway.blocked)
    session = Session(Wire(wire.files), NoHost(), patience)
    return asyncio.create_task(session.prompt("prompt-0", "s-1", [], lines.extend, given, kill))


def write(wire: Wire, **members: Any) -> None:
    with (wire.files.shared / "out").open("a") as file:
        file.write(json.dumps({"jsonrpc": "2.0", **members}) + "\n")


BOTH = pytest.mark.parametrize("limits", [{"wall": 0.0, "idle": None}, {"idle": 0.0}], ids=["wall", "idle"])


@BOTH
@pytest.mark.parametrize("answer", [WAITS, None], ids=["a call waits", "no gateway"])
async def test_a_turn_goes_on_while_its_call_waits(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float | None], answer: Blocked | None
) -> None:
    monkeypatch.setattr(limits_module, "ASK_EVERY_SEC", 0.01)
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
    monkeypatch.setattr(limits_module, "ASK_EVERY_SEC", 0.01)
    gateway = Gateway(WAITS)
    turn = take_turn(wire, gateway, [], **limits)
    await until(lambda: gateway.asked >= 3 or turn.done())
    assert not turn.done()
    gateway.answer = Blocked(ended_ago_sec=1.0)
    assert (await turn).ended_by == ("idle" if "wall" not in limits else "wall_clock")


@BOTH
async def test_a_turn_behind_acpx_goes_on_while_its_call_waits(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float | None]
) -> None:
    monkeypatch.setattr(limits_module, "ASK_EVERY_SEC", 0.01)
    nothing: Any = None
    given: dict[str, Any] = {"pump": (), "argv": (), "inner": (), "env": {}, "cwd": "/"}
    account = Account("root", 0, 0, "/root")
    session = AcpxSession(nothing, wire.files, account=account, patience=Patience(cancel=0.0), **given)

    async def cancel(number: int) -> None:
        pass

    monkeypatch.setattr(session, "_cancel", cancel)
    gateway = Gateway(WAITS)
    bounds = Limits(**limits, ask_blocked=gateway.blocked)
    listening = session._listen(0, wire, Stream(Reading()), lambda lines: None, bounds, 0.0)
    turn = asyncio.create_task(listening)
    await until(lambda: gateway.asked >= 3 or turn.done())
    assert not turn.done()
    gateway.answer = Blocked(ended_ago_sec=1.0)
    assert await turn == ("idle" if "wall" not in limits else "wall_clock")
