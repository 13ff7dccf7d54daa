"""What runs the engine's helper in a sandbox: the image's own Python with SQLite, else a mounted Node."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

from benchflow.contracts.ids import short_hash
from benchflow.contracts.sandbox import ImageRef, SandboxProvider, SandboxSpec
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import Toolbox
from benchflow.planes.sandbox.records import file_lock
from benchflow.store import write_atomic

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
    directory = (paths or StatePaths.default()).toolboxes
    file = directory / "interpreter.json"
    image_key = f"{provider.name} {image.reference}"
    if provider.capabilities().isolation == "process":
        image_key += f" {_hosts_own()}"
    known = _read(file)
    if image_key not in known:
        async with file_lock(directory / ".locks" / f"interpreter-{short_hash(image_key, 16)}.lock"):
            found = _read(file).get(image_key) or await _ask(provider, image, labels)
            async with file_lock(directory / ".locks" / "interpreter.lock"):
                known = _read(file) | {image_key: found}
                write_atomic(file, (json.dumps(known, indent=2, sort_keys=True) + "\n").encode())
    return cast(Kind, known[image_key])


def program_of(kind: Kind, runtime: Toolbox | None = None) -> tuple[str, ...]:
    """The words that start the interpreter in a sandbox. runtime: for `node`, the toolbox that the sandbox has."""
    if kind == "python3":
        return ("python3",)
    assert runtime is not None
    return runtime.program("node")


async def _ask(provider: SandboxProvider, image: ImageRef, labels: Mapping[str, str]) -> Kind:
    # Its own of each owner: a reaper that removes what one left must not take it from another.
    name = f"bf-interpreter-{short_hash(json.dumps([image.reference, labels.get('benchflow.run')]), 16)}"
    spec = SandboxSpec(
        name=name, image=image, labels=dict(labels), workdir="/", network_mode="no-network", entrypoint="none"
    )
    try:
        sandbox = await provider.start(spec, host_id="", queue="")
        answer = await sandbox.control(_LOOK)
    finally:
        await provider.remove(name)
    return "python3" if answer.stdout.strip() == "python3" else "node"


def _hosts_own() -> str:
    """What tells this host's Python from another that comes to its place."""
    program = shutil.which("python3", path=_PATH)
    if program is None:
        return "-"
    status = Path(program).resolve().stat()
    return f"{Path(program).resolve()} {status.st_mtime_ns}"


def _read(file: Path) -> dict[str, str]:
    try:
        known: dict[str, str] = json.loads(file.read_text())
        return known
    except FileNotFoundError:
        return {}
