"""The reaper: it removes what is left of workflows that are over, and touches nothing else."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from structlog.testing import capture_logs
from support.in_process_worker import InProcessWorker

from benchflow import secrets
from benchflow.activities import reaper as reapers
from benchflow.activities.reaper import Reaper
from benchflow.contracts.operator_options import WorkerOptions
from benchflow.errors import DaemonUnavailableError, StoreAccessError
from benchflow.hosting.checkpoint_records import CheckpointRecord, write_checkpoint_record
from benchflow.planes import sandbox
from benchflow.rounds import Failures
from benchflow.testing.waiting import until


@pytest.fixture
def reaper(worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch) -> Reaper:
    monkeypatch.setattr("benchflow.activities.reaper.list_provider_names", lambda: ["hall"])
    return Reaper(worker.context)


async def test_the_sandbox_of_a_running_rollout_is_left_alone_and_that_of_a_terminated_one_goes(
    worker: InProcessWorker, reaper: Reaper
) -> None:
    worker.provider.held = True
    job = await worker.submit(repeats=2, concurrency=2)
    terminated, running = await worker.in_turn(2)
    assert await reaper.reap() == 0
    await job.engine.client.get_workflow_handle(terminated).terminate()
    assert await reaper.reap() == 1
    assert [owned.labels["benchflow.workflow"] for owned in await worker.provider.owned(worker.context.stack)] == [
        running
    ]


async def test_a_sandbox_of_another_stack_is_left_alone_although_its_workflow_is_unknown_here(
    worker: InProcessWorker, reaper: Reaper
) -> None:
    worker.provider.held = True
    await worker.submit()
    await worker.in_turn(1)
    assert await Reaper(replace(worker.context, stack="another")).reap() == 0
    assert len(worker.provider.open) == 1


class Broken:
    """A provider that fails as no provider should."""

    async def owned(self, stack_id: str) -> None:
        raise KeyError(stack_id)


async def test_one_bad_item_keeps_nothing_else_from_being_reaped(worker: InProcessWorker, reaper: Reaper) -> None:
    worker.patch.setitem(sandbox._made, "broken", Broken())
    worker.patch.setattr("benchflow.activities.reaper.list_provider_names", lambda: ["broken", "hall"])
    worker.provider.held = True
    job = await worker.submit()
    (terminated,) = await worker.in_turn(1)
    notes = worker.context.paths.checkpoints
    over = CheckpointRecord(workflow=terminated, run_id="an earlier one", provider="hall")
    write_checkpoint_record(notes / "b.json", over)
    (notes / "a.json").write_text(over.model_dump_json().replace("{", '{"key_of_another_version": 1, ', 1))
    # Its handle is of another kind than any workflow id can be.
    write_checkpoint_record(notes / "c.json", over.model_copy(update={"workflow": ""}))
    await job.engine.client.get_workflow_handle(terminated).terminate()
    with capture_logs() as logged:
        assert await reaper.reap() == 1
        assert await reaper.reap() == 0
    assert not worker.provider.open
    assert sorted(note.name for note in notes.iterdir()) == ["a.json", "c.json"]
    assert [entry["item"] for entry in logged if entry["log_level"] == "warning"] == ["provider broken", "checkpoint a"]


async def test_neither_checkpoints_nor_secrets_that_cannot_be_listed_end_a_round(worker: InProcessWorker) -> None:
    worker.patch.setattr("benchflow.activities.reaper.list_provider_names", list)
    paths = worker.context.paths
    reaper = Reaper(replace(worker.context, options=WorkerOptions(unknown_grace_sec=0)))
    secrets.store_secrets(paths, "job/none", set(), {"KEY": "value-of-it"})

    def unreadable(*_: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    worker.patch.setattr(Reaper, "_remove_checkpoints", unreadable)
    with capture_logs() as logged:
        await reaper.reap()
        assert list(secrets.list_stored_secrets(paths)) == []
        worker.patch.setattr(secrets, "list_stored_secrets", unreadable)
        await reaper.reap()
    assert [entry["item"] for entry in logged if entry["log_level"] == "warning"] == ["checkpoints", "secrets"]


@pytest.mark.parametrize("step", [-10 * 365 * 86400, 2 * 3600])
async def test_what_is_in_use_and_what_is_abandoned_are_told_apart_when_the_clock_is_set(
    worker: InProcessWorker, step: float
) -> None:
    """step: seconds by which the wall clock was set since the slots were taken."""
    worker.patch.setattr("benchflow.activities.reaper.list_provider_names", list)
    worker.patch.setattr(reapers, "WATCHED_SEC", 0.05)
    context = replace(worker.context, options=WorkerOptions(unknown_grace_sec=0.2))
    reaper = Reaper(context)
    for name in ("abandoned", "again"):
        assert context.slots.take(name)
        os.utime(context.slots.directory / name, (time.time() - step,) * 2)
    await reaper.reap()
    assert context.slots.taken() == ["abandoned", "again"]
    context.slots.free("again")

    async def are_freed() -> bool:
        await reaper.reap()
        return context.slots.taken() == []

    await until(are_freed)
    # One that is taken under the same name is young.
    assert context.slots.take("again")
    os.utime(context.slots.directory / "again", (time.time() - 2 * step,) * 2)
    await reaper.reap()
    assert context.slots.taken() == ["again"]


async def test_the_slots_of_ended_rollouts_are_freed_while_the_daemon_is_away_but_not_in_mid_provision(
    worker: InProcessWorker, reaper: Reaper
) -> None:
    worker.provider.held = True
    job = await worker.submit(repeats=3, concurrency=3)
    rollouts = await worker.in_turn(3)
    slots = worker.context.slots
    of = {slots.owner(name).workflow: name for name in slots.taken()}  # type: ignore[union-attr]
    assert sorted(of) == rollouts
    ended, provisioning, running = rollouts
    for rollout in (ended, provisioning):
        await job.engine.client.get_workflow_handle(rollout).terminate()

    async def no_daemon(stack_id: str) -> None:
        raise DaemonUnavailableError("no Docker daemon answers")

    worker.patch.setattr(worker.provider, "owned", no_daemon)
    with slots.in_use(of[provisioning]):
        assert await reaper.reap() == 0
        assert slots.taken() == sorted([of[provisioning], of[running]])
    await reaper.reap()
    assert slots.taken() == [of[running]]


async def test_a_provision_that_fails_before_it_has_a_sandbox_frees_its_slot(worker: InProcessWorker) -> None:
    def refuse(*_: object) -> None:
        raise StoreAccessError("cannot write")

    worker.patch.setattr("benchflow.hosting.provisioning.begin_run", refuse)
    (result,) = await worker.results(await worker.submit(retry={"max_retries": 0}))
    assert (result.status, result.error_category) == ("errored", "store")
    assert worker.context.slots.taken() == []


def cut_off(record: Path) -> None:
    record.write_bytes(record.read_bytes()[:5])


def empty(record: Path) -> None:
    record.write_bytes(b"")


def replace_by_a_directory(record: Path) -> None:
    record.unlink()
    record.mkdir()


@pytest.mark.parametrize("spoil", [cut_off, empty, replace_by_a_directory])
async def test_a_record_of_a_dead_worker_that_cannot_be_read_holds_up_no_other(
    worker: InProcessWorker, spoil: Callable[[Path], None]
) -> None:
    worker.provider.held = True
    await worker.submit(repeats=2, concurrency=2)
    await worker.in_turn(2)
    # The records of this process, as one has left them that is dead.
    dead = worker.records.root / "1-1"
    dead.mkdir()
    tokens = sorted(worker.records.directory.glob("*.token"))
    assert len(tokens) == 2
    for token in tokens:
        (dead / token.name).write_bytes(token.read_bytes())
    spoil(dead / tokens[0].name)
    failures = Failures("hand-over")
    assert await worker.records.hand_over(worker.context.client, failures) == 1
    assert await worker.records.hand_over(worker.context.client, failures) == 0
    assert dead.exists() == (spoil is replace_by_a_directory)
