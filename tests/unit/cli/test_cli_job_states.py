"""What commands call the state of a job that is not over, whether or not a server can say."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from support.command_line import Bench
from support.stored_jobs import store_job, write_task

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(("address", "state_word"), [(None, "incomplete"), (NOBODY, "unknown")])
def test_a_job_of_which_no_server_can_tell_is_not_called_incomplete(
    bench: Bench, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, address: str | None, state_word: str
) -> None:
    tasks = [write_task(tmp_path / "tasks", name) for name in ("one", "two")]
    place = asyncio.run(store_job(tasks, tmp_path / "jobs", sandbox="noop"))
    (unfinished,) = place.glob("two__*")
    shutil.rmtree(unfinished)
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    (listed,) = bench("job", "list", "--jobs-dir", place.parent, "--json").json["jobs"]
    shown = bench("job", "show", place.name, "--jobs-dir", place.parent, "--json").json["job"]
    assert (listed["state"], shown["state"]) == (state_word, state_word)
