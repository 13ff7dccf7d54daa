"""Comparison of the verifier's files, after it has run, with the uploaded ones.

Tested code that may write there can change them: above all the rest of a script that its shell has yet to read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from benchflow.contracts.reward import HardeningFinding
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError
from benchflow.planes.reward.hardening.foundation import ITEM

_MAX_FILES = 10
_MAX_BYTES = 1024 * 1024


async def compare_uploads(
    sandbox: Sandbox, sources: Sequence[Path], target: str, programs: Collection[str]
) -> list[HardeningFinding]:
    """Return a finding for each file that differs from the uploaded one. No program of the sandbox is used to read it.

    At most ten files of at most 1 MiB are compared, programs first.

    Args:
        sandbox: Sandbox in which the verifier has ended.
        sources: The verifier's directories on this host, later ones over earlier.
        target: Directory of their files in the sandbox.
        programs: Files that were run. A change of one is tampering; verifiers do overwrite their other files.
    """
    uploaded = await asyncio.to_thread(_list_files, sources, target)
    small = [path for path, (_, size) in uploaded.items() if size <= _MAX_BYTES]
    compared = sorted(small, key=lambda path: (path not in programs, path.count("/"), uploaded[path][1]))[:_MAX_FILES]
    states = await asyncio.gather(*(_compare_file(sandbox, path, uploaded[path][0]) for path in compared))
    found = []
    for path, state in zip(compared, states, strict=True):
        if state is not None:
            is_tampering = path in programs and state == "changed"
            weight, detail = "tampering" if is_tampering else "note", f"was {state} while the verifier ran"
            finding = {"item": ITEM, "action": "found", "path": path, "detail": detail, "weight": weight}
            found.append(HardeningFinding.model_validate(finding))
    return found


async def _compare_file(sandbox: Sandbox, path: str, source: Path) -> str | None:
    """Return `changed` or `removed` for a file that differs from its source; None if it is the same."""
    try:
        content = await sandbox.read_outside(path)
    except SandboxError as error:
        if error.retryable:
            raise
        # It is no regular file any more.
        return "changed"
    if content is None:
        return "removed"
    return None if content == await asyncio.to_thread(source.read_bytes) else "changed"


def _list_files(sources: Sequence[Path], target: str) -> dict[str, tuple[Path, int]]:
    """Return the regular files below the sources, with their sizes, by their paths in the sandbox."""
    found = {}
    for source in sources:
        for directory, _, names in os.walk(source):
            for name in names:
                file = Path(directory) / name
                if file.is_file() and not file.is_symlink():
                    found[f"{target}/{file.relative_to(source).as_posix()}"] = (file, file.stat().st_size)
    return found
