"""Toolboxes in an image, for a sandbox that can mount nothing of this host, as with a daemon elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchflow.contracts.ids import short_hash
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Mount
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import ConfigError
from benchflow.host_files import write_atomic

_TIMEOUT = 1800.0


async def build_toolbox_image(
    provider: SandboxProvider, image: ImageRef, mounts: Sequence[Mount], *, log: Path | None = None
) -> ImageRef:
    """Return an image with toolboxes in place of their mounts, based on another one.

    It is built once for the same toolboxes.

    Args:
        provider: Provider of the sandbox.
        image: Image to add the toolboxes to, and returned if there are none.
        mounts: Mounts of the toolboxes, which must lie in one directory.
        log: File for the output of the build.

    Raises:
        ImageBuildError: The build fails.
        ConfigError: The toolboxes lie in several directories.
    """
    wanted = sorted({(mount.target, Path(mount.source)) for mount in mounts})
    if not wanted:
        return image
    (directory, *others) = {root.parent for _, root in wanted}
    if others:
        raise ConfigError(f"toolboxes of one image lie in {directory} and {others[0]}", remedy="build them together")
    # The name of a toolbox's directory ends with its digest.
    digest = short_hash(json.dumps([image.reference, [(path, root.name) for path, root in wanted]]), 64)
    lines = [f"FROM {image.reference}", *(f"COPY {json.dumps([root.name, path])}" for path, root in wanted)]
    dockerfile = directory / ".layers" / f"{digest[:32]}.Dockerfile"
    write_atomic(dockerfile, "".join(f"{line}\n" for line in lines).encode())
    config = ImageConfig(
        context=str(directory),
        dockerfile=str(dockerfile),
        exclude=("*", *(f"!{root.name}" for _, root in wanted)),
        digest=digest,
        timeout_sec=_TIMEOUT,
    )
    built = await provider.build(config, log=log)
    return built.model_copy(update={"warnings": (*image.warnings, *built.warnings)})
