"""Facts about images: the output of a script in a short-lived sandbox of the image, stored so that it runs once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from benchflow.contracts.ids import short_hash
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxExecResult, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.host_files import hold_lock_async, write_atomic
from benchflow.planes.sandbox.cancellation import run_to_completion


async def read_image_fact(
    provider: SandboxProvider,
    image: ImageRef,
    script: str,
    *,
    file: Path,
    read: Callable[[SandboxExecResult], str],
    labels: Mapping[str, str],
    beside: str = "",
) -> str:
    """Return a fact about an image: stored, or else read from a script's output in a sandbox that is started for it.

    Facts are stored by provider and image identity.

    Args:
        provider: Provider of the sandbox.
        image: The image.
        script: Script to run as root.
        file: JSON file in which the answers to this question are stored; the question is named after it.
        read: Returns the fact from the script's result; may raise.
        labels: Labels by which the reaper finds the sandbox if this process dies.
        beside: Further key, for facts that depend on more than the image.

    Raises:
        SandboxError: The image does not start.
    """
    key = " ".join(part for part in (provider.name, image.identity, beside) if part)
    known = _load_facts(file)
    if key not in known:
        locks = file.parent / ".locks"
        async with hold_lock_async(locks / f"{file.stem}-{short_hash(key, 16)}.lock"):
            found = _load_facts(file).get(key)
            if found is None:
                # Run to completion even if cancelled: an interrupted start or removal would leave the sandbox.
                found = read(await run_to_completion(_run_script(provider, image, script, file.stem, labels)))
            async with hold_lock_async(locks / f"{file.stem}.lock"):
                known = _load_facts(file) | {key: found}
                write_atomic(file, (json.dumps(known, indent=2, sort_keys=True) + "\n").encode())
    return known[key]


async def _run_script(
    provider: SandboxProvider, image: ImageRef, script: str, question: str, labels: Mapping[str, str]
) -> SandboxExecResult:
    """Run the script in a new sandbox of the image and remove the sandbox."""
    # One name per owner: a reaper that removes the orphan of one run must not remove another run's sandbox.
    name = f"bf-{question}-{short_hash(json.dumps([image.identity, labels.get('benchflow.run')]), 16)}"
    spec = SandboxSpec(
        name=name, image=image, labels=dict(labels), workdir="/", network_mode="no-network", entrypoint="none"
    )
    try:
        sandbox = await provider.start(spec, host_id="", queue="")
        return await sandbox.control(script)
    finally:
        await provider.remove(name)


def _load_facts(file: Path) -> dict[str, str]:
    """Return the stored facts by key."""
    try:
        known: dict[str, str] = json.loads(file.read_text())
        return known
    except FileNotFoundError:
        return {}
