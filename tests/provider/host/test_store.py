"""The store: one blob a content, checked when it is read, and errors that say what to do."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchflow.contracts.base import ArtifactRef
from benchflow.errors import ConfigError, CorruptArtifactError, DiskFullError, MissingArtifactError, StoreError
from benchflow.host import HostSlots, read_host_id
from benchflow.host_files import write_atomic
from benchflow.paths import StatePaths
from benchflow.store import DirectoryBackend, FsspecBackend, Store, check_reach


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(DirectoryBackend(tmp_path / "store"))


def blob(store: Store, ref: ArtifactRef) -> Path:
    return Path(ref.uri.removeprefix("file://"))


async def test_equal_content_is_one_blob(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    first, second = await store.put_bytes(b"content"), await store.put_file(tmp_path / "file")
    assert first == second
    assert (first.size, len(first.sha256)) == (7, 64)
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == [blob(store, first)]
    assert await store.read(first) == b"content"


async def test_a_blob_is_found_by_its_digest(store: Store) -> None:
    ref = await store.put_bytes(b"content")
    assert await store.find(ref.sha256) == ref
    assert await store.find("0" * 64) is None


async def test_a_blob_is_fetched_whole_or_not_at_all(store: Store, tmp_path: Path) -> None:
    ref = await store.put_bytes(b"content")
    await store.fetch(ref, tmp_path / "deep" / "target")
    assert (tmp_path / "deep" / "target").read_bytes() == b"content"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["target"]


def test_of_a_writer_that_dies_in_the_middle_nothing_is_left(tmp_path: Path) -> None:
    fifo = tmp_path / "source"
    os.mkfifo(fifo)
    script = (
        "import sys; from pathlib import Path; from benchflow.store import DirectoryBackend;"
        "DirectoryBackend(Path(sys.argv[1])).put('sha256/ab/ab', Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "store"), str(fifo)]
    with subprocess.Popen(command) as writer, fifo.open("wb") as data:
        data.write(b"half of it")
        data.flush()
        writer.kill()
        writer.wait()
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


async def test_a_blob_that_is_not_its_digest_is_refused(store: Store, tmp_path: Path) -> None:
    ref = await store.put_bytes(b"content")
    blob(store, ref).write_bytes(b"tampered")
    with pytest.raises(CorruptArtifactError) as caught:
        await store.fetch(ref, tmp_path / "target")
    assert caught.value.file == ref.uri
    assert not caught.value.retryable
    assert not (tmp_path / "target").exists()


async def test_a_blob_that_is_missing_names_the_setting(store: Store) -> None:
    ref = await store.put_bytes(b"content")
    blob(store, ref).unlink()
    with pytest.raises(StoreError, match="does not hold") as caught:
        await store.read(ref)
    assert "BENCHFLOW_STORE" in str(caught.value.remedy)
    assert caught.value.retryable


@pytest.mark.parametrize("torn", [b"", b"cont", b"content and more"])
async def test_a_blob_that_a_power_cut_has_torn_is_written_again(store: Store, torn: bytes) -> None:
    ref = await store.put_bytes(b"content")
    blob(store, ref).write_bytes(torn)
    assert await store.put_bytes(b"content") == ref
    assert await store.read(ref) == b"content"
    assert [path for path in (blob(store, ref).parents[2]).rglob("*") if path.is_file()] == [blob(store, ref)]


async def test_what_is_durable_has_a_name_that_survives_a_power_cut(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a power cut only the calls can be seen: each directory that got a name is synced, after it got it."""
    synced: list[Path] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        place = Path(f"/proc/self/fd/{fd}").readlink()
        if place.is_dir():
            synced.append(place)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    write_atomic(tmp_path / "new" / "job" / "result.json", b"x")
    assert synced == [tmp_path, tmp_path / "new", tmp_path / "new" / "job"]
    synced.clear()
    ref = await store.put_bytes(b"content")
    place = blob(store, ref).parent
    assert synced == [tmp_path, tmp_path / "store", tmp_path / "store" / "sha256", place]
    synced.clear()
    write_atomic(tmp_path / "cache.json", b"x", durable=False)
    assert synced == []


class Unreachable:
    """What fsspec gives for a place, when its client fails with exceptions of its own."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def info(self, path: str) -> None:
        raise self.error

    def makedirs(self, path: str, *, exist_ok: bool) -> None:
        raise self.error

    def get_file(self, path: str, target: str) -> None:
        raise self.error


class ClientError(Exception):
    """As object stores' clients have them."""


@pytest.mark.parametrize("error", [ClientError("SlowDown"), ConnectionError("reset"), TimeoutError("read")])
async def test_an_object_store_that_fails_is_asked_again(error: Exception, tmp_path: Path) -> None:
    store = Store(remote(error))
    with pytest.raises(StoreError) as caught:
        await store.put_bytes(b"content")
    assert caught.value.retryable
    for work in (store.find("0" * 64), store.read(ArtifactRef(uri="s3://bucket/x", sha256="0" * 64, size=1))):
        with pytest.raises(StoreError) as caught:
            await work
        assert caught.value.retryable


async def test_what_an_object_store_does_not_hold_is_missing_and_no_outage() -> None:
    store = Store(remote(FileNotFoundError("no such key")))
    assert await store.find("0" * 64) is None
    with pytest.raises(MissingArtifactError) as caught:
        await store.read(ArtifactRef(uri="s3://bucket/x", sha256="0" * 64, size=1))
    assert not caught.value.is_outage


def remote(error: Exception) -> FsspecBackend:
    """A place in an object store; this environment has no client of one."""
    made = FsspecBackend.__new__(FsspecBackend)
    made._url, made._root, made._fs = "s3://bucket", "bucket", Unreachable(error)
    return made


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_the_setting_is_a_directory_or_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    monkeypatch.setenv("BENCHFLOW_STORE", f"{prefix}{tmp_path}/there")
    store = Store.open()
    assert store.is_local
    assert store.backend.url == f"file://{tmp_path}/there"


def test_without_a_setting_it_lies_in_the_state_directory(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCHFLOW_STORE", raising=False)
    assert Store.open().backend.url == f"file://{state}/store"


def test_a_directory_is_no_store_for_a_server_elsewhere(store: Store) -> None:
    check_reach(store, True)
    with pytest.raises(ConfigError, match="local directory"):
        check_reach(store, False)


# --- a full disk ---------------------------------------------------------------------------------------


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True)
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


async def test_a_full_disk_under_the_store(full_disk: Path) -> None:
    store = Store(DirectoryBackend(full_disk))
    kept = await store.put_bytes(b"small")
    with pytest.raises(DiskFullError, match="no space left") as caught:
        await store.put_bytes(os.urandom(200_000))
    assert caught.value.remedy and str(full_disk) in str(caught.value.file)
    assert await store.read(kept) == b"small"


async def test_a_disk_that_is_full_where_a_blob_is_fetched_to(full_disk: Path, store: Store) -> None:
    ref = await store.put_bytes(os.urandom(200_000))
    with pytest.raises(DiskFullError, match="no space left") as caught:
        await store.fetch(ref, full_disk / "target")
    assert caught.value.retryable
    assert list(full_disk.iterdir()) == []


async def test_a_disk_that_is_full_where_slots_are_noted(full_disk: Path) -> None:
    with contextlib.suppress(OSError), (full_disk / "fill").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    with pytest.raises(DiskFullError):
        await HostSlots(full_disk / "slots", 1, 0.05).wait("a")
    with pytest.raises(DiskFullError):
        read_host_id(StatePaths(full_disk))


def test_a_full_disk_leaves_the_old_file(full_disk: Path) -> None:
    write_atomic(full_disk / "result.json", b"old")
    with pytest.raises(DiskFullError):
        write_atomic(full_disk / "result.json", os.urandom(200_000))
    assert (full_disk / "result.json").read_bytes() == b"old"
    assert [path.name for path in (full_disk).iterdir()] == ["result.json"]


def test_a_file_that_may_not_grow_is_an_error_too(tmp_path: Path) -> None:
    """The limit of a process, for those who cannot mount a small disk."""
    script = (
        "import resource, signal, sys; from pathlib import Path; from benchflow.host_files import write_atomic\n"
        "from benchflow.errors import StoreError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: write_atomic(Path(sys.argv[1]), b'x' * 5000)\n"
        "except StoreError as error: print(error.message)\n"
    )
    said = subprocess.run([sys.executable, "-c", script, str(tmp_path / "f")], capture_output=True, text=True)
    assert "cannot write" in said.stdout, said.stderr
    assert list(tmp_path.iterdir()) == []
