"""Tell the gateway something while its disk is full: it is refused, and done when it is asked for again."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.gateway import Attribution, ModelLimits, Registration
from benchflow.errors import DiskFullError
from benchflow.gateway.rollouts import RolloutCalls, Rollouts
from benchflow.paths import StatePaths

ID = "job/r/task/a/0"
TOKEN, NEW_TOKEN = "bfg-" + "0" * 48, "bfg-" + "1" * 48


def gateway(directory: Path) -> Rollouts:
    """Return the rollouts of a gateway that was just started."""
    paths = StatePaths(directory / "state").gateway
    paths.rollouts.mkdir(parents=True, exist_ok=True)
    rollouts = Rollouts(paths, None)
    rollouts.load()
    return rollouts


def registration(directory: Path, **more: Any) -> Registration:
    given = {"id": ID, "token": TOKEN, "job_id": "job", "agent": "policy", "api": "openai-chat"}
    given |= {"base_url": "http://127.0.0.1:1/v1", "record": str(directory / "calls.jsonl")}
    return Registration.model_validate(given | more)


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, name: str = "replace") -> Iterator[None]:
    """Have a method of `Path` that the gateway changes its files with fail as on a full disk."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, name, refuse)
        yield


def knowledge(rollout: RolloutCalls | None) -> tuple[Registration, Attribution, bool, ModelLimits] | None:
    """Return all that a gateway was told of a rollout."""
    return rollout and (rollout.registration, rollout.attribution, rollout.is_held, rollout.meter.limits)


def state(rollouts: Rollouts) -> list[Any]:
    return [
        knowledge(rollouts.find_by_token(TOKEN)),
        knowledge(rollouts.find_by_token(NEW_TOKEN)),
        *map(knowledge, rollouts.all()),
    ]


CHANGES: dict[str, Callable[[Rollouts, Path], Any]] = {
    "hold": lambda rollouts, _: rollouts.hold(ID, True),
    "attribute": lambda rollouts, _: rollouts.attribute(ID, Attribution(node="root/1", role="agent", turn=1)),
    "new settings": lambda rollouts, directory: rollouts.register(
        registration(directory, limits={"calls": 3}, stall_sec=900)
    ),
    "a new record": lambda rollouts, directory: rollouts.register(
        registration(directory, record=str(directory / "other.jsonl"))
    ),
    "a new token": lambda rollouts, directory: rollouts.register(registration(directory, token=NEW_TOKEN)),
}


async def finish(asked: Any) -> None:
    """Await what is to be awaited: registering reads records in a thread."""
    if hasattr(asked, "__await__"):
        await asked


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_that_a_full_disk_refuses_is_made_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    rollouts = gateway(tmp_path)
    await rollouts.register(registration(tmp_path))
    before = state(rollouts)
    with full_disk(monkeypatch), pytest.raises(DiskFullError):
        await finish(CHANGES[change](rollouts, tmp_path))
    assert state(rollouts) == before
    await finish(CHANGES[change](rollouts, tmp_path))
    assert state(rollouts) != before
    # The next gateway knows the same.
    assert state(gateway(tmp_path)) == state(rollouts)


async def test_calls_are_let_go_by_the_next_gateway_although_the_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = gateway(tmp_path)
    await rollouts.register(registration(tmp_path))
    rollouts.hold(ID, True)
    with full_disk(monkeypatch), pytest.raises(DiskFullError):
        rollouts.hold(ID, False)
    rollouts.hold(ID, False)
    assert not gateway(tmp_path).get(ID).is_held


async def test_a_rollout_that_a_full_disk_refuses_is_known_when_it_is_registered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = gateway(tmp_path)
    with full_disk(monkeypatch), pytest.raises(DiskFullError):
        await rollouts.register(registration(tmp_path))
    assert rollouts.all() == []
    await rollouts.register(registration(tmp_path))
    assert gateway(tmp_path).find_by_token(TOKEN) is not None


async def test_a_rollout_whose_file_cannot_be_removed_is_forgotten_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = gateway(tmp_path)
    await rollouts.register(registration(tmp_path))
    with full_disk(monkeypatch, "unlink"), pytest.raises(DiskFullError):
        rollouts.forget(ID)
    rollouts.forget(ID)
    assert rollouts.all() == gateway(tmp_path).all() == []
