"""The base of every data model, and the reference that stands for bulk data.

Nothing here does I/O. Models are frozen and refuse unknown keys, because a key that is parsed and
ignored is a wrong result that nobody sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

MAX_INLINE_BYTES = 32 * 1024
"""Above this, a payload travels as an `ArtifactRef`, never inside a message to the server."""

MAX_MESSAGE_BYTES = 16 * 1024**2
"""Most bytes of a message. A workflow holds all that it is sent in the memory of its worker."""


class Model(BaseModel):
    """A frozen pydantic model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, protected_namespaces=())


def non_finite(value: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the place of each NaN or infinity in a model: pydantic reads them from `1e999`, or from a text."""
    if isinstance(value, float):
        if not isfinite(value):
            yield at
        return
    inner: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, BaseModel):
        inner = vars(value).items()
    elif isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    for key, each in inner:
        yield from non_finite(each, (*at, key))


class ArtifactRef(Model):
    """A blob in the artifact store, addressed by its content.

    uri: the store's URL of the blob. sha256: hex digest of the bytes. size: bytes.
    """

    uri: str
    # It is part of paths, and a reference may have been read from a file that somebody else wrote.
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int


class BlobStore(Protocol):
    """What a plane needs of the artifact store. Every host of a cluster sees the same one."""

    async def put_file(self, path: Path) -> ArtifactRef: ...

    async def put_bytes(self, data: bytes) -> ArtifactRef: ...

    async def find(self, sha256: str) -> ArtifactRef | None:
        """The blob of a digest, None where the store does not hold it."""
        ...

    async def fetch(self, ref: ArtifactRef, target: Path) -> None:
        """Write a blob to a file. Raises `StoreError`, and `CorruptArtifactError` if it is not what it was."""
        ...

    async def read(self, ref: ArtifactRef) -> bytes: ...
