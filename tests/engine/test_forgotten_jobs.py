"""A server that has never heard of a job, or knows it no more, has none of it run again."""

from __future__ import annotations

import pytest
from support.run import UNUSED
from support.theatre import Theatre


async def test_what_a_server_has_forgotten_is_known_from_the_results(
    theatre: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await theatre.results(await theatre.submit(repeats=3))
    monkeypatch.setenv("TEMPORAL_NAMESPACE", UNUSED)
    again = await theatre.submit(repeats=3)
    assert (again.started, again.attached) == (0, False)
    assert await theatre.results(again) == before
    assert sum(theatre.hall.turns.values()) == 3
