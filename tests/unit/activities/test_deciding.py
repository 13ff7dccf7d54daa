"""Users' own code that is asked in a worker."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.freezes import FROZEN_SEC, freeze, notice_soon

from benchflow.activities.deciding import run_in_thread
from benchflow.errors import ConfigError


async def test_code_that_has_not_answered_while_its_worker_was_frozen_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notice_soon(monkeypatch)
    may_answer = threading.Event()
    waiting = asyncio.ensure_future(run_in_thread(lambda: may_answer.wait(60), "policy", "key", patience=FROZEN_SEC))
    await asyncio.sleep(0)
    freeze(3 * FROZEN_SEC)
    await asyncio.sleep(0)
    may_answer.set()
    assert await waiting


async def test_code_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    may_answer = threading.Event()
    with pytest.raises(ConfigError, match="has not answered"):
        await run_in_thread(lambda: may_answer.wait(60), "policy", "key", patience=0.1)
    may_answer.set()
