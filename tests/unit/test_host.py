"""The capacity of a host, counted in slots; and which of its directories are a user's own."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.errors import ConfigError, DiskFullError, HostFullError
from benchflow.host import MAX_LINKS, HostSlots, SlotOwner, make_state_private, require_own_place
from benchflow.jobs.identity import check_jobs_dir
from benchflow.paths import JobPaths, StatePaths

OTHER = 47_112
"""A user of the host, and a group, that have no account."""


async def test_slots_are_taken_once_a_sandbox_and_waited_for(tmp_path: Path) -> None:
    slots = HostSlots(tmp_path / "slots", 2, 60)
    assert slots.take("a") and slots.take("b") and slots.take("a")
    assert not slots.take("c")
    assert not HostSlots(tmp_path / "slots", 2, 60).take("c")
    waiting = asyncio.create_task(slots.wait("c"))
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.free("a")
    await asyncio.wait_for(waiting, 60)
    assert slots.taken() == ["b", "c"]
    slots.free("never taken")


async def test_a_slot_that_was_lent_is_taken_again_when_there_is_room(tmp_path: Path) -> None:
    slots = HostSlots(tmp_path / "slots", 1, 60)
    assert slots.take("parent")
    slots.lend("parent")
    assert slots.take("child")
    assert not slots.take("parent")
    slots.free("child")
    assert slots.take("parent")
    assert not slots.take("child")


def test_a_slot_in_which_a_process_works_is_not_freed(tmp_path: Path) -> None:
    slots = HostSlots(tmp_path / "slots", 2, 60)
    assert slots.take("a", owner=SlotOwner("workflow", "run"))
    with HostSlots(tmp_path / "slots", 2, 60).in_use("a"):
        # A later attempt takes it over while an earlier one works in it.
        assert slots.take("a", 2)
        assert not slots.free_unused("a")
        assert slots.taken() == ["a"]
    assert slots.owner("a") == SlotOwner("workflow", "run")
    assert slots.is_current("a", 2) and not slots.is_current("a", 1)
    assert slots.free_unused("a") and slots.free_unused("a")
    assert slots.taken() == []


def test_a_full_disk_leaves_what_a_slot_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = HostSlots(tmp_path / "slots", 2, 60)
    assert slots.take("a", 2, SlotOwner("workflow", "run"))

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        with pytest.raises(DiskFullError):
            slots.take("a", 3)
        with pytest.raises(DiskFullError):
            slots.take("b")
    # The attempt before the last is still known as such, and the slot's owner as its owner.
    assert not slots.is_current("a", 1)
    assert slots.owner("a") == SlotOwner("workflow", "run")
    assert slots.taken() == ["a"]


@pytest.mark.parametrize(("content", "current"), [("7", 7), ("", 0)])
def test_a_slot_of_an_earlier_version_or_cut_off_by_a_full_disk_has_no_owner(
    tmp_path: Path, content: str, current: int
) -> None:
    slots = HostSlots(tmp_path / "slots", 1, 60)
    (tmp_path / "slots").mkdir()
    (tmp_path / "slots" / "a").write_text(content)
    assert slots.owner("a") is None
    assert slots.is_current("a", current) and not slots.is_current("a", current - 1)


async def test_a_host_that_stays_full_says_so_retryably(tmp_path: Path) -> None:
    slots = HostSlots(tmp_path / "slots", 1, 0.05)
    slots.take("a")
    with pytest.raises(HostFullError) as caught:
        await slots.wait("b")
    assert caught.value.retryable
    assert caught.value.key == "BENCHFLOW_HOST_CAPACITY"


# --- whose a directory is ----------------------------------------------------------------------------------


def mode(bits: int) -> Callable[[Path], None]:
    return lambda place: place.chmod(bits)


def give_away(place: Path) -> None:
    os.chown(place, OTHER, OTHER)


def give_to_group(place: Path) -> None:
    os.chown(place, -1, OTHER)
    place.chmod(0o770)


def link_of_others(place: Path) -> None:
    place.rename(place.with_name("real"))
    place.symlink_to("real")
    os.chown(place, OTHER, OTHER, follow_symlinks=False)


def link_to_others(place: Path) -> None:
    place.rename(place.with_name("real"))
    give_away(place.with_name("real"))
    place.symlink_to("real")


def link_to_itself(place: Path) -> None:
    place.rmdir()
    place.symlink_to(place.name)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (mode(0o777), "can be written by all users"),
        pytest.param(give_away, f"belongs to user {OTHER}", marks=needs_root),
        pytest.param(give_to_group, f"can be written by group {OTHER}", marks=needs_root),
        pytest.param(link_of_others, f"belongs to user {OTHER}", marks=needs_root),
        pytest.param(link_to_others, f"belongs to user {OTHER}", marks=needs_root),
        (link_to_itself, "too many links"),
    ],
)
@pytest.mark.parametrize("below", ["", "state", "not/there/yet"])
def test_a_place_that_others_can_change_is_refused(
    tmp_path: Path, make: Callable[[Path], None], problem: str, below: str
) -> None:
    place = tmp_path / "place"
    (place / "state").mkdir(parents=True)
    if make is link_to_itself:
        (place / "state").rmdir()
    make(place)
    with pytest.raises(ConfigError, match=problem) as caught:
        require_own_place(place / below, key="KEY")
    assert (caught.value.file, caught.value.key) == (str(place / below), "KEY")
    with pytest.raises(ConfigError, match=problem):
        make_state_private(StatePaths(place / below))
    with pytest.raises(ConfigError, match=problem):
        check_jobs_dir(JobPaths.of(place / below, "job"), place / below)
    assert not (place / "not").exists()


@pytest.mark.parametrize("bits", [0o700, 0o755, 0o1777, pytest.param(0o775, marks=needs_root)])
def test_a_place_of_ones_own_is_taken(tmp_path: Path, bits: int) -> None:
    place = tmp_path / "place"
    (place / "state").mkdir(parents=True)
    # With 0775 for the user's own group, as where each user has one.
    os.chown(place, -1, os.getgid())
    place.chmod(bits)
    (tmp_path / "link").symlink_to("place/../place")
    for way in (place, tmp_path / "link", tmp_path / "link" / ".." / "link"):
        require_own_place(way / "state", key="KEY")
        require_own_place(way / "not" / "there", key="KEY")


def test_as_many_links_as_the_kernel_follows_are_followed(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    for number in range(MAX_LINKS):
        (tmp_path / str(number + 1)).symlink_to(str(number))
    require_own_place(tmp_path / str(MAX_LINKS), key="KEY")
    assert (tmp_path / str(MAX_LINKS)).is_dir()
