"""Images of local sandboxes: the bare host, a layer built over it, a ready image, or a snapshot.

An image is a volume: its files beside its record, `image.json`. A *layer* never changes and lies below many sandboxes;
a *snapshot* has the changed files of one sandbox, and is copied for the next one. Both are valid only while the host
below them is unchanged, unless there is a ready image below: that is a whole root, over which nothing of the host is
seen.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from benchflow.contracts.base import Model
from benchflow.contracts.images import ImageRef, user_of
from benchflow.errors import SandboxError, SandboxStartError

BARE = "host"
"""Reference of the bare host."""

PREFIX = "local/"
"""Prefix of the references of layers and snapshots; the key follows."""

SHELL = ("/bin/sh", "-c")
"""Default shell of RUN, ENTRYPOINT and CMD."""

WHOLE = f"image/{platform.machine()}"
"""Fingerprint of images over a ready image: of the host, they need only its kind of processor."""


class LocalImage(Model):
    """Record of an image, stored as `image.json`."""

    kind: Literal["layer", "snapshot"] = "layer"
    """Whether it lies below sandboxes as it is, or is copied for each."""
    fingerprint: str
    """Fingerprint of the host that it was made over; `WHOLE` over a ready image."""
    base: str | None = None
    """Key of the layer below a snapshot; None if the host is below."""
    env: dict[str, str] = {}
    """Environment of its sandboxes' commands."""
    workdir: str | None = None
    """Working directory of its sandboxes; None if unset."""
    user: str | None = None
    """User of its entrypoint, and the first user of builds over it; None for root."""
    shell: tuple[str, ...] = SHELL
    """First shell of builds over it."""
    entrypoint: tuple[str, ...] = ()
    """ENTRYPOINT, which `user` runs."""
    command: tuple[str, ...] = ()
    """CMD, which follows the entrypoint."""
    warnings: tuple[str, ...] = ()
    """Differences from the image that was asked for, as sentences."""

    @property
    def is_whole(self) -> bool:
        """Return whether a ready image lies below the files of its sandboxes, instead of the host."""
        return self.fingerprint == WHOLE

    def ref(self, key: str) -> ImageRef:
        """Return the reference of this image under `key`."""
        user = user_of(self.user)
        return ImageRef(reference=f"{PREFIX}{key}", workdir=self.workdir, user=user, built=True, warnings=self.warnings)

    def write(self, volume: Path) -> None:
        """Write the record into a volume that is about to become an image."""
        (volume / "image.json").write_text(self.model_dump_json())


def parse_key(image: ImageRef) -> str | None:
    """Return the key of a layer or snapshot; None for the bare host.

    Raises:
        SandboxStartError: The reference is not one of a local image.
    """
    if image.reference == BARE:
        return None
    if not image.reference.startswith(PREFIX):
        raise SandboxStartError(
            f"{image.reference} is not an image of the local sandbox",
            key="image",
            remedy="build it with this provider, or use --sandbox docker",
        )
    return image.reference.removeprefix(PREFIX)


def read_image(store: Path, key: str) -> LocalImage | None:
    """Return the record of the image with this key; None if there is none, or an invalid one."""
    try:
        return LocalImage.model_validate_json((store / "images" / key / "image.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


def require_image(store: Path, key: str, fingerprint: str) -> LocalImage:
    """Return the record of the image with this key.

    Args:
        store: Root directory of the store.
        key: Key of the image.
        fingerprint: The host's fingerprint.

    Raises:
        SandboxStartError: The image is not on this host.
        SandboxError: It was made over other programs of the host.
    """
    image = read_image(store, key)
    if image is None:
        raise SandboxStartError(f"the image {PREFIX}{key} is not on this host", key="image", remedy="build it again")
    if image.fingerprint not in (fingerprint, WHOLE):
        raise SandboxError(
            f"this machine's programs have changed since {PREFIX}{key} was made, and would change below its files",
            key="image",
            remedy="build the task again; a snapshot cannot be restored over a changed machine, start from the task",
        )
    return image
