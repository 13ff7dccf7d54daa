"""Portable copies of this host's Python: the interpreter with its library, the C library and the loader.

No package index offers an interpreter that only has to be unpacked, so that one of the host's own is copied. It must
not need anything of the image it will run in, not even an equally new C library: therefore all shared libraries are
copied with it, and it is started through the copied loader. `sys.executable` is a shell script that does so: processes
that it starts itself (`multiprocessing`, `python -m`) use the copy, too, and no path must be known in advance.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchflow.contracts.ids import short_hash
from benchflow.errors import AgentInstallError

_VARIABLE = "BENCHFLOW_TOOLBOX_PYTHON"
"""Variable with paths of interpreters to prefer, separated as in PATH."""
_SHARED = "libc"
"""Directory of the shared libraries in a copy."""
_LAYOUT = 2
"""Version of a copy's layout; raised when copies that were made before must not be used any more."""

_COMPANIONS = (
    # Libraries that resolve host names and users.
    *("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"),
    # Libraries that native parts of packages are linked to.
    *("libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libutil.so.1", "libanl.so.1"),
)
_UNUSED = shutil.ignore_patterns(
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "tkinter"),
    *("config-*", "*.a", "EXTERNALLY-MANAGED", "sitecustomize.py", "lib-dynload", "_bundled"),
)

# Prints, as JSON, which native modules of an interpreter can be imported, and which shared libraries they then need.
_PROBE = r"""
import ctypes, importlib, json, os, platform, sys, sysconfig
stdlib = sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix})
native = [part for part in sys.path if part.endswith("lib-dynload")]
loaded = []
for directory in native:
    for file in sorted(os.listdir(directory)):
        name = file.split(".")[0]
        if file.endswith(".so") and not name.startswith(("_test", "xx", "_xx", "_tkinter", "_ctypes_test")):
            try:
                importlib.import_module(name)
            except Exception:
                continue
            loaded.append(os.path.join(directory, file))
# Packages' own native parts need these two, and many images lack them.
for library in ("libgcc_s.so.1", "libstdc++.so.6"):
    try:
        ctypes.CDLL(library)
    except OSError:
        pass
class Info(ctypes.Structure):
    _fields_ = [("addr", ctypes.c_void_p), ("name", ctypes.c_char_p)]
libraries = []
Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
def note(info, size, data):
    libraries.append(os.fsdecode(info.contents.name or b""))
    return 0
ctypes.CDLL(None).dl_iterate_phdr(Callback(note), None)
import importlib.util
pip = importlib.util.find_spec("pip")
try:
    import ensurepip
    bundle = os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")
    wheels = sorted(name for name in os.listdir(bundle) if name.startswith("pip-"))
except (ImportError, OSError):
    wheels = []
executable = os.path.realpath("/proc/self/exe")
print(json.dumps({
    "version": platform.python_version(), "build": sys.version, "implementation": sys.implementation.name,
    "prefix": sys.base_prefix, "stdlib": stdlib, "executable": executable, "native": loaded,
    "libraries": [name for name in libraries if name.startswith("/") and name not in loaded],
    "glibc": os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None,
    "pip": os.path.join(bundle, wheels[-1]) if wheels else os.path.dirname(pip.origin) if pip else None,
}))
"""


class Interpreter:
    """A Python of this host that can be copied."""

    def __init__(self, said: dict[str, Any], loader: str) -> None:
        """Make it. said: the output of `_PROBE`; loader: path of its dynamic loader."""
        self.version: str = said["version"]
        self.pip: str | None = said["pip"]
        self._said = said
        self._loader = loader
        self._stdlib = os.path.relpath(said["stdlib"], said["prefix"])

    @property
    def key(self) -> str:
        """Return a name for this very build on this very C library."""
        parts = (_LAYOUT, self._said["build"], self._said["glibc"], self._said["executable"])
        return f"{self.version}-{short_hash(json.dumps(parts), 8)}"

    @property
    def packages(self) -> str:
        """Return the directory of packages, relative to the copy."""
        return f"{self._stdlib}/site-packages"

    def copy_to(self, root: Path) -> None:
        """Copy the interpreter to `root`: `bin/python3`, its library and the shared libraries, without any package."""
        shared = root / _SHARED
        for directory in (root / "bin", root / "libexec", shared):
            directory.mkdir()
        shutil.copy2(self._said["executable"], root / "libexec" / "python3")
        shutil.copytree(self._said["stdlib"], root / self._stdlib, ignore=_UNUSED)
        (root / self._stdlib / "lib-dynload").mkdir()
        for file in self._said["native"]:
            shutil.copy2(file, root / self._stdlib / "lib-dynload")
        for library in {self._loader, *self._said["libraries"], *self._find_companions()}:
            shutil.copy2(library, shared / Path(library).name)
        site = root / self.packages
        site.mkdir()
        # Interpreters of some distributions look for packages elsewhere.
        (root / self._stdlib / "sitecustomize.py").write_text(
            "import os, site, sys\n"
            'here = os.path.join(os.path.dirname(__file__), "site-packages")\n'
            "if here not in sys.path:\n    site.addsitedir(here)\n"
        )
        start = root / "bin" / "python3"
        start.write_text(
            "#!/bin/sh\nhere=${0%/*}/..\n"
            f'exec "$here/{_SHARED}/{Path(self._loader).name}" --inhibit-cache --library-path "$here/{_SHARED}" '
            '--argv0 "$0" "$here/libexec/python3" "$@"\n'
        )
        start.chmod(0o755)

    def _find_companions(self) -> Iterator[str]:
        """Yield libraries that must be of the same build as the C library: an image has others, or none."""
        libc = next((name for name in self._said["libraries"] if Path(name).name == "libc.so.6"), None)
        for name in _COMPANIONS:
            if libc and (file := Path(libc).parent / name).is_file():
                yield str(file)


@functools.cache  # Its question takes a good part of a second.
def find_interpreter(wanted: str, *, needs_pip: bool = True) -> Interpreter:
    """Return a Python of this host that can be copied.

    Args:
        wanted: Its minor version, as `3.12`.
        needs_pip: Whether it must have pip, for a copy that packages are installed to.

    Raises:
        AgentInstallError: There is none. The error names those that were found.
    """
    looked = []
    for candidate in _list_candidates(wanted):
        said = _probe(candidate)
        if said is None or not said["version"].startswith(f"{wanted}.") or said["implementation"] != "cpython":
            continue
        looked.append(candidate)
        loader = next((name for name in said["libraries"] if Path(name).name.startswith("ld-linux")), None)
        if loader is not None and said["glibc"] and (said["pip"] or not needs_pip) and _has_argv0(loader):
            return Interpreter(said, loader)
    needs = "glibc 2.33 and pip (or ensurepip)" if needs_pip else "glibc 2.33"
    why = f"{', '.join(looked)} cannot be copied: it needs {needs}" if looked else "none found"
    raise AgentInstallError(
        f"this host has no Python {wanted} to build a toolbox from: {why}",
        key="install.python",
        remedy=f"install Python {wanted} (a package of the system, pyenv, or uv), or name one in ${_VARIABLE}",
    )


def find_pip() -> tuple[str, str]:
    """Return a Python of this host, and the path from which it imports pip.

    Raises:
        AgentInstallError: No Python has pip.
    """
    for candidate in _list_candidates(f"3.{sys.version_info.minor}"):
        said = _probe(candidate)
        if said is not None and said["pip"]:
            pip = Path(said["pip"])
            return candidate, str(pip if pip.suffix == ".whl" else pip.parent)
    raise AgentInstallError(
        "this host has no Python with pip, which fetches what an image with musl (Alpine) needs",
        remedy="install pip (or ensurepip) for the Python that runs `bench`",
    )


def _list_candidates(wanted: str) -> Iterator[str]:
    """Yield interpreters of a minor version, the preferred ones first.

    `sys.executable` is among them, whatever its version.
    """
    named = [part for part in os.environ.get(_VARIABLE, "").split(os.pathsep) if part]
    name = f"python{wanted}"
    homes = [
        (Path.home() / ".pyenv" / "versions", f"{wanted}.*"),
        (Path.home() / ".local/share/uv/python", f"cpython-{wanted}.*"),
    ]
    below = [str(path / "bin" / name) for base, pattern in homes for path in sorted(base.glob(pattern), reverse=True)]
    on_path = shutil.which(name)
    system = [f"/usr/local/bin/{name}", f"/usr/bin/{name}"]
    seen = set()
    for path in (*named, sys.executable, *([on_path] if on_path else []), *below, *system):
        if path not in seen and Path(path).is_file():
            seen.add(path)
            yield path


def _probe(executable: str) -> dict[str, Any] | None:
    """Return the output of `_PROBE` in an interpreter; None if it does not start."""
    try:
        ran = subprocess.run([executable, "-I", "-c", _PROBE], capture_output=True, timeout=60, check=True)
        said: dict[str, Any] = json.loads(ran.stdout)
        return said
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _has_argv0(loader: str) -> bool:
    """Return whether a loader has the option `--argv0`, which glibc 2.33 introduced."""
    ran = subprocess.run([loader, "--help"], capture_output=True, timeout=10, check=False)
    return b"--argv0" in ran.stdout
