"""Whether an image has a Python that can run the engine's helper."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxExecResult
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.paths import StatePaths
from benchflow.planes.sandbox.image_facts import read_image_fact

_CHECK_PYTHON = (
    "python3 -I -S -c 'import sys, sqlite3, hashlib, json, socket, ssl, threading\n"
    'sys.exit(not (sys.version_info >= (3, 7) and hasattr(sqlite3.connect(":memory:"), "backup")))\''
    " >/dev/null 2>&1 && echo yes || echo no"
)

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def has_python(
    provider: SandboxProvider, image: ImageRef, paths: StatePaths | None = None, *, labels: Mapping[str, str]
) -> bool:
    """Return whether `python3` of this image can run the helper: it is 3.7 or newer, and has SQLite.

    It is probed in a sandbox that is started for the purpose and removed, and cached by the image's identity. Where
    sandboxes show the host's own programs (`isolation` is `process`), it is probed again once the host's Python has
    changed.

    Args:
        provider: Provider of the sandbox.
        image: The image.
        paths: State directory with the cache; None for the default one.
        labels: Labels by which the reaper finds that sandbox if this process dies.

    Raises:
        SandboxError: The image does not start.
    """
    file = (paths or StatePaths.default()).toolboxes / "python.json"
    beside = _identify_host_python() if provider.capabilities().isolation == "process" else ""

    def read(said: SandboxExecResult) -> str:
        return said.stdout.strip()

    return (
        await read_image_fact(provider, image, _CHECK_PYTHON, file=file, read=read, labels=labels, beside=beside)
        == "yes"
    )


def _identify_host_python() -> str:
    """Return the path and mtime of this host's Python, which change when it is replaced; `-` without one."""
    program = shutil.which("python3", path=_PATH)
    if program is None:
        return "-"
    status = Path(program).resolve().stat()
    return f"{Path(program).resolve()} {status.st_mtime_ns}"
