"""What an image says of itself, as the image format has it, and what sandboxes take of that."""

from __future__ import annotations

import hashlib
import json
import platform
import posixpath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchflow.errors import ImagePullError
from benchflow.planes.sandbox.local.images import SHELL, WHOLE, Image

VERSION = 1
"""Raised when the same image is unpacked differently: layers that were unpacked before are not found any more."""

MAX_LAYERS = 512
"""Layers of one image; Docker makes at most 127."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
ARCHITECTURE = _ARCHITECTURES.get(platform.machine(), platform.machine())
"""This host's, as images name it."""


class _Lenient(BaseModel):
    """A part of a description. Other keys are of no interest."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, defer_build=True)


class RunConfig(_Lenient):
    """How a container of an image is run."""

    env: list[str] | None = Field(None, alias="Env")
    """`NAME=value` each."""
    workdir: str | None = Field(None, alias="WorkingDir")
    """Empty for `/`."""
    user: str | None = Field(None, alias="User")
    """Empty for root."""
    entrypoint: list[str] | None = Field(None, alias="Entrypoint")
    """Argv that CMD is appended to."""
    command: list[str] | None = Field(None, alias="Cmd")
    """Arguments of the entrypoint, or the whole argv where there is none."""
    shell: list[str] | None = Field(None, alias="Shell")
    """Of RUN in a build upon the image; None for `/bin/sh -c`."""


class RootFiles(_Lenient):
    """Which layers make up an image's files."""

    layers: list[str] = Field(alias="diff_ids", max_length=MAX_LAYERS)
    """Digests of the archives without compression, from below."""


class Description(_Lenient):
    """An image's configuration file."""

    architecture: str = ""
    """As Go names it. Empty if the image does not say."""
    os: str = ""
    """Likewise."""
    config: RunConfig | None = None
    """None for an image that sets nothing."""
    rootfs: RootFiles
    """Its files."""

    @classmethod
    def read(cls, content: bytes | dict[str, Any], shown: str) -> Description:
        """Parse a description. Raises `ImagePullError` for one that makes no sense or is of another platform."""
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
        """Return the description of an image that a Docker daemon has inspected."""
        layers = (answer.get("RootFS") or {}).get("Layers") or []
        told = {"architecture": answer.get("Architecture", ""), "os": answer.get("Os", ""), "config": answer["Config"]}
        return cls.read(told | {"rootfs": {"diff_ids": layers}}, shown)

    @property
    def key(self) -> str:
        """The key of the unpacked image: equal files with an equal configuration are one image, whoever has them."""
        said = [VERSION, "ready", WHOLE, self.rootfs.layers, self.image().model_dump(mode="json")]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def image(self) -> Image:
        """Return the record of the unpacked image."""
        config = self.config or RunConfig.model_validate({})
        workdir = posixpath.normpath(posixpath.join("/", config.workdir or ""))
        return Image(
            fingerprint=WHOLE,
            env=dict(pair.split("=", 1) for pair in config.env or () if "=" in pair),
            workdir=None if workdir.strip("/") == "" else workdir,
            user=config.user or None,
            shell=tuple(config.shell or SHELL),
            entrypoint=tuple(config.entrypoint or ()),
            command=tuple(config.command or ()),
        )
