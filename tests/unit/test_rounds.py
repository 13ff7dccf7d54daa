"""Rounds that are repeated for ever: what they survive, and how often that is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from benchflow import rounds
from benchflow.rounds import Failures, repeat
from benchflow.testing.waiting import until


async def cancel_oneself() -> None:
    raise asyncio.CancelledError


async def fail() -> None:
    raise KeyError("provider")


async def hang() -> None:
    await asyncio.Event().wait()


async def hang_despite_cancellation() -> None:
    try:
        await hang()
    except asyncio.CancelledError:
        await hang()


@pytest.mark.parametrize("trouble", [fail, cancel_oneself, hang, hang_despite_cancellation])
async def test_a_loop_outlives_whatever_a_round_does_and_logs_it_once(
    trouble: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "CANCEL_SEC", 0.01)
    count = 0

    async def work() -> None:
        nonlocal count
        count += 1
        if count < 4:
            await trouble()

    with capture_logs() as logged:
        loop = asyncio.create_task(repeat("loop", work, every_sec=0.001, limit_sec=0.02))
        await until(lambda: count > 6)
        loop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop
    assert [(entry["loop"], entry["item"]) for entry in logged] == [("loop", "round")]


async def test_a_final_error_ends_a_loop() -> None:
    with pytest.raises(KeyError):
        await repeat("loop", fail, every_sec=0.001, is_final=lambda error: isinstance(error, KeyError))


async def test_a_round_that_is_cancelled_with_its_loop_cleans_up() -> None:
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            started.set()
            await hang()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    loop = asyncio.create_task(repeat("loop", work, every_sec=0.001))
    await started.wait()
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
    assert cleaned.is_set()


async def test_an_item_that_fails_keeps_no_other_from_its_turn() -> None:
    failures, done = Failures("loop"), []
    with capture_logs() as logged:
        for number in range(3):
            failures.begin_round()
            for name, work in {"a": fail, "b": cancel_oneself, "c": hang}.items():
                async with failures.item(name, limit_sec=0.01):
                    await work()
            async with failures.item("d"):
                done.append(number)
    assert done == [0, 1, 2]
    assert [entry["item"] for entry in logged] == ["a", "b", "c"]


async def test_a_failure_is_logged_again_when_it_changes_or_comes_back() -> None:
    failures = Failures("loop")
    with capture_logs() as logged:
        for text in ("port 1 is taken", "port 2 is taken", "no space", None, "no space"):
            failures.begin_round()
            if text is not None:
                failures.report("a", OSError(text))
    assert [entry["error"] for entry in logged] == [
        "OSError: port 1 is taken",
        "OSError: no space",
        "OSError: no space",
    ]


async def test_a_cancelled_loop_is_not_taken_for_a_failed_item() -> None:
    async def work() -> None:
        async with Failures("loop").item("a"):
            await hang()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
