"""Installation of a toolbox with its own Node: npm packages and scripts, and a program for each of their commands.

Node comes as the npm package of its platform, so that a build needs an npm registry and nothing else; npm itself
is fetched likewise, and left out of the result. No installation script of a package runs.
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

from benchflow.contracts.agent_record import NodeInstall
from benchflow.errors import AgentInstallError
from benchflow.planes.agent.toolbox.build_steps import run_step
from benchflow.planes.agent.toolbox.directory import build_once, link, remove_tree
from benchflow.planes.agent.toolbox.musl import NATIVE, choose_musl_version, place_musl_node
from benchflow.planes.agent.toolbox.npm import NpmRegistry, read_npm_config
from benchflow.planes.agent.toolbox.toolbox_manifest import Installed, Libc
from benchflow.planes.agent.toolbox.toolbox_scripts import ToolboxScripts

NPM_VERSION = "11.19.1"
"""Version of npm that installs packages."""
_ARCHES = {"x86_64": "x64", "aarch64": "arm64"}
_MODULES = "lib/node_modules"
_TIMEOUT = 1200.0
_SHEBANG_NODE = re.compile(rb"#!\s*\S*(?:/env(?:\s+-S)?\s+|/)node\b(.*)")


def find_node_arch() -> str:
    """Return the architecture of this host, as npm names it: `x64` or `arm64`.

    Raise `AgentInstallError` for another one.
    """
    machine = platform.machine()
    if machine not in _ARCHES:
        raise AgentInstallError(f"agents cannot be installed on {machine}", remedy="use an x86_64 or aarch64 host")
    return _ARCHES[machine]


async def install_node(
    install: NodeInstall, scripts: ToolboxScripts, root: Path, runtimes: Path, libc: Libc
) -> Installed:
    """Fill a toolbox with Node, packages and scripts, and return what was installed.

    Args:
        install: Installation that the record names.
        scripts: Scripts that the record names.
        root: Directory of the toolbox, empty.
        runtimes: Directory of the versions of Node and npm that all toolboxes share.
        libc: C library of the images that it is for.

    Raises:
        AgentInstallError: It fails.
    """

    def fill(text: str) -> str:
        """Replace the placeholders of a package name or path."""
        return text.replace("{arch}", find_node_arch()).replace("{libc}", "-musl" if libc == "musl" else "")

    (root / "bin").mkdir()
    (root / "lib").mkdir()
    if libc == "musl":
        await place_musl_node(root, install.node, find_node_arch(), runtimes)
    else:
        node = await _fetch_node(install, runtimes)
        link(node / "bin" / "node", root / "bin" / "node")
        link(node / "LICENSE", root / "bin" / "LICENSE.node")
    modules = root / _MODULES
    wanted = {fill(name): version for name, version in install.packages.items()}
    if wanted:
        # npm runs with the host's Node, whatever system the packages are for.
        node = await _fetch_node(install, runtimes)
        npm = await _fetch_package("npm", NPM_VERSION, runtimes)
        # npm installs a package for another system only as an optional dependency.
        foreign = {fill(name) for name in install.packages if "{libc}" in name} if libc == "musl" else set()
        await _run_npm_install(node, npm, root, wanted, foreign, install.overrides, libc)
        for name in foreign:
            if not (modules / name).is_dir():
                await _explain_absence(name, wanted[name])
    for pattern in install.prune:
        for path in modules.glob(fill(pattern)):
            remove_tree(path) if path.is_dir() else path.unlink()
    declared = {name: fill(path) for name, path in install.commands.items()}
    commands = _find_commands(root, wanted, declared, libc) | scripts.write(root)
    for name, start in commands.items():
        _write_program(root / "bin" / name, start)
    return Installed(
        runtime=f"node {choose_musl_version(install.node) if libc == 'musl' else install.node}",
        packages={name: _read_package_json(modules, name)["version"] for name in wanted},
        resolved=_list_resolved(modules) if wanted else {},
        commands={**commands, "node": ("bin/node",)},
        probe=("bin/node", "--version"),
        libc=libc,
    )


async def _fetch_node(install: NodeInstall, runtimes: Path) -> Path:
    """Return the directory with a Node for this host."""
    return await _fetch_package(f"node-linux-{find_node_arch()}", install.node, runtimes, only=("bin", "LICENSE"))


async def _explain_absence(package: str, version: str) -> None:
    """Raise the reason why npm left a package out: it does not exist, cannot be fetched, or is for another system."""
    await asyncio.to_thread(NpmRegistry().look_up, package, version)
    raise AgentInstallError(
        f"installing {package} {version}: it is not made for this system", remedy="correct `install.packages`"
    )


async def _fetch_package(package: str, version: str, runtimes: Path, only: tuple[str, ...] = ()) -> Path:
    """Return the directory with a version of a package, fetched unless this host has it. only: top names to keep."""
    directory = runtimes / f"{package}-{version}"

    async def make(part: Path) -> None:
        stop = threading.Event()
        try:
            await asyncio.to_thread(lambda: NpmRegistry().unpack(package, version, part, stop, only))
        finally:
            stop.set()

    await build_once(directory, make)
    return directory


async def _run_npm_install(
    node: Path,
    npm: Path,
    root: Path,
    packages: dict[str, str],
    optional: set[str],
    overrides: dict[str, str],
    libc: Libc,
) -> None:
    """Run `npm install` in the toolbox. Packages in `optional` may be left out by it."""
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
        *("--os=linux", f"--cpu={find_node_arch()}", f"--libc={libc}", "--install-strategy=hoisted", "--no-progress"),
        *("--engine-strict", "--save-exact", "--loglevel=warn", "--prefer-offline"),
    )
    # npm starts Node by its name, so that it must be on PATH.
    env = os.environ | {"PATH": f"{node / 'bin'}:{os.environ.get('PATH', os.defpath)}", "NO_UPDATE_NOTIFIER": "1"}
    if "cache" not in read_npm_config(os.environ) and not os.access(Path.home(), os.W_OK):
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


def _find_commands(
    root: Path, packages: dict[str, str], declared: dict[str, str], libc: Libc
) -> dict[str, tuple[str, ...]]:
    """Return the command of each program of the packages, relative to the toolbox."""
    modules = root / _MODULES
    found: dict[str, str] = {}
    for package in packages:
        programs = _read_package_json(modules, package).get("bin", {})
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
        commands[name] = _choose_command(program, f"{_MODULES}/{path}", libc)
    # The toolbox's own Node runs the others, and must not be overwritten.
    commands.pop("node", None)
    return commands


def _choose_command(program: Path, path: str, libc: Libc) -> tuple[str, ...]:
    """Return the command that starts a program: by Node if it is a script for that, else directly."""
    with program.open("rb") as file:
        first = file.readline(200)
    shebang = _SHEBANG_NODE.match(first)
    if shebang or program.suffix in (".js", ".mjs", ".cjs"):
        options = shebang.group(1).decode().split() if shebang else []
        return ("bin/node", *options, path)
    program.chmod(0o755)
    return (NATIVE, path) if libc == "musl" else (path,)


def _write_program(file: Path, start: tuple[str, ...]) -> None:
    """Write a shell script that runs a command relative to its own location."""
    words = " ".join(f'"$here/{word}"' if "/" in word and not word.startswith("-") else word for word in start)
    # No `dirname`: the smallest images lack it.
    file.write_text(f'#!/bin/sh\nhere=${{0%/*}}/..\nexec {words} "$@"\n')
    file.chmod(0o755)


def _read_package_json(modules: Path, package: str) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((modules / package / "package.json").read_text(encoding="utf-8"))
    return manifest


def _list_resolved(modules: Path) -> dict[str, str]:
    """Return the versions of all packages that npm installed, by path."""
    lock = json.loads((modules / ".package-lock.json").read_text(encoding="utf-8"))["packages"]
    return {place.removeprefix("node_modules/"): str(about.get("version", "")) for place, about in lock.items()}
