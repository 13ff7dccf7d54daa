"""Which C library an image has: asked of the image itself, once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from benchflow.contracts.ids import short_hash
from benchflow.contracts.sandbox import ImageRef, SandboxProvider, SandboxSpec
from benchflow.errors import SandboxError
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox.manifest import Libc
from benchflow.planes.sandbox.records import file_lock
from benchflow.store import write_atomic

# The shell's own loader tells; only a static shell leaves it to what else is there.
_LOOK = """
head -c 4096 /bin/sh | grep -q ld-musl && echo musl && exit
head -c 4096 /bin/sh | grep -q ld-linux && echo glibc && exit
for loader in /lib/ld-linux* /lib64/ld-linux* /lib/*/ld-linux*; do [ -e "$loader" ] && echo glibc && exit; done
for loader in /lib/ld-musl-* /usr/lib/ld-musl-*; do [ -e "$loader" ] && echo musl && exit; done
echo glibc
"""


async def libc_of(
    provider: SandboxProvider, image: ImageRef, paths: StatePaths | None = None, *, labels: Mapping[str, str]
) -> Libc:
    """The C library of an image, kept by its reference once it is known.

    Asked of a sandbox that is started from it for a moment. labels: what the reaper knows its own by, should this
    process die meanwhile. Where sandboxes are processes of this host, and its tree is their image, nothing is started:
    toolboxes are only built on hosts with glibc. Raises `SandboxError` when the image does not start.
    """
    if provider.capabilities().isolation == "process":
        return "glibc"
    directory = (paths or StatePaths.default()).toolboxes
    file = directory / "libc.json"
    image_key = f"{provider.name} {image.reference}"
    known = _read(file)
    if image_key not in known:
        async with file_lock(directory / ".locks" / f"libc-{short_hash(image_key, 16)}.lock"):
            found = _read(file).get(image_key) or await _ask(provider, image, labels)
            async with file_lock(directory / ".locks" / "libc.lock"):
                known = _read(file) | {image_key: found}
                write_atomic(file, (json.dumps(known, indent=2, sort_keys=True) + "\n").encode())
    return cast(Libc, known[image_key])


async def _ask(provider: SandboxProvider, image: ImageRef, labels: Mapping[str, str]) -> str:
    # Its own of each owner: a reaper that removes what one left must not take it from another.
    name = f"bf-libc-{short_hash(json.dumps([image.reference, labels.get('benchflow.run')]), 16)}"
    spec = SandboxSpec(
        name=name, image=image, labels=dict(labels), workdir="/", network_mode="no-network", entrypoint="none"
    )
    try:
        sandbox = await provider.start(spec, host_id="", queue="")
        answer = await sandbox.control(_LOOK)
    finally:
        await provider.remove(name)
    if answer.stdout.strip() not in ("glibc", "musl"):
        raise SandboxError(
            f"the image {image.reference} does not tell its C library",
            key="sandbox.docker_image",
            remedy="give it a shell as /bin/sh",
            log_tail=answer.stderr or None,
        )
    return answer.stdout.strip()


def _read(file: Path) -> dict[str, str]:
    try:
        known: dict[str, str] = json.loads(file.read_text())
        return known
    except FileNotFoundError:
        return {}
