"""A worker that is frozen for longer than an activity may take: the work goes on, and its next attempt joins it."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta

import pytest
from support.freezes import FROZEN_SEC, freeze, notice_soon
from support.run import namespace
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from benchflow.activities.attempts import OngoingWork
from benchflow.temporal import Target, connect
from benchflow.testing.waiting import until

LIMIT_SEC = 1.0
TIMED_OUT = ActivityCancellationDetails(timed_out=True)
"""What the SDK says of an attempt that it ends by itself."""


def attempt(limit: float = LIMIT_SEC) -> ActivityEnvironment:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, start_to_close_timeout=timedelta(seconds=limit))
    return environment


@pytest.fixture
async def work(server: str, monkeypatch: pytest.MonkeyPatch) -> OngoingWork:
    notice_soon(monkeypatch)
    client = await connect(Target(server, namespace(), embedded=False))
    return OngoingWork(client, "frozen", poll_sec=0.1)


async def test_work_is_joined_by_the_next_attempt_however_long_its_worker_was_frozen(work: OngoingWork) -> None:
    may_end, began, runs = asyncio.Event(), asyncio.Event(), 0

    async def verify() -> str:
        nonlocal runs
        runs += 1
        began.set()
        await may_end.wait()
        return "verified"

    first = attempt()
    waiting = asyncio.ensure_future(first.run(work.attempt, verify))
    await began.wait()
    freeze(LIMIT_SEC + FROZEN_SEC)
    first.cancel(TIMED_OUT)
    with pytest.raises(ApplicationError) as error:
        await waiting
    assert (error.value.type, "lost contact" in error.value.message) == ("StackError", True)
    assert work.unattended == 1
    second = asyncio.ensure_future(attempt().run(work.attempt, verify))
    await until(lambda: not work.unattended)
    may_end.set()
    assert (await second, runs) == ("verified", 1)
    await work.close()


async def test_work_that_takes_longer_than_it_may_is_ended(work: OngoingWork) -> None:
    first = attempt(0.1)
    waiting = asyncio.ensure_future(first.run(work.attempt, lambda: asyncio.sleep(60)))
    await asyncio.sleep(0.2)
    first.cancel(TIMED_OUT)
    with pytest.raises(ApplicationError) as error:
        await waiting
    assert (error.value.type, "the worker stops" in error.value.message) == ("StackError", True)
    await work.close()
