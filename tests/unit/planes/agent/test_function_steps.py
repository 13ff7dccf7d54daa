"""Steps of Python agents: each recorded once, the same in each attempt, and none after the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchflow.errors import AgentDivergedError, AgentExitError, AgentOutputError
from benchflow.planes.agent.bounds import MAX_LINE
from benchflow.planes.agent.function import recorded_steps as module
from benchflow.planes.agent.function.recorded_steps import OVER, Steps, list_started_commands, read_recorded_steps
from benchflow.planes.agent.notes import Notes
from benchflow.planes.agent.turn_limits import note_stop


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


class Attempt:
    """An attempt at turn 0, and what it does itself."""

    def __init__(self, notes: Notes, turn: int = 0) -> None:
        self.steps = Steps(notes, turn)
        self.done: list[Any] = []

    async def take(self, what: str, result: Any = "result", kind: str = "once") -> Any:
        async def act() -> Any:
            self.done.append(what)
            if isinstance(result, BaseException):
                raise result
            return result

        return await self.steps.take(self.steps.make_name(), {"kind": kind, "what": what}, act)


async def test_a_step_that_is_recorded_is_not_done_again(notes: Notes) -> None:
    first, second = Attempt(notes), Attempt(notes)
    assert await first.take("a", {"1": [None, 1.5]}) == {"1": [None, 1.5]}
    assert await second.take("a", "another") == {"1": [None, 1.5]}
    assert await second.take("b", ()) == []
    assert (first.done, second.done) == (["a"], ["b"])


async def test_what_fails_is_done_again(notes: Notes) -> None:
    first, second = Attempt(notes), Attempt(notes)
    with pytest.raises(OSError, match="away"):
        await first.take("a", OSError("away"))
    assert await second.take("a", "there") == "there"


async def test_of_two_attempts_the_first_to_record_counts(notes: Notes) -> None:
    first, second = Attempt(notes), Attempt(notes)
    is_slow, is_done = asyncio.Event(), asyncio.Event()

    async def act() -> str:
        is_slow.set()
        await is_done.wait()
        return "slow"

    slow = asyncio.ensure_future(first.steps.take(first.steps.make_name(), {"kind": "once", "what": "a"}, act))
    await is_slow.wait()
    assert await second.take("a", "quick") == "quick"
    is_done.set()
    assert await slow == "quick"


@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded", "started"])
async def test_another_step_in_its_place_is_an_error(notes: Notes, is_recorded: bool) -> None:
    with pytest.raises(OSError) if not is_recorded else pytest.raises(AssertionError):
        await Attempt(notes).take("a", "x" if is_recorded else OSError())
        raise AssertionError
    second = Attempt(notes)
    with pytest.raises(AgentDivergedError, match="once before, exec now"):
        await second.take("a", kind="exec")
    assert second.done == []


@pytest.mark.parametrize("how", ["stopped", "ended", "over"])
async def test_no_step_starts_after_the_end(notes: Notes, how: str) -> None:
    await Attempt(notes).take("a", "x")
    if how == "stopped":
        note_stop(notes, "stop-0", "cancelled")
    else:
        notes.write_once("ended-0" if how == "ended" else OVER, {})
    late = Attempt(notes)
    # What was done before is known.
    assert await late.take("a") == "x"
    with pytest.raises(asyncio.CancelledError):
        await late.take("b")
    assert late.done == []
    if how != "over":
        assert await Attempt(notes, turn=1).take("c") == "result"


@pytest.mark.parametrize("result", [object(), float("nan"), {1, 2}], ids=["object", "nan", "set"])
async def test_results_are_plain(notes: Notes, result: Any) -> None:
    with pytest.raises(AgentExitError, match="no JSON"):
        await Attempt(notes).take("a", result)


async def test_results_are_bounded(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AgentOutputError, match="at once"):
        await Attempt(notes).take("a", "x" * MAX_LINE)
    monkeypatch.setattr(module, "MAX_OUTPUT", 1000)
    attempt = Attempt(notes, turn=1)
    await attempt.take("a", "x" * 600)
    with pytest.raises(AgentOutputError, match="in a turn"):
        await attempt.take("b", "x" * 600)
    monkeypatch.setattr(module, "MAX_STEPS", 2)
    with pytest.raises(AgentOutputError, match="more than 2 steps"):
        await attempt.take("c")


async def test_steps_are_read_in_their_order(notes: Notes) -> None:
    for turn in (0, 1, 10, 2):
        attempt = Attempt(notes, turn)
        for number in range(11):
            await attempt.take("a", [turn, number], kind="exec" if number % 2 else "once")
    assert [step["result"] for step in read_recorded_steps(notes)] == [
        [turn, n] for turn in (0, 1, 2, 10) for n in range(11)
    ]
    assert list_started_commands(notes, 1) == [f"step-1-{n}" for n in (2, 4, 6, 8, 10)]
    assert len(list_started_commands(notes)) == 20
