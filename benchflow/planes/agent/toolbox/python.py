"""Installation of a toolbox with its own Python: a portable interpreter, and packages from PyPI."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path

from benchflow.contracts.agent_record import PythonInstall
from benchflow.errors import AgentInstallError
from benchflow.planes.agent.toolbox.build_steps import run_step
from benchflow.planes.agent.toolbox.directory import build_once, link_tree
from benchflow.planes.agent.toolbox.portable_python import Interpreter
from benchflow.planes.agent.toolbox.toolbox_manifest import Installed

_TIMEOUT = 1200.0
_ENTRY = re.compile(r"^\s*([\w.-]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)")
# Isolated from the task's Python variables, and with one encoding for text.
_OPTIONS = ("-I", "-X", "utf8")
_LIST = """
import json, importlib.metadata as metadata
print(json.dumps({item.name: item.version for item in metadata.distributions()}))
"""


async def install_python(install: PythonInstall, interpreter: Interpreter, root: Path, runtimes: Path) -> Installed:
    """Fill a toolbox with a copy of the interpreter and the packages, and return what was installed.

    Args:
        install: Installation that the record names.
        interpreter: Interpreter to copy.
        root: Directory of the toolbox, empty.
        runtimes: Directory of the copies that all toolboxes share.

    Raises:
        AgentInstallError: It fails.
    """
    runtime = await copy_interpreter(interpreter, runtimes)
    await asyncio.to_thread(link_tree, runtime, root)
    # The files are links to the runtime's, but the directories are the toolbox's own.
    for at, _, _ in os.walk(root):
        Path(at).chmod(0o755)
    log = root / ".pip.log"
    python = [str(root / "bin" / "python3"), *_OPTIONS]
    named = ", ".join(f"{name} {version}" for name, version in install.packages.items())
    tools = root / ".tools"
    where = str(await asyncio.to_thread(_copy_pip, interpreter, tools))
    pip = f"import runpy, sys; sys.path.insert(0, {where!r}); runpy.run_module('pip', run_name='__main__')"
    options = ("--disable-pip-version-check", "--no-input", "--no-compile", "--no-warn-script-location")
    await run_step(
        [
            *(*python, "-c", pip, "install", *options, "--target", str(root / interpreter.packages)),
            *(f"{name}=={version}" for name, version in install.packages.items()),
        ],
        cwd=root,
        log=log,
        what=f"installing {named}",
        timeout=_TIMEOUT,
        env=os.environ,
    )
    # Nothing can be compiled later, in a read-only directory. Files that fail are templates, or for another Python.
    compile_all = ("-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", interpreter.packages)
    await run_step(
        [*python, *compile_all],
        cwd=root,
        log=log,
        what=f"compiling {named}",
        timeout=_TIMEOUT,
        env=os.environ,
        check=False,
    )
    shutil.rmtree(tools)
    shutil.rmtree(root / interpreter.packages / "bin", ignore_errors=True)
    commands = _write_commands(root, interpreter.packages, install)
    resolved = await _list_resolved(python, root)
    log.unlink()
    return Installed(
        runtime=f"python {interpreter.version}",
        packages={name: resolved.get(name, version) for name, version in install.packages.items()},
        resolved=resolved,
        commands=commands,
        probe=("bin/python3", *_OPTIONS, "--version"),
        libc="own",
    )


async def copy_interpreter(interpreter: Interpreter, runtimes: Path) -> Path:
    """Return the directory below `runtimes` with a copy of an interpreter, made if there is none.

    Raises:
        AgentInstallError: It fails.
    """
    copy = runtimes / f"python-{interpreter.key}"
    await build_once(copy, lambda part: _make_runtime(interpreter, part))
    return copy


async def _make_runtime(interpreter: Interpreter, part: Path) -> None:
    """Copy an interpreter to `part`, and compile its library."""
    await asyncio.to_thread(interpreter.copy_to, part)
    log = part / ".log"
    library = str(Path(interpreter.packages).parent)
    python = (str(part / "bin" / "python3"), *_OPTIONS)
    # Verifies, too, that the copy runs.
    await run_step(
        [*python, "-c", "import ssl, sqlite3, ctypes, zlib, multiprocessing"],
        cwd=part,
        log=log,
        what=f"copying Python {interpreter.version}",
        timeout=60,
        env=os.environ,
    )
    await run_step(
        [*python, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", library],
        cwd=part,
        log=log,
        what=f"compiling the library of Python {interpreter.version}",
        timeout=600,
        env=os.environ,
        check=False,
    )
    log.unlink()


def _copy_pip(interpreter: Interpreter, tools: Path) -> Path:
    """Copy pip alone to `tools`, without the interpreter's other packages. Return the path to import it from."""
    source = Path(str(interpreter.pip))
    tools.mkdir()
    if source.is_dir():
        shutil.copytree(source, tools / "pip")
        return tools
    shutil.copy2(source, tools)
    return tools / source.name


def _write_commands(root: Path, packages: str, install: PythonInstall) -> dict[str, tuple[str, ...]]:
    """Return the command of each console script of the named packages, relative to the toolbox.

    A program in `bin` is written for each.
    """
    commands: dict[str, tuple[str, ...]] = {}
    for package in install.packages:
        name = _normalise_name(package)
        for file in (root / packages).glob("*.dist-info/entry_points.txt"):
            if _normalise_name(file.parent.name.partition("-")[0]) == name:
                commands |= _write_programs(root, file.read_text(encoding="utf-8"))
    return commands


def _normalise_name(name: str) -> str:
    """Return a package's name in the normal form of directory names."""
    return re.sub(r"[-_.]+", "_", name).lower()


def _write_programs(root: Path, entry_points: str) -> dict[str, tuple[str, ...]]:
    """Write the programs of a package's console scripts, and return their commands."""
    commands: dict[str, tuple[str, ...]] = {}
    section = ""
    for line in entry_points.splitlines():
        if line.strip().startswith("["):
            section = line.strip().strip("[]").strip()
        elif section == "console_scripts" and (entry := _ENTRY.match(line)):
            name, module, attribute = entry.groups()
            script = root / "libexec" / f"{name}.py"
            first = attribute.partition(".")[0]
            script.write_text(
                f"import sys\n\nfrom {module} import {first}\n\n"
                f"if __name__ == '__main__':\n    sys.argv[0] = {name!r}\n    sys.exit({attribute}())\n"
            )
            commands[name] = ("bin/python3", *_OPTIONS, f"libexec/{name}.py")
            program = root / "bin" / name
            start = " ".join((f'"$here/{commands[name][0]}"', *_OPTIONS, f'"$here/libexec/{name}.py"'))
            program.write_text(f'#!/bin/sh\nhere=${{0%/*}}/..\nexec {start} "$@"\n')
            program.chmod(0o755)
    return commands


async def _list_resolved(python: list[str], root: Path) -> dict[str, str]:
    """Return the versions of all installed packages, by name."""
    process = await asyncio.create_subprocess_exec(
        *python, "-c", _LIST, cwd=root, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    if process.returncode != 0:
        raise AgentInstallError(
            "the installed packages cannot be listed",
            log_tail=err.decode(errors="replace")[-4000:],
            remedy="see the log",
        )
    resolved: dict[str, str] = json.loads(out)
    return dict(sorted(resolved.items()))
