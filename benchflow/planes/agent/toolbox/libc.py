"""The C library of an image, read in the image itself, once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxExecResult
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import SandboxError
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox.toolbox_manifest import Libc
from benchflow.planes.sandbox.image_facts import read_image_fact

# The loader of the shell decides; for a static shell, the loaders that exist do.
_PROBE = """
head -c 4096 /bin/sh | grep -q ld-musl && echo musl && exit
head -c 4096 /bin/sh | grep -q ld-linux && echo glibc && exit
for loader in /lib/ld-linux* /lib64/ld-linux* /lib/*/ld-linux*; do [ -e "$loader" ] && echo glibc && exit; done
for loader in /lib/ld-musl-* /usr/lib/ld-musl-*; do [ -e "$loader" ] && echo musl && exit; done
echo glibc
"""


async def find_libc(
    provider: SandboxProvider, image: ImageRef, paths: StatePaths | None = None, *, labels: Mapping[str, str]
) -> Libc:
    """Return the C library of an image, read in a short-lived sandbox of it and cached by the image's reference.

    Args:
        provider: Provider of the sandbox.
        image: The image.
        paths: State paths with the cache; None for the default.
        labels: Labels of the sandbox, by which the reaper finds it if this process dies meanwhile.

    Raises:
        SandboxError: The image does not start, or has no shell.
    """
    file, read = (paths or StatePaths.default()).toolboxes / "libc.json", partial(_parse_libc, image)
    return cast(Libc, await read_image_fact(provider, image, _PROBE, file=file, read=read, labels=labels))


def _parse_libc(image: ImageRef, said: SandboxExecResult) -> str:
    """Return the C library that the script `_PROBE` has printed."""
    if said.stdout.strip() not in ("glibc", "musl"):
        raise SandboxError(
            f"the image {image.reference} does not tell its C library",
            key="sandbox.docker_image",
            remedy="give it a shell as /bin/sh",
            log_tail=said.stderr or None,
        )
    return said.stdout.strip()
