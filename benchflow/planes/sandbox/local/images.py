"""What a local sandbox starts from: the host alone, a layer built over it, a ready image, or a snapshot.

An image is a volume: its files beside `image.json`, which says what they are. A *layer* never changes and lies below
many sandboxes; a *snapshot* is the changed files of one sandbox, and a copy of it becomes the next one's. Both hold
only while the host below them is the one that they were made on, unless there is a ready image below them: it is a
whole root, and nothing of the host is seen.
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
"""The reference of the host as it is."""

PREFIX = "local/"

SHELL = ("/bin/sh", "-c")

WHOLE = f"image/{platform.machine()}"
"""The fingerprint where no host lies below: all that a ready image needs of this one is its kind of processor."""


class Image(Model):
    """What `image.json` says. fingerprint: of the host below. base: the layer below a snapshot. env, workdir: what its
    sandboxes' commands get. user, shell: what those built upon it begin with. entrypoint, command: what it runs by
    itself, as `user`.
    """

    kind: Literal["layer", "snapshot"] = "layer"
    fingerprint: str
    base: str | None = None
    env: dict[str, str] = {}
    workdir: str | None = None
    user: str | None = None
    shell: tuple[str, ...] = SHELL
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether a ready image, and not the host, is what its sandboxes have below their files."""
        return self.fingerprint == WHOLE

    def ref(self, key: str) -> ImageRef:
        user = user_of(self.user)
        return ImageRef(reference=f"{PREFIX}{key}", workdir=self.workdir, user=user, built=True, warnings=self.warnings)

    def write(self, volume: Path) -> None:
        """Into a volume that is about to become an image."""
        (volume / "image.json").write_text(self.model_dump_json())


def key_of(image: ImageRef) -> str | None:
    """The key of a layer or snapshot; None for the bare host. Raises `SandboxStartError` for anything else."""
    if image.reference == BARE:
        return None
    if not image.reference.startswith(PREFIX):
        raise SandboxStartError(
            f"{image.reference} is not an image of the local sandbox",
            key="image",
            remedy="build it with this provider, or use --sandbox docker",
        )
    return image.reference.removeprefix(PREFIX)


def read_image(store: Path, key: str) -> Image | None:
    """The image of a key, None when there is none."""
    try:
        return Image.model_validate_json((store / "images" / key / "image.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


def require_image(store: Path, key: str, fingerprint: str) -> Image:
    """The image of a key. Raises `SandboxError` when it is not here or was made on another host."""
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
