"""A toolbox that brings its own Node: npm packages, and a program for every command that they declare.

Node comes as the npm package of its platform, so that nothing but an npm registry is needed to build one; npm itself
is fetched likewise, and left out of the result. No package's own installation script runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shutil
import threading
from pathlib import Path
from typing import Any

from benchflow.contracts.agent import NodeInstall
from benchflow.errors import AgentInstallError
from benchflow.planes.agent.toolbox.directory import built_once, link, remove_tree
from benchflow.planes.agent.toolbox.manifest import Installed
from benchflow.planes.agent.toolbox.npm import NpmRegistry, npm_config
from benchflow.planes.agent.toolbox.steps import run_step

NPM_VERSION = "11.19.1"
_ARCHES = {"x86_64": "x64", "aarch64": "arm64"}
_MODULES = "lib/node_modules"
_TIMEOUT = 1200.0
_SHEBANG_NODE = re.compile(rb"#!\s*\S*(?:/env(?:\s+-S)?\s+|/)node\b(.*)")


def node_arch() -> str:
    """`x64` or `arm64`. Raises `AgentInstallError` on anything else."""
    machine = platform.machine()
    if machine not in _ARCHES:
        raise AgentInstallError(f"agents cannot be installed on {machine}", remedy="use an x86_64 or aarch64 host")
    return _ARCHES[machine]


async def install_node(install: NodeInstall, root: Path, runtimes: Path) -> Installed:
    """Fill `root` with Node and the packages. `runtimes`: where versions of Node and npm are kept for all agents."""
    arch = node_arch()
    node = await _runtime(f"node-linux-{arch}", install.node, runtimes, only=("bin", "LICENSE"))
    npm = await _runtime("npm", NPM_VERSION, runtimes)
    (root / "bin").mkdir()
    link(node / "bin" / "node", root / "bin" / "node")
    link(node / "LICENSE", root / "bin" / "LICENSE.node")
    wanted = {name.replace("{arch}", arch): version for name, version in install.packages.items()}
    await _npm_install(npm, root, wanted, install.overrides)
    modules = root / _MODULES
    for pattern in install.prune:
        for path in modules.glob(pattern.replace("{arch}", arch)):
            remove_tree(path) if path.is_dir() else path.unlink()
    declared = {name: path.replace("{arch}", arch) for name, path in install.commands.items()}
    commands = _commands(root, wanted, declared)
    return Installed(
        runtime=f"node {install.node}",
        packages={name: _manifest(modules, name)["version"] for name in wanted},
        resolved=_resolved(modules),
        commands={**commands, "node": ("bin/node",)},
        probe=("bin/node", "--version"),
        libc="glibc",
    )


async def _runtime(package: str, version: str, runtimes: Path, only: tuple[str, ...] = ()) -> Path:
    directory = runtimes / f"{package}-{version}"

    async def make(part: Path) -> None:
        stop = threading.Event()
        try:
            await asyncio.to_thread(lambda: NpmRegistry().unpack(package, version, part, stop, only))
        finally:
            stop.set()

    await built_once(directory, make)
    return directory


async def _npm_install(npm: Path, root: Path, packages: dict[str, str], overrides: dict[str, str]) -> None:
    library = root / "lib"
    library.mkdir()
    package = {"private": True, "dependencies": packages, "overrides": {**overrides}}
    (library / "package.json").write_text(json.dumps(package, indent=2) + "\n")
    log = root / ".npm.log"
    node = root / "bin" / "node"
    options = (
        *("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--omit=dev", "--include=optional"),
        *("--os=linux", f"--cpu={node_arch()}", "--libc=glibc", "--install-strategy=hoisted", "--no-progress"),
        *("--engine-strict", "--save-exact", "--loglevel=warn", "--prefer-offline"),
    )
    # npm wants to run under the name by which programs find it.
    env = os.environ | {"PATH": f"{root / 'bin'}:{os.environ.get('PATH', os.defpath)}", "NO_UPDATE_NOTIFIER": "1"}
    if "cache" not in npm_config(os.environ) and not os.access(Path.home(), os.W_OK):
        env["npm_config_cache"] = str(root / ".npm")
    named = ", ".join(f"{name} {version}" for name, version in packages.items())
    await run_step(
        [str(node), str(npm / "bin" / "npm-cli.js"), "install", *options],
        cwd=library,
        log=log,
        what=f"installing {named}",
        timeout=_TIMEOUT,
        env=env,
    )
    log.unlink()
    shutil.rmtree(root / ".npm", ignore_errors=True)


def _commands(root: Path, packages: dict[str, str], declared: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """How each command is started, relative to the toolbox; each also gets a program of its name in `bin`."""
    modules = root / _MODULES
    found: dict[str, str] = {}
    for package in packages:
        programs = _manifest(modules, package).get("bin", {})
        if isinstance(programs, str):
            programs = {package.rpartition("/")[2]: programs}
        found |= {name: os.path.normpath(f"{package}/{path}") for name, path in programs.items()}
    commands: dict[str, tuple[str, ...]] = {}
    for name, path in (found | declared).items():
        program = modules / path
        if not program.is_file():
            if name in declared:
                raise AgentInstallError(
                    f"the packages hold no {path}", key=f"install.commands.{name}", remedy="correct the path"
                )
            continue
        commands[name] = _start_of(program, f"{_MODULES}/{path}")
        _write_program(root / "bin" / name, commands[name])
    return commands


def _start_of(program: Path, path: str) -> tuple[str, ...]:
    with program.open("rb") as file:
        first = file.readline(200)
    shebang = _SHEBANG_NODE.match(first)
    if shebang or program.suffix in (".js", ".mjs", ".cjs"):
        options = shebang.group(1).decode().split() if shebang else []
        return ("bin/node", *options, path)
    program.chmod(0o755)
    return (path,)


def _write_program(file: Path, start: tuple[str, ...]) -> None:
    words = " ".join(f'"$here/{word}"' if "/" in word and not word.startswith("-") else word for word in start)
    # No `dirname`: the smallest images lack it.
    file.write_text(f'#!/bin/sh\nhere=${{0%/*}}/..\nexec {words} "$@"\n')
    file.chmod(0o755)


def _manifest(modules: Path, package: str) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((modules / package / "package.json").read_text(encoding="utf-8"))
    return manifest


def _resolved(modules: Path) -> dict[str, str]:
    """Every package that npm chose, with its version, by its place."""
    lock = json.loads((modules / ".package-lock.json").read_text(encoding="utf-8"))["packages"]
    return {place.removeprefix("node_modules/"): str(about.get("version", "")) for place, about in lock.items()}
