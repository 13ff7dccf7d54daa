"""The artifact store: blobs by their SHA-256, stored once and verified when read, in a local directory or at a URL."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from benchflow.contracts.base import ArtifactRef
from benchflow.errors import BenchFlowError, ConfigError, CorruptArtifactError, MissingArtifactError, StoreError
from benchflow.host_files import (
    append_lines,
    create_atomic,
    hold_lock,
    make_private_directory,
    open_fd,
    raise_storage_errors,
    sync_directory,
)
from benchflow.paths import StatePaths

STORE_VARIABLE = "BENCHFLOW_STORE"
"""Environment variable with the URL or the directory of the store; by default it is in the state directory. URLs such
as `s3://…` use fsspec (`benchflow[s3]`), which is imported on use.
"""
ARTIFACTS = "sha256"
"""Directory of the store with artifacts, which are retained until they are removed by name."""

BULK = "bulk"
"""Directory of the store with large messages, removed some time after the last workflow that may need them."""

_CHUNK = 1 << 20
"""Bytes that are copied or hashed at a time."""
_REMEDY = f"point {STORE_VARIABLE} of worker and submitter at the same store"
"""Remedy for an artifact that is missing from the store."""


class Backend(Protocol):
    """Storage of blobs. Keys are `<directory>/ab/<hex>`."""

    @property
    def url(self) -> str:
        """Return the URL of the storage."""
        ...

    def size(self, key: str) -> int | None:
        """Return the size of a blob in bytes; None if there is none."""
        ...

    def put(self, key: str, source: Path) -> None:
        """Store a file, in place of a partial one if there is any."""
        ...

    def renew(self, key: str) -> None:
        """Mark a blob as needed again, where unused ones are removed by age."""
        ...

    def get(self, key: str, target: Path) -> None:
        """Copy a blob to `target`. Raise `MissingArtifactError` if there is none."""
        ...


class DirectoryBackend:
    """Blobs as files below a directory of this host, or of a file system that all hosts share."""

    def __init__(self, root: Path) -> None:
        """Make it for a directory, which may not exist yet."""
        self.root = root

    @property
    def url(self) -> str:
        """Return the `file:` URL of the directory."""
        return self.root.absolute().as_uri()

    def size(self, key: str) -> int | None:
        """Return the size of a blob in bytes; None if there is none."""
        try:
            return (self.root / key).stat().st_size
        except FileNotFoundError:
            return None

    def put(self, key: str, source: Path) -> None:
        """Store a file durably. A partial one, of a power cut or an interrupted copy, is replaced: `os.link` cannot."""
        target = self.root / key
        with raise_storage_errors(target):
            make_private_directory(target.parent, durable=True)
            if target.exists() or not _copy_by_tmpfile(source, target):
                with source.open("rb") as data, create_atomic(target, durable=True) as blob:
                    shutil.copyfileobj(data, blob, _CHUNK)

    def renew(self, key: str) -> None:
        """Set the blob's modification time to now."""
        with raise_storage_errors(key):
            os.utime(self.root / key)

    def get(self, key: str, target: Path) -> None:
        """Copy a blob to `target`. Raise `MissingArtifactError`, which is retried: NFS may show new files late."""
        with raise_storage_errors(target):
            try:
                shutil.copyfile(self.root / key, target)
            except FileNotFoundError as error:
                raise MissingArtifactError(
                    "the store does not hold this artifact", file=str(self.root / key), remedy=_REMEDY
                ) from error


def _copy_by_tmpfile(source: Path, target: Path) -> bool:
    """Copy a file by O_TMPFILE: a dying writer leaves nothing. Return False if the file system does not have that."""
    try:
        fd = os.open(target.parent, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except (AttributeError, OSError):
        return False
    with source.open("rb") as data, os.fdopen(fd, "wb") as blob:
        shutil.copyfileobj(data, blob, _CHUNK)
        # Once it has the name of its digest, the file is trusted without being read, also after a power cut.
        blob.flush()
        os.fsync(fd)
        with contextlib.suppress(FileExistsError):
            # With src_dir_fd given, os.link uses linkat(2), and follows the link in /proc to the file itself.
            os.link(f"/proc/self/fd/{fd}", target, src_dir_fd=fd)
    sync_directory(target.parent)
    return True


class FsspecBackend:
    """Blobs at any URL that fsspec supports."""

    def __init__(self, url: str) -> None:
        """Connect to a URL. Raise `ConfigError` if fsspec is not installed."""
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(
                f"{url} needs fsspec", key=STORE_VARIABLE, remedy="pip install 'benchflow[s3]'"
            ) from error
        self._url = url.rstrip("/")
        self._fs: Any
        self._fs, self._root = fsspec.core.url_to_fs(self._url)

    @property
    def url(self) -> str:
        """Return the URL, without a slash at its end."""
        return self._url

    def size(self, key: str) -> int | None:
        """Return the size of a blob in bytes; None if there is none."""
        with self._remote_errors(key):
            try:
                return int(self._fs.info(f"{self._root}/{key}")["size"])
            except FileNotFoundError:
                return None

    def put(self, key: str, source: Path) -> None:
        """Upload a file."""
        with self._remote_errors(key):
            self._fs.makedirs(f"{self._root}/{key}".rpartition("/")[0], exist_ok=True)
            self._fs.put_file(str(source), f"{self._root}/{key}")

    def renew(self, key: str) -> None:
        """Do nothing: blobs there expire by the rules of that place."""

    def get(self, key: str, target: Path) -> None:
        """Download a blob to `target`. Raise `MissingArtifactError` if there is none."""
        with self._remote_errors(key):
            try:
                self._fs.get_file(f"{self._root}/{key}", str(target))
            except FileNotFoundError as error:
                raise MissingArtifactError(
                    "the store does not hold this artifact", file=f"{self._url}/{key}", remedy=_REMEDY
                ) from error

    @contextlib.contextmanager
    def _remote_errors(self, key: str) -> Iterator[None]:
        """Translate the errors of fsspec and of the client below it, each of which has exceptions of its own."""
        try:
            with raise_storage_errors(f"{self._url}/{key}"):
                yield
        except BenchFlowError:
            raise
        except Exception as error:
            raise StoreError(
                f"the store does not answer as it should: {type(error).__name__}: {error}",
                file=f"{self._url}/{key}",
                remedy="check the address, the credentials and the network; it is tried again",
            ) from error


class Store:
    """Artifact store of a process. Blocking work runs off the event loop."""

    def __init__(self, backend: Backend, directory: str = ARTIFACTS) -> None:
        """Make it. directory: the backend's directory of the blobs."""
        self.backend = backend
        self._directory = directory

    def below(self, directory: str) -> Store:
        """Return the store of blobs in another directory of the same backend."""
        return Store(self.backend, directory)

    def _key(self, sha256: str) -> str:
        return f"{self._directory}/{sha256[:2]}/{sha256}"

    @classmethod
    def open(cls, url: str | None = None) -> Store:
        """Return the store at `url`, else at `$BENCHFLOW_STORE`, else in the state directory."""
        url = url or os.environ.get(STORE_VARIABLE)
        if not url:
            return cls(DirectoryBackend(StatePaths.default().store))
        if url.startswith("file://"):
            return cls(DirectoryBackend(Path(url.removeprefix("file://"))))
        if "://" not in url:
            return cls(DirectoryBackend(Path(url).expanduser()))
        return cls(FsspecBackend(url))

    @property
    def is_local(self) -> bool:
        """Return whether only this host (or hosts that share its file system) can read it."""
        return isinstance(self.backend, DirectoryBackend)

    async def put_file(self, path: Path) -> ArtifactRef:
        """Store the content of a file, unless it is there already, and return its reference."""
        return await asyncio.to_thread(self._put_file, path)

    async def put_bytes(self, data: bytes) -> ArtifactRef:
        """Store bytes, unless they are there already, and return their reference."""

        def put() -> ArtifactRef:
            with raise_storage_errors(tempfile.gettempdir()), tempfile.NamedTemporaryFile() as file:
                file.write(data)
                file.flush()
                return self._put_file(Path(file.name))

        return await asyncio.to_thread(put)

    async def find(self, sha256: str) -> ArtifactRef | None:
        """Return the reference of a blob by its digest; None if the store does not have it."""
        key = self._key(sha256)
        size = await asyncio.to_thread(self.backend.size, key)
        return None if size is None else ArtifactRef(uri=f"{self.backend.url}/{key}", sha256=sha256, size=size)

    async def fetch(self, ref: ArtifactRef, target: Path) -> None:
        """Write a blob to `target`, atomically. Raise `CorruptArtifactError` if it does not have its digest."""
        await asyncio.to_thread(self._fetch, ref, target)

    async def read(self, ref: ArtifactRef) -> bytes:
        """Return the bytes of a blob. Raise as `fetch`."""

        def read() -> bytes:
            with raise_storage_errors(tempfile.gettempdir()), tempfile.TemporaryDirectory() as scratch:
                target = Path(scratch) / "blob"
                self._fetch(ref, target)
                return target.read_bytes()

        return await asyncio.to_thread(read)

    def _put_file(self, path: Path) -> ArtifactRef:
        digest = compute_file_digest(path)
        key, size = self._key(digest), path.stat().st_size
        # A blob of another size is partial, after a power cut or an interrupted upload.
        if self.backend.size(key) != size:
            self.backend.put(key, path)
        else:
            self.backend.renew(key)
        return ArtifactRef(uri=f"{self.backend.url}/{key}", sha256=digest, size=size)

    def _fetch(self, ref: ArtifactRef, target: Path) -> None:
        key = self._key(ref.sha256)
        with raise_storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with create_atomic(target) as file:
                partial = Path(file.name)
                self.backend.get(key, partial)
                if compute_file_digest(partial) != ref.sha256:
                    raise CorruptArtifactError(
                        "the stored bytes do not have their digest",
                        file=ref.uri,
                        remedy="remove the file from the store, and have what wrote it run again",
                    )


class PinnedStore:
    """A store that pins its blobs under a name until `unpin`. A blob may be pinned under many names."""

    def __init__(self, store: Store, name: str) -> None:
        """Make it for pins under `name`."""
        self._store = store
        self._name = name

    async def put_file(self, path: Path) -> ArtifactRef:
        """Pin and store the content of a file."""
        await asyncio.to_thread(lambda: self._pin(compute_file_digest(path)))
        return await self._store.put_file(path)

    async def put_bytes(self, data: bytes) -> ArtifactRef:
        """Pin and store bytes."""
        await asyncio.to_thread(self._pin, hashlib.sha256(data).hexdigest())
        return await self._store.put_bytes(data)

    async def find(self, sha256: str) -> ArtifactRef | None:
        """Pin a digest, and return the reference of its blob; None if the store does not have it."""
        await asyncio.to_thread(self._pin, sha256)
        return await self._store.find(sha256)

    async def fetch(self, ref: ArtifactRef, target: Path) -> None:
        """Write a blob to `target`, as `Store.fetch`."""
        await self._store.fetch(ref, target)

    async def read(self, ref: ArtifactRef) -> bytes:
        """Return the bytes of a blob, as `Store.read`."""
        return await self._store.read(ref)

    def _pin(self, sha256: str) -> None:
        backend = self._store.backend
        if isinstance(backend, DirectoryBackend):
            with _lock_pins(backend) as notes, open_fd(notes / self._name, os.O_RDWR | os.O_CREAT) as note:
                append_lines(note, f"{sha256}\n".encode())


def unpin(store: Store, name: str) -> None:
    """Remove the blobs that are pinned under this name and no other. A name without pins is success."""
    backend = store.backend
    if not isinstance(backend, DirectoryBackend) or not (backend.root / _PINS / name).exists():
        return
    with _lock_pins(backend) as notes:
        mine = _read_pins(notes / name)
        needed = {digest for note in notes.iterdir() if note.name not in (name, _LOCK) for digest in _read_pins(note)}
        for digest in mine - needed:
            (backend.root / store._key(digest)).unlink(missing_ok=True)
        (notes / name).unlink(missing_ok=True)


_PINS = "pins"
"""Directory of the pins in a store: a file per name, with one digest per line. A blob is pinned before it is looked up,
so that no `unpin` removes a blob that was found. Only directories have pins: blobs elsewhere expire by the rules of
that place.
"""
_LOCK = ".lock"
"""Lock file in this directory. The context manager `_lock_pins` yields the directory with the lock held."""


@contextlib.contextmanager
def _lock_pins(backend: DirectoryBackend) -> Iterator[Path]:
    notes = backend.root / _PINS
    with raise_storage_errors(notes), hold_lock(notes / _LOCK):
        yield notes


def _read_pins(note: Path) -> set[str]:
    try:
        return set(note.read_text().split())
    except FileNotFoundError:
        return set()


def check_reach(store: Store, server_is_here: bool) -> None:
    """Raise `ConfigError` if the store is a local directory and the Temporal server is on another host."""
    if store.is_local and not server_is_here:
        raise ConfigError(
            "the artifact store is a local directory, but the Temporal server is on another host",
            key=STORE_VARIABLE,
            remedy=f"set {STORE_VARIABLE}=s3://bucket/prefix (or another URL that every host reaches)",
        )


def compute_file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
