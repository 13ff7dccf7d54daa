"""An image's configuration file, in the OCI format, and the parts of it that sandboxes use."""

from __future__ import annotations

import hashlib
import json
import platform
import posixpath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchflow.errors import ImagePullError
from benchflow.planes.sandbox.local.local_images import SHELL, WHOLE, LocalImage

VERSION = 1
"""Raised when the same image is unpacked differently, so that images unpacked before are no longer found."""

MAX_LAYERS = 512
"""Maximum number of layers of an image; Docker makes at most 127."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
ARCHITECTURE = _ARCHITECTURES.get(platform.machine(), platform.machine())
"""This host's architecture, by its name in images."""


class _Lenient(BaseModel):
    """A part of a file of an image. Unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, defer_build=True)


class ContainerRunConfig(_Lenient):
    """How a container of the image is run."""

    env: list[str] | None = Field(None, alias="Env")
    """Variables, as `NAME=value`."""
    workdir: str | None = Field(None, alias="WorkingDir")
    """Working directory; empty for `/`."""
    user: str | None = Field(None, alias="User")
    """User, with an optional `:group`; empty for root."""
    entrypoint: list[str] | None = Field(None, alias="Entrypoint")
    """Argv that CMD is appended to."""
    command: list[str] | None = Field(None, alias="Cmd")
    """Arguments of the entrypoint; the whole argv if there is no entrypoint."""
    shell: list[str] | None = Field(None, alias="Shell")
    """Shell of RUN in a build upon the image; None for `/bin/sh -c`."""


class RootFiles(_Lenient):
    """The layers that make up an image's files."""

    layers: list[str] = Field(alias="diff_ids", max_length=MAX_LAYERS)
    """Digests of the uncompressed layers, bottom first."""


class Description(_Lenient):
    """An image's configuration file."""

    architecture: str = ""
    """Architecture, by Go's name; empty if the image does not state it."""
    os: str = ""
    """Operating system, likewise."""
    config: ContainerRunConfig | None = None
    """How containers are run; None if the image sets nothing."""
    rootfs: RootFiles
    """Its files."""

    @classmethod
    def read(cls, content: bytes | dict[str, Any], shown: str) -> Description:
        """Parse a configuration file.

        Args:
            content: The file, or its parsed JSON.
            shown: Name of the image in errors.

        Raises:
            ImagePullError: The file is invalid, or the image is for another platform.
        """
        try:
            found = cls.model_validate_json(content) if isinstance(content, bytes) else cls.model_validate(content)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise ImagePullError(
                f"the configuration of the image {shown} makes no sense: {wrong['loc']}: {wrong['msg']}",
                key="docker_image",
                remedy="make the image anew",
            ) from error
        if found.os not in ("", "linux") or found.architecture not in ("", ARCHITECTURE):
            raise ImagePullError(
                f"the image {shown} is for {found.os}/{found.architecture}, and this machine is linux/{ARCHITECTURE}",
                key="docker_image",
                remedy="name an image of this machine's platform",
            )
        return found

    @classmethod
    def inspected(cls, answer: dict[str, Any], shown: str) -> Description:
        """Parse a Docker daemon's response about an image. Arguments and errors are those of `read`."""
        layers = (answer.get("RootFS") or {}).get("Layers") or []
        told = {"architecture": answer.get("Architecture", ""), "os": answer.get("Os", ""), "config": answer["Config"]}
        return cls.read(told | {"rootfs": {"diff_ids": layers}}, shown)

    @property
    def key(self) -> str:
        """Return the unpacked image's key, a digest of layers and configuration: images of other names may share it."""
        said = [VERSION, "ready", WHOLE, self.rootfs.layers, self.image().model_dump(mode="json")]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def image(self) -> LocalImage:
        """Return the record of the unpacked image."""
        config = self.config or ContainerRunConfig.model_validate({})
        workdir = posixpath.normpath(posixpath.join("/", config.workdir or ""))
        return LocalImage(
            fingerprint=WHOLE,
            env=dict(pair.split("=", 1) for pair in config.env or () if "=" in pair),
            workdir=None if workdir.strip("/") == "" else workdir,
            user=config.user or None,
            shell=tuple(config.shell or SHELL),
            entrypoint=tuple(config.entrypoint or ()),
            command=tuple(config.command or ()),
        )
