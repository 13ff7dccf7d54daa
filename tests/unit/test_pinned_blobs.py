"""Blobs that are needed under names: they go with the last name that needs them, and not before."""

from __future__ import annotations

from pathlib import Path

from benchflow.contracts.base import ArtifactRef
from benchflow.store import DirectoryBackend, PinnedStore, Store, unpin


def blobs(root: Path) -> int:
    return sum(1 for file in (root / "sha256").rglob("*") if file.is_file())


async def test_a_blob_goes_with_the_last_name_that_needs_it(tmp_path: Path) -> None:
    store = Store(DirectoryBackend(tmp_path))
    other = await store.put_bytes(b"nobody's in particular")
    one, two = PinnedStore(store, "one"), PinnedStore(store, "two")
    shared = await one.put_bytes(b"base")
    alone = await one.put_bytes(b"top of one")
    assert await two.find(shared.sha256) == shared
    unpin(store, "one")
    assert await store.find(alone.sha256) is None
    assert await two.read(shared) == b"base"
    unpin(store, "two")
    assert await store.find(shared.sha256) is None
    assert await store.find(other.sha256) == other
    unpin(store, "two")


async def test_what_was_only_looked_for_is_brought_again_after_it_went(tmp_path: Path) -> None:
    store = Store(DirectoryBackend(tmp_path))
    file = tmp_path / "file"
    file.write_bytes(b"layer")
    first = await PinnedStore(store, "first").put_file(file)
    unpin(store, "first")
    second = PinnedStore(store, "second")
    assert await second.find(first.sha256) is None
    again: ArtifactRef = await second.put_file(file)
    assert (again, blobs(tmp_path)) == (first, 1)
    unpin(store, "second")
    assert blobs(tmp_path) == 0


async def test_a_line_that_a_full_disk_has_cut_takes_no_other_along(tmp_path: Path) -> None:
    store = Store(DirectoryBackend(tmp_path))
    one, two = PinnedStore(store, "one"), PinnedStore(store, "two")
    shared = await one.put_bytes(b"base")
    (tmp_path / "pins" / "two").write_text("0123")
    assert await two.find(shared.sha256) == shared
    unpin(store, "one")
    assert await two.read(shared) == b"base"
