"""A toolbox that brings its own Node: npm packages and scripts, and a program for every command that they are.

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
from benchflow.planes.agent.toolbox.manifest import Installed, Libc
from benchflow.planes.agent.toolbox.musl import NATIVE, musl_version, place_musl_node
from benchflow.planes.agent.toolbox.npm import NpmRegistry, npm_config
from benchflow.planes.agent.toolbox.scripts import Scripts
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


async def install_node(install: NodeInstall, scripts: Scripts, root: Path, runtimes: Path, libc: Libc) -> Installed:
    """Fill `root` with Node, packages and scripts, for images with this C library.

    `runtimes`: where versions of Node and npm are kept for all. Raises `AgentInstallError`.
    """

    def here(text: str) -> str:
        return text.replace("{arch}", node_arch()).replace("{libc}", "-musl" if libc == "musl" else "")

    (root / "bin").mkdir()
    (root / "lib").mkdir()
    if libc == "musl":
        await place_musl_node(root, install.node, node_arch(), runtimes)
    else:
        node = await _node(install, runtimes)
        link(node / "bin" / "node", root / "bin" / "node")
        link(node / "LICENSE", root / "bin" / "LICENSE.node")
    modules = root / _MODULES
    wanted = {here(name): version for name, version in install.packages.items()}
    if wanted:
        # npm runs on this host, whatever the packages will run on.
        node = await _node(install, runtimes)
        npm = await _runtime("npm", NPM_VERSION, runtimes)
        # Of a package for another system npm demands only that it is not needed.
        foreign = {here(name) for name in install.packages if "{libc}" in name} if libc == "musl" else set()
        await _npm_install(node, npm, root, wanted, foreign, install.overrides, libc)
        for name in foreign:
            if not (modules / name).is_dir():
                await _explain_absence(name, wanted[name])
    for pattern in install.prune:
        for path in modules.glob(here(pattern)):
            remove_tree(path) if path.is_dir() else path.unlink()
    declared = {name: here(path) for name, path in install.commands.items()}
    commands = _commands(root, wanted, declared, libc) | scripts.place(root)
    for name, start in commands.items():
        _write_program(root / "bin" / name, start)
    return Installed(
        runtime=f"node {musl_version(install.node) if libc == 'musl' else install.node}",
        packages={name: _manifest(modules, name)["version"] for name in wanted},
        resolved=_resolved(modules) if wanted else {},
        commands={**commands, "node": ("bin/node",)},
        probe=("bin/node", "--version"),
        libc=libc,
    )


async def _node(install: NodeInstall, runtimes: Path) -> Path:
    return await _runtime(f"node-linux-{node_arch()}", install.node, runtimes, only=("bin", "LICENSE"))


async def _explain_absence(package: str, version: str) -> None:
    """Raise why npm left a package out: the registry has none, or cannot be reached, or it is for another system."""
    await asyncio.to_thread(NpmRegistry().require, package, version)
    raise AgentInstallError(
        f"installing {package} {version}: it is not made for this system", remedy="correct `install.packages`"
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


async def _npm_install(
    node: Path,
    npm: Path,
    root: Path,
    packages: dict[str, str],
    optional: set[str],
    overrides: dict[str, str],
    libc: Libc,
) -> None:
    library = root / "lib"
    package = {
        "private": True,
        "dependencies": {name: version for name, version in packages.items() if name not in optional},
        "optionalDependencies": {name: packages[name] for name in sorted(optional)},
        "overrides": {**overrides},
    }
    (library / "package.json").write_text(json.dumps(package, indent=2) + "\n")
    log = root / ".npm.log"
    options = (
        *("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--omit=dev", "--include=optional"),
        *("--os=linux", f"--cpu={node_arch()}", f"--libc={libc}", "--install-strategy=hoisted", "--no-progress"),
        *("--engine-strict", "--save-exact", "--loglevel=warn", "--prefer-offline"),
    )
    # npm wants to run under the name by which programs find it.
    env = os.environ | {"PATH": f"{node / 'bin'}:{os.environ.get('PATH', os.defpath)}", "NO_UPDATE_NOTIFIER": "1"}
    if "cache" not in npm_config(os.environ) and not os.access(Path.home(), os.W_OK):
        env["npm_config_cache"] = str(root / ".npm")
    named = ", ".join(f"{name} {version}" for name, version in packages.items())
    await run_step(
        [str(node / "bin" / "node"), str(npm / "bin" / "npm-cli.js"), "install", *options],
        cwd=library,
        log=log,
        what=f"installing {named}",
        timeout=_TIMEOUT,
        env=env,
    )
    log.unlink()
    shutil.rmtree(root / ".npm", ignore_errors=True)


def _commands(root: Path, packages: dict[str, str], declared: dict[str, str], libc: Libc) -> dict[str, tuple[str, ...]]:
    """How each command of the packages is started, relative to the toolbox."""
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
        commands[name] = _start_of(program, f"{_MODULES}/{path}", libc)
    # Ours runs the others, and is not to be written over.
    commands.pop("node", None)
    return commands


def _start_of(program: Path, path: str, libc: Libc) -> tuple[str, ...]:
    with program.open("rb") as file:
        first = file.readline(200)
    shebang = _SHEBANG_NODE.match(first)
    if shebang or program.suffix in (".js", ".mjs", ".cjs"):
        options = shebang.group(1).decode().split() if shebang else []
        return ("bin/node", *options, path)
    program.chmod(0o755)
    return (NATIVE, path) if libc == "musl" else (path,)


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
