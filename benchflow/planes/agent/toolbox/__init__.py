"""Toolboxes: what an agent needs to run, in one read-only directory that any sandbox can mount.

A toolbox holds an agent in one version with the Node or the Python that runs it, and is started at the same absolute
path wherever it is mounted (it also runs elsewhere: on this host, to be checked). It is built once for all rollouts
of this host, needs only this interpreter and a package index, and a task's image needs neither Node nor Python.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from pathlib import Path

from benchflow.contracts.agent import AgentRecord, NodeInstall, PythonInstall
from benchflow.contracts.ids import short_hash
from benchflow.errors import AgentInstallError
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox.directory import built_once, measure
from benchflow.planes.agent.toolbox.fit import require_runs_in
from benchflow.planes.agent.toolbox.interpreter import Interpreter, find_interpreter
from benchflow.planes.agent.toolbox.manifest import Toolbox, ToolboxManifest, read_manifest, write_manifest
from benchflow.planes.agent.toolbox.node import NPM_VERSION, install_node, node_arch
from benchflow.planes.agent.toolbox.python import install_python

__all__ = ["Toolbox", "ToolboxManifest", "ensure_toolbox", "require_runs_in"]

_FORMAT = 1
"""Of the layout; raised when toolboxes that were built before must not be used any more."""


async def ensure_toolbox(record: AgentRecord, paths: StatePaths | None = None) -> Toolbox | None:
    """The agent's toolbox, built now if this host has none; None for an agent that has nothing to install.

    Any number of processes may ask at once: one builds, the others wait for it. Raises `AgentInstallError`, and its
    `AgentDownloadError` for what may succeed if done again.
    """
    if record.install is None or record.version is None or record.mount_path is None:
        return None
    _require_host()
    directory = (paths or StatePaths.default()).toolboxes
    interpreter = find_interpreter(record.install.python) if isinstance(record.install, PythonInstall) else None
    digest = _digest(record.install, interpreter)
    final = directory / f"{record.name}-{record.version}-{digest[:12]}"

    async def make(part: Path) -> None:
        await _build(record, part, directory / "runtimes", digest, interpreter)

    built = await built_once(final, make)
    return Toolbox(final, record.mount_path, read_manifest(final), built)


async def _build(record: AgentRecord, part: Path, runtimes: Path, digest: str, interpreter: Interpreter | None) -> None:
    started = time.monotonic()
    if isinstance(record.install, PythonInstall) and interpreter is not None:
        installed = await install_python(record.install, interpreter, part, runtimes)
    else:
        assert isinstance(record.install, NodeInstall)
        installed = await install_node(record.install, part, runtimes)
    size, files = measure(part)
    manifest = ToolboxManifest(
        agent=record.name,
        version=str(record.version),
        digest=digest,
        platform=f"linux-{node_arch()}",
        installed=installed,
        size=size,
        files=files,
        seconds=round(time.monotonic() - started, 1),
        built_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    write_manifest(part, manifest)


def _digest(install: NodeInstall | PythonInstall, interpreter: Interpreter | None) -> str:
    built_by = interpreter.key if interpreter else NPM_VERSION
    return short_hash(json.dumps([_FORMAT, node_arch(), built_by, install.model_dump(mode="json")], sort_keys=True), 64)


def _require_host() -> None:
    glibc = sys.platform == "linux" and "CS_GNU_LIBC_VERSION" in os.confstr_names
    if not glibc:
        raise AgentInstallError(
            f"agents cannot be installed on this host ({sys.platform})",
            remedy="run the worker on Linux with glibc (not Alpine)",
        )
