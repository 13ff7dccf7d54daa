"""The artifact store: blobs by the hash of their content. A local directory by default, another place by URL.

Writing the same content twice writes it once; reading checks the hash. `s3://…` and other URLs go through
fsspec (`pip install benchflow[s3]`), imported when such a URL is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.failures import storage_error
from benchflow.disk_writes import append_all, end_of_lines, sync_directory
from benchflow.errors import BenchFlowError, ConfigError, CorruptArtifactError, MissingArtifactError, StoreError
from benchflow.paths import StatePaths

STORE_VARIABLE = "BENCHFLOW_STORE"
ARTIFACTS = "sha256"
"""The directory of the store with what is kept for good, or until it is let go of by name."""

BULK = "bulk"
"""The directory of the store with large messages, which go some time after the last workflow that may need them."""

_CHUNK = 1 << 20
_REMEDY = f"point {STORE_VARIABLE} of worker and submitter at the same store"


@contextlib.contextmanager
def storage_errors(what: Path | str) -> Iterator[None]:
    """Translate the operating system's errors about files that we write."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, str(what)) from error


def make_private_directory(path: Path, *, durable: bool = False) -> None:
    """Make a directory, and those above it that are missing, for its user alone. One that exists stays as it is.

    durable: wait until those that were made would survive a power cut.
    """
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        if durable and not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)
            sync_directory(each.parent)
        else:
            each.mkdir(mode=0o700, exist_ok=True)


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True, replaces: bool = True) -> bool:
    """Write a file so that a reader, and a crash at any moment, sees all of it or none. Return whether it was written.

    mode: of the file, whatever the umask is. durable: wait until it would survive a power cut; without, it is one that
    can be made again. replaces: whether it takes the place of one that came meanwhile.
    """
    with storage_errors(path):
        make_private_directory(path.parent, durable=durable)
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            Path(name).chmod(mode)
            if replaces:
                Path(name).replace(path)
            else:
                path.hardlink_to(name)
            if durable:
                sync_directory(path.parent)
            return True
        except FileExistsError:
            return False
        finally:
            Path(name).unlink(missing_ok=True)


class Backend(Protocol):
    """Where blobs lie. Keys are `<directory>/ab/<hex>`."""

    @property
    def url(self) -> str: ...

    def size(self, key: str) -> int | None:
        """The bytes of a blob; None when there is none."""
        ...

    def put(self, key: str, source: Path) -> None:
        """Store a file, in the place of one that was torn."""
        ...

    def renew(self, key: str) -> None:
        """Note that a blob is needed again, where unused ones are removed by age."""
        ...

    def get(self, key: str, target: Path) -> None: ...


class DirectoryBackend:
    """Blobs as files below a directory of this host, or of a file system that all hosts share."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def url(self) -> str:
        return self.root.absolute().as_uri()

    def size(self, key: str) -> int | None:
        try:
            return (self.root / key).stat().st_size
        except FileNotFoundError:
            return None

    def put(self, key: str, source: Path) -> None:
        target = self.root / key
        with storage_errors(target):
            make_private_directory(target.parent, durable=True)
            # One that exists is torn, by a power cut or a copy that was broken off: no link replaces it.
            if target.exists() or not _link_whole(source, target):
                partial = target.with_name(f".{target.name}.{os.getpid()}.{id(source)}")
                partial.touch(mode=0o600)
                with partial.open("wb") as blob:
                    _copy(source, blob)
                partial.replace(target)
            sync_directory(target.parent)

    def renew(self, key: str) -> None:
        with storage_errors(key):
            os.utime(self.root / key)

    def get(self, key: str, target: Path) -> None:
        with storage_errors(target):
            try:
                shutil.copyfile(self.root / key, target)
            except FileNotFoundError as error:
                # Tried again: a directory that hosts share by NFS may show a new file some seconds late.
                raise MissingArtifactError(
                    "the store does not hold this artifact", file=str(self.root / key), remedy=_REMEDY
                ) from error


def _link_whole(source: Path, target: Path) -> bool:
    """Copy a file into one that has no name until it is whole: of a writer that dies nothing is left.

    False where the file system has no such files.
    """
    try:
        fd = os.open(target.parent, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except (AttributeError, OSError):
        return False
    with os.fdopen(fd, "wb") as blob:
        _copy(source, blob)
        with contextlib.suppress(FileExistsError):
            # With a directory given, the link is followed to the file itself.
            os.link(f"/proc/self/fd/{fd}", target, src_dir_fd=fd)
    return True


def _copy(source: Path, blob: IO[bytes]) -> None:
    with source.open("rb") as data:
        shutil.copyfileobj(data, blob, _CHUNK)
    # A name that is a digest is believed from now on, also after a power cut.
    blob.flush()
    os.fsync(blob.fileno())


class FsspecBackend:
    """Blobs in whatever fsspec can reach."""

    def __init__(self, url: str) -> None:
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
        return self._url

    def size(self, key: str) -> int | None:
        with self._remote_errors(key):
            try:
                return int(self._fs.info(f"{self._root}/{key}")["size"])
            except FileNotFoundError:
                return None

    def put(self, key: str, source: Path) -> None:
        with self._remote_errors(key):
            self._fs.makedirs(f"{self._root}/{key}".rpartition("/")[0], exist_ok=True)
            self._fs.put_file(str(source), f"{self._root}/{key}")

    def renew(self, key: str) -> None:
        """Do nothing: what is stored there goes by the rules of that place."""

    def get(self, key: str, target: Path) -> None:
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
            with storage_errors(f"{self._url}/{key}"):
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
    """The artifact store of a process. Blocking work runs off the event loop."""

    def __init__(self, backend: Backend, directory: str = ARTIFACTS) -> None:
        self.backend = backend
        self._directory = directory

    def below(self, directory: str) -> Store:
        """Return the part of the same place whose blobs lie in another directory."""
        return Store(self.backend, directory)

    def _key(self, sha256: str) -> str:
        return f"{self._directory}/{sha256[:2]}/{sha256}"

    @classmethod
    def open(cls, url: str | None = None) -> Store:
        """The store at `url`, else at `$BENCHFLOW_STORE`, else in the state directory."""
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
        """Whether only this host (or those that share its file system) can read it."""
        return isinstance(self.backend, DirectoryBackend)

    async def put_file(self, path: Path) -> ArtifactRef:
        return await asyncio.to_thread(self._put_file, path)

    async def put_bytes(self, data: bytes) -> ArtifactRef:
        def put() -> ArtifactRef:
            with storage_errors(tempfile.gettempdir()), tempfile.NamedTemporaryFile() as file:
                file.write(data)
                file.flush()
                return self._put_file(Path(file.name))

        return await asyncio.to_thread(put)

    async def find(self, sha256: str) -> ArtifactRef | None:
        """The blob of a digest, None where the store does not hold it."""
        key = self._key(sha256)
        size = await asyncio.to_thread(self.backend.size, key)
        return None if size is None else ArtifactRef(uri=f"{self.backend.url}/{key}", sha256=sha256, size=size)

    async def fetch(self, ref: ArtifactRef, target: Path) -> None:
        """Write the blob to `target`, atomically. Raises `CorruptArtifactError` if it is not what it was."""
        await asyncio.to_thread(self._fetch, ref, target)

    async def read(self, ref: ArtifactRef) -> bytes:
        def read() -> bytes:
            with storage_errors(tempfile.gettempdir()), tempfile.TemporaryDirectory() as scratch:
                target = Path(scratch) / "blob"
                self._fetch(ref, target)
                return target.read_bytes()

        return await asyncio.to_thread(read)

    def _put_file(self, path: Path) -> ArtifactRef:
        digest = file_digest(path)
        key, size = self._key(digest), path.stat().st_size
        # One of another size was torn, by a power cut or an upload that was broken off.
        if self.backend.size(key) != size:
            self.backend.put(key, path)
        else:
            self.backend.renew(key)
        return ArtifactRef(uri=f"{self.backend.url}/{key}", sha256=digest, size=size)

    def _fetch(self, ref: ArtifactRef, target: Path) -> None:
        key = self._key(ref.sha256)
        with storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            self.backend.get(key, partial)
            if file_digest(partial) != ref.sha256:
                raise CorruptArtifactError(
                    "the stored bytes do not have their digest",
                    file=ref.uri,
                    remedy="remove the file from the store, and have what wrote it run again",
                )
            with storage_errors(target):
                partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


class PinnedStore:
    """A store as somebody sees it who brings blobs that may go again. name: under which they are needed, until `unpin`.

    A blob may be needed under many names. It is noted before it is looked for, so that nobody removes what was found.
    Only directories have such notes: what is brought elsewhere stays, for the rules of that place to remove.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    async def put_file(self, path: Path) -> ArtifactRef:
        await asyncio.to_thread(lambda: self._pin(file_digest(path)))
        return await self._store.put_file(path)

    async def put_bytes(self, data: bytes) -> ArtifactRef:
        await asyncio.to_thread(self._pin, hashlib.sha256(data).hexdigest())
        return await self._store.put_bytes(data)

    async def find(self, sha256: str) -> ArtifactRef | None:
        await asyncio.to_thread(self._pin, sha256)
        return await self._store.find(sha256)

    async def fetch(self, ref: ArtifactRef, target: Path) -> None:
        await self._store.fetch(ref, target)

    async def read(self, ref: ArtifactRef) -> bytes:
        return await self._store.read(ref)

    def _pin(self, sha256: str) -> None:
        backend = self._store.backend
        if isinstance(backend, DirectoryBackend):
            with _pins(backend) as notes, (notes / self._name).open("a+b") as note:
                # Behind what a full disk, or a power cut, has left of a line, this one would be none.
                note.truncate(end_of_lines(note.fileno()))
                append_all(note.fileno(), f"{sha256}\n".encode())


def unpin(store: Store, name: str) -> None:
    """Remove the blobs that were needed under this name, and are under no other. None is success."""
    backend = store.backend
    if not isinstance(backend, DirectoryBackend) or not (backend.root / _PINS / name).exists():
        return
    with _pins(backend) as notes:
        mine = _pinned(notes / name)
        needed = {digest for note in notes.iterdir() if note.name not in (name, _LOCK) for digest in _pinned(note)}
        for digest in mine - needed:
            (backend.root / store._key(digest)).unlink(missing_ok=True)
        (notes / name).unlink(missing_ok=True)


_PINS = "pins"
_LOCK = ".lock"


@contextlib.contextmanager
def _pins(backend: DirectoryBackend) -> Iterator[Path]:
    """The directory of the notes, with nobody else at them."""
    notes = backend.root / _PINS
    with storage_errors(notes):
        notes.mkdir(parents=True, exist_ok=True)
        with (notes / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield notes


def _pinned(note: Path) -> set[str]:
    try:
        return set(note.read_text().split())
    except FileNotFoundError:
        return set()


def check_reach(store: Store, server_is_here: bool) -> None:
    """Raise `ConfigError` when a directory of this host is to be the store of a cluster elsewhere."""
    if store.is_local and not server_is_here:
        raise ConfigError(
            "the artifact store is a local directory, but the Temporal server is on another host",
            key=STORE_VARIABLE,
            remedy=f"set {STORE_VARIABLE}=s3://bucket/prefix (or another URL that every host reaches)",
        )


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
