"""Watching a rollout of a cluster: its trajectory is where it runs, until it is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.in_process_worker import InProcessWorker

from benchflow.cli.chosen import choose
from benchflow.cli.rollout_watch import show
from benchflow.errors import UsageError


class Kept:
    """What was shown."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def take(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def refresh(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("to_the_end", [False, True])
async def test_a_rollout_of_another_host_is_not_here_until_it_is_fetched(
    worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch, to_the_end: bool
) -> None:
    monkeypatch.setenv("BENCHFLOW_STORE", str(worker.context.paths.store))
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(worker.root / "submitter"))
    worker.provider.held = True
    job = await worker.submit()
    await worker.in_turn(1)
    chosen = choose(job.name, job.directory.root.parent)
    with pytest.raises(UsageError, match="on another host") as caught:
        await show(chosen, Kept(), to_the_end=to_the_end)
    assert "bench job fetch" in str(caught.value.remedy)
    worker.provider.release_all()
    await worker.results(job)
    kept = Kept()
    await show(chosen, kept, to_the_end=to_the_end)
    assert [event["type"] for event in kept.events][:1] == ["user_message"]


async def test_a_rollout_of_this_host_is_followed_to_its_result(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit()
    await worker.in_turn(1)
    chosen = choose(job.name, job.directory.root.parent)
    worker.provider.release_all()
    kept = Kept()
    await show(chosen, kept, to_the_end=True)
    assert Path(chosen.paths.result).is_file()
    assert [event["seq"] for event in kept.events] == list(range(len(kept.events))) != []
