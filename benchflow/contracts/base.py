"""The base class of all data models, the reference to a blob of the artifact store, and the store's protocol.

Nothing here does I/O. Models are frozen and refuse unknown keys: a key that is parsed and ignored would be a wrong
result without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

MAX_INLINE_BYTES = 32 * 1024
"""Largest payload, in bytes, of a message to the Temporal server; a larger one travels as an `ArtifactRef`."""

MAX_MESSAGE_BYTES = 16 * 1024**2
"""Largest message, in bytes. A workflow holds all messages that it receives in the memory of its worker."""


class Model(BaseModel):
    """A frozen pydantic model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, protected_namespaces=())


def non_finite(value: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each NaN or infinity in a value. Pydantic parses them from `1e999`, or from a string.

    Args:
        value: A model, dict, list, tuple or scalar.
        at: Path of `value` itself: field names, keys and indices.
    """
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
    """A reference to a blob of the artifact store, which is addressed by its content."""

    uri: str
    """URL of the blob in the store that wrote it. Stores find a blob by its digest, not by this URL."""

    # Checked because it becomes part of paths, and a reference may come from a file that the engine did not write.
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the bytes, in hex. It is the key of the blob."""

    size: int
    """Size of the blob in bytes."""


class BlobStore(Protocol):
    """The artifact store, as the planes use it. All hosts of a cluster share one."""

    async def put_file(self, path: Path) -> ArtifactRef:
        """Store the content of a file, unless the store has it, and return its reference."""
        ...

    async def put_bytes(self, data: bytes) -> ArtifactRef:
        """Store bytes, unless the store has them, and return their reference."""
        ...

    async def find(self, sha256: str) -> ArtifactRef | None:
        """Return the reference of the blob with a digest; None if the store does not have it."""
        ...

    async def fetch(self, ref: ArtifactRef, target: Path) -> None:
        """Write a blob to the file `target`.

        Raises:
            StoreError: The blob can't be read or written.
            CorruptArtifactError: The stored bytes do not have the digest.
        """
        ...

    async def read(self, ref: ArtifactRef) -> bytes:
        """Return the bytes of a blob. Raises as `fetch`."""
        ...
