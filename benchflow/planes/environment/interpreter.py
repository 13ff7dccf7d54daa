"""What runs the engine's helper in a sandbox: the image's own Python with SQLite, else a mounted Node."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

from benchflow.contracts.images import ImageRef
from benchflow.contracts.provider import SandboxProvider
from benchflow.contracts.sandbox import SandboxExecResult
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import Toolbox
from benchflow.planes.sandbox.image_facts import image_fact

Kind = Literal["python3", "node"]
"""Which of its two forms of the helper an image can run."""

_LOOK = (
    "python3 -I -S -c 'import sys, sqlite3, hashlib, json, socket, ssl, threading\n"
    'sys.exit(not (sys.version_info >= (3, 7) and hasattr(sqlite3.connect(":memory:"), "backup")))\''
    " >/dev/null 2>&1 && echo python3 || echo node"
)


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def interpreter_of(
    provider: SandboxProvider, image: ImageRef, paths: StatePaths | None = None, *, labels: Mapping[str, str]
) -> Kind:
    """What runs the helper in sandboxes of this image, kept by the image's reference once it is known.

    Asked of a sandbox that is started from it for a moment. labels: what the reaper knows its own by, should this
    process die meanwhile. Where sandboxes show this host's own programs, it is asked for again when these have
    changed. Where it is `node`, the sandbox needs the toolbox of `ensure_runtime`. Raises `SandboxError` when the image
    does not start.
    """
    file = (paths or StatePaths.default()).toolboxes / "interpreter.json"
    beside = _hosts_own() if provider.capabilities().isolation == "process" else ""
    found = await image_fact(provider, image, _LOOK, file=file, read=_kind, labels=labels, beside=beside)
    return cast(Kind, found)


def _kind(said: SandboxExecResult) -> Kind:
    return "python3" if said.stdout.strip() == "python3" else "node"


def program_of(kind: Kind, runtime: Toolbox | None = None) -> tuple[str, ...]:
    """The words that start the interpreter in a sandbox. runtime: for `node`, the toolbox that the sandbox has."""
    if kind == "python3":
        return ("python3",)
    assert runtime is not None
    return runtime.program("node")


def _hosts_own() -> str:
    """What tells this host's Python from another that comes to its place."""
    program = shutil.which("python3", path=_PATH)
    if program is None:
        return "-"
    status = Path(program).resolve().stat()
    return f"{Path(program).resolve()} {status.st_mtime_ns}"
