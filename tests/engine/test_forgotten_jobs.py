"""A server that has never heard of a job, or knows it no more, has none of it run again."""

from __future__ import annotations

import pytest
from support.in_process_worker import InProcessWorker
from support.run import UNUSED


async def test_what_a_server_has_forgotten_is_known_from_the_results(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await worker.results(await worker.submit(repeats=3))
    monkeypatch.setenv("TEMPORAL_NAMESPACE", UNUSED)
    again = await worker.submit(repeats=3)
    assert (again.started, again.attached) == (0, False)
    assert await worker.results(again) == before
    assert sum(worker.provider.turns.values()) == 3
