"""What an image is asked once: a script in a sandbox that is started from it for a moment, and its answer, kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from benchflow.contracts.ids import short_hash
from benchflow.contracts.images import ImageRef
from benchflow.contracts.provider import SandboxProvider
from benchflow.contracts.sandbox import SandboxExecResult, SandboxSpec
from benchflow.planes.sandbox.cancellation import see_through
from benchflow.planes.sandbox.records import file_lock
from benchflow.store import write_atomic


async def image_fact(
    provider: SandboxProvider,
    image: ImageRef,
    script: str,
    *,
    file: Path,
    read: Callable[[SandboxExecResult], str],
    labels: Mapping[str, str],
    beside: str = "",
) -> str:
    """What a script of the engine's says in sandboxes of an image, kept by what identifies the image once it is known.

    file: where answers to this question are kept, JSON; its name is the question's. read: the answer in what the script
    said; may raise. labels: what the reaper knows the sandbox by, should this process die meanwhile. beside: what else
    the answer depends on. Raises `SandboxError` when the image does not start.
    """
    key = " ".join(part for part in (provider.name, image.identity, beside) if part)
    known = _known(file)
    if key not in known:
        locks = file.parent / ".locks"
        async with file_lock(locks / f"{file.stem}-{short_hash(key, 16)}.lock"):
            found = _known(file).get(key)
            if found is None:
                # A start or a removal that was cut short would leave the sandbox.
                found = read(await see_through(_ask(provider, image, script, file.stem, labels)))
            async with file_lock(locks / f"{file.stem}.lock"):
                known = _known(file) | {key: found}
                write_atomic(file, (json.dumps(known, indent=2, sort_keys=True) + "\n").encode())
    return known[key]


async def _ask(
    provider: SandboxProvider, image: ImageRef, script: str, question: str, labels: Mapping[str, str]
) -> SandboxExecResult:
    # Its own of each owner: a reaper that removes what one left must not take it from another.
    name = f"bf-{question}-{short_hash(json.dumps([image.identity, labels.get('benchflow.run')]), 16)}"
    spec = SandboxSpec(
        name=name, image=image, labels=dict(labels), workdir="/", network_mode="no-network", entrypoint="none"
    )
    try:
        sandbox = await provider.start(spec, host_id="", queue="")
        return await sandbox.control(script)
    finally:
        await provider.remove(name)


def _known(file: Path) -> dict[str, str]:
    try:
        known: dict[str, str] = json.loads(file.read_text())
        return known
    except FileNotFoundError:
        return {}
