"""The base of every data model, and the reference that stands for bulk data.

Nothing here does I/O. Models are frozen and refuse unknown keys, because a key that is parsed and
ignored is a wrong result that nobody sees.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

MAX_INLINE_BYTES = 64 * 1024
"""Above this, data travels as an `ArtifactRef`, never inside a workflow payload."""


class Model(BaseModel):
    """A frozen pydantic model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, protected_namespaces=())


class ArtifactRef(Model):
    """A blob in the artifact store, addressed by its content.

    uri: the store's URL of the blob. sha256: hex digest of the bytes. size: bytes.
    """

    uri: str
    sha256: str
    size: int
