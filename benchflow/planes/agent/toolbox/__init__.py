"""Toolboxes: the programs that an agent needs, in one read-only directory that any sandbox can mount.

A toolbox holds an agent in one version with the Node or the Python that runs it, and is started at the same absolute
path wherever it is mounted (it also runs elsewhere: on this host, to be checked). It is built once for all rollouts
of this host, needs only this interpreter and a package index, and a task's image needs neither Node nor Python.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import sys
import time
from pathlib import Path

from benchflow.contracts.agent_record import NODE_VERSION, TOOLBOX_ROOT, AgentRecord, NodeInstall, PythonInstall
from benchflow.contracts.ids import short_hash
from benchflow.contracts.sandbox import Mount
from benchflow.errors import AgentInstallError
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox.directory import build_once, measure
from benchflow.planes.agent.toolbox.libc import find_libc
from benchflow.planes.agent.toolbox.musl import choose_musl_version
from benchflow.planes.agent.toolbox.node import NPM_VERSION, find_node_arch, install_node
from benchflow.planes.agent.toolbox.portable_python import Interpreter, find_interpreter
from benchflow.planes.agent.toolbox.python import copy_interpreter, install_python
from benchflow.planes.agent.toolbox.toolbox_fit import require_runs_in
from benchflow.planes.agent.toolbox.toolbox_layer import build_toolbox_image
from benchflow.planes.agent.toolbox.toolbox_manifest import (
    Installed,
    Libc,
    Toolbox,
    ToolboxManifest,
    read_manifest,
    write_manifest,
)
from benchflow.planes.agent.toolbox.toolbox_scripts import ToolboxScripts, read_scripts

__all__ = [
    "PUMP",
    "PYTHON",
    "RELAY",
    "Libc",
    "Toolbox",
    "ToolboxManifest",
    "build_toolbox_image",
    "ensure_python",
    "ensure_runtime",
    "ensure_toolbox",
    "find_libc",
    "require_runs_in",
]

_FORMAT = 1
"""Version of the layout; raised when toolboxes that were built before must not be used any more."""


PUMP = "pump"
"""Name of the stdio proxy, which holds an agent's stdio, in the toolbox of `ensure_runtime`."""

RELAY = "relay"
"""Name of the relay, by which a sandbox reaches the model gateway, in the same toolbox."""

# Its path is the same for all versions: a checkpoint of a sandbox may be continued where the host has another one.
_PYTHON_ROOT = f"{TOOLBOX_ROOT}/python"

PYTHON = f"{_PYTHON_ROOT}/bin/python3"
"""Path in a sandbox of the Python that `ensure_python` mounts."""


async def ensure_runtime(paths: StatePaths | None = None, libc: Libc = "glibc") -> Toolbox:
    """Return the engine's own toolbox, with Node, the stdio proxy and the relay. It is built if this host has none.

    Args:
        paths: State paths with the toolboxes; None for the default.
        libc: C library of the image.
    """
    record = AgentRecord(
        name="node",
        description="Holds the stdio of agents.",
        protocol="none",
        version=choose_musl_version(NODE_VERSION) if libc == "musl" else NODE_VERSION,
        install=NodeInstall(
            runtime="node",
            scripts={PUMP: "benchflow.planes.agent.acp:pump.mjs", RELAY: "benchflow.gateway:relay.mjs"},
        ),
        source=__name__,
    )
    toolbox = await ensure_toolbox(record, paths, libc)
    assert toolbox is not None
    return toolbox


async def ensure_python(paths: StatePaths | None = None) -> Mount:
    """Return the mount of a portable copy of this host's Python, which runs in all images. It is made if there is none.

    Args:
        paths: State paths with the toolboxes; None for the default.

    Raises:
        AgentInstallError: This host's Python cannot be copied.
    """
    _require_host()
    interpreter = await asyncio.to_thread(find_interpreter, f"3.{sys.version_info.minor}", needs_pip=False)
    copy = await copy_interpreter(interpreter, (paths or StatePaths.default()).toolboxes / "runtimes")
    return Mount(source=str(copy), target=_PYTHON_ROOT, read_only=True)


async def ensure_toolbox(record: AgentRecord, paths: StatePaths | None = None, libc: Libc = "glibc") -> Toolbox | None:
    """Return the agent's toolbox, built now if this host has none; None if there is nothing to install.

    Any number of processes may ask at once: one builds, the others wait for it.

    Args:
        record: Registry record of the agent.
        paths: State paths with the toolboxes; None for the default.
        libc: C library of the image. A toolbox with Python brings its C library, and is one for all images.

    Raises:
        AgentInstallError: It cannot be built; `AgentDownloadError` if a retry may succeed.
        ConfigError: A script of the record does not exist.
    """
    if record.install is None or record.version is None or record.mount_path is None:
        return None
    _require_host()
    directory = (paths or StatePaths.default()).toolboxes
    interpreter = find_interpreter(record.install.python) if isinstance(record.install, PythonInstall) else None
    scripts = read_scripts(record)
    digest = _compute_digest(record.install, scripts, interpreter, libc)
    final = directory / f"{record.directory_name}-{digest[:12]}"

    async def make(part: Path) -> None:
        started = time.monotonic()
        if interpreter is not None:
            assert isinstance(record.install, PythonInstall)
            installed = await install_python(record.install, interpreter, part, directory / "runtimes")
        else:
            assert isinstance(record.install, NodeInstall)
            installed = await install_node(record.install, scripts, part, directory / "runtimes", libc)
        write_manifest(part, _make_manifest(record, digest, installed, part, time.monotonic() - started))

    built = await build_once(final, make)
    return Toolbox(final, record.mount_path, read_manifest(final), built)


def _make_manifest(
    record: AgentRecord, digest: str, installed: Installed, part: Path, seconds: float
) -> ToolboxManifest:
    """Return the manifest of the toolbox in `part`, which took `seconds` to build."""
    size, files = measure(part)
    return ToolboxManifest(
        agent=record.name,
        version=str(record.version),
        digest=digest,
        platform=f"linux-{find_node_arch()}{'-musl' if installed.libc == 'musl' else ''}",
        installed=installed,
        size=size,
        files=files,
        seconds=round(seconds, 1),
        built_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _compute_digest(
    install: NodeInstall | PythonInstall, scripts: ToolboxScripts, interpreter: Interpreter | None, libc: Libc
) -> str:
    """Return the digest of all that decides the content of a toolbox."""
    built_by = [interpreter.key] if interpreter else [NPM_VERSION, libc]
    if libc == "musl" and isinstance(install, NodeInstall):
        built_by.append(choose_musl_version(install.node))
    parts = [_FORMAT, find_node_arch(), built_by, scripts.digest, install.model_dump(mode="json")]
    return short_hash(json.dumps(parts, sort_keys=True), 64)


def _require_host() -> None:
    """Raise `AgentInstallError` unless this host has Linux and glibc."""
    glibc = sys.platform == "linux" and "CS_GNU_LIBC_VERSION" in os.confstr_names
    if not glibc:
        raise AgentInstallError(
            f"agents cannot be installed on this host ({sys.platform})",
            remedy="run the worker on Linux with glibc (not Alpine)",
        )
