"""The interpreter of the engine's helper in a sandbox: the image's own Python with SQLite, else a mounted Node."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxExecResult
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import Toolbox
from benchflow.planes.sandbox.image_facts import image_fact

Kind = Literal["python3", "node"]
"""Interpreter in an image, by which one of the two forms of the helper is run."""

_LOOK = (
    "python3 -I -S -c 'import sys, sqlite3, hashlib, json, socket, ssl, threading\n"
    'sys.exit(not (sys.version_info >= (3, 7) and hasattr(sqlite3.connect(":memory:"), "backup")))\''
    " >/dev/null 2>&1 && echo python3 || echo node"
)


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def interpreter_of(
    provider: SandboxProvider, image: ImageRef, paths: StatePaths | None = None, *, labels: Mapping[str, str]
) -> Kind:
    """Return the interpreter for sandboxes of this image; `node` if the sandbox needs the toolbox of `ensure_runtime`.

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
    file = (paths or StatePaths.default()).toolboxes / "interpreter.json"
    beside = _hosts_own() if provider.capabilities().isolation == "process" else ""
    found = await image_fact(provider, image, _LOOK, file=file, read=_kind, labels=labels, beside=beside)
    return cast(Kind, found)


def _kind(said: SandboxExecResult) -> Kind:
    return "python3" if said.stdout.strip() == "python3" else "node"


def program_of(kind: Kind, runtime: Toolbox | None = None) -> tuple[str, ...]:
    """Return the argv that starts the interpreter in a sandbox.

    Args:
        kind: Which interpreter.
        runtime: Toolbox that the sandbox has; required for `node`.
    """
    if kind == "python3":
        return ("python3",)
    assert runtime is not None
    return runtime.program("node")


def _hosts_own() -> str:
    """Return the path and mtime of this host's Python, which change when it is replaced; `-` without one."""
    program = shutil.which("python3", path=_PATH)
    if program is None:
        return "-"
    status = Path(program).resolve().stat()
    return f"{Path(program).resolve()} {status.st_mtime_ns}"
