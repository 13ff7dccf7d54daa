"""A look at the host that is shared: by whom, and never one that is older than the question."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchflow.planes.sandbox.local.single_flight import SingleFlight

ASKING = 8
PATIENCE = 60.0


def test_all_who_ask_during_a_look_share_the_next_one() -> None:
    looking, go_on = threading.Event(), threading.Event()
    looks: list[int] = []

    def look() -> int:
        looks.append(len(looks))
        if len(looks) == 1:
            looking.set()
            assert go_on.wait(PATIENCE)
        return looks[-1]

    flight = SingleFlight(look)
    with ThreadPoolExecutor(ASKING + 1) as threads:
        first = threads.submit(flight)
        assert looking.wait(PATIENCE)
        others = [threads.submit(flight) for _ in range(ASKING)]
        while flight.asked <= ASKING:
            threading.Event().wait(0.01)
        go_on.set()
        assert first.result() == 0
        assert {other.result() for other in others} == {1}
    assert looks == [0, 1]


def test_who_asks_later_is_told_how_it_is_now() -> None:
    now = [0]
    flight = SingleFlight(lambda: now[0])
    assert flight() == 0
    now[0] = 1
    assert flight() == 1


def test_who_asks_something_else_has_a_look_of_its_own() -> None:
    flight = SingleFlight(len)
    assert [flight(text) for text in ("a", "bb", "a")] == [1, 2, 1]


def test_a_look_that_fails_is_that_one_askers_failure() -> None:
    answers = [OSError("gone"), "there"]

    def look() -> str:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return str(answer)

    flight = SingleFlight(look)
    with pytest.raises(OSError, match="gone"):
        flight()
    assert flight() == "there"
