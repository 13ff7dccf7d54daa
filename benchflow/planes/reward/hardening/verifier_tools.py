"""Find the programs and libraries that a verifier depends on, in a sandbox before its agent acts."""

from __future__ import annotations

import base64
import posixpath
import re
from collections.abc import Iterable

from benchflow.contracts.base import Model
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import VerifierError
from benchflow.planes.reward.hardening.verifier_dependencies import LOADER_FILES, TOOLS

ACCOUNTS = "/etc/passwd"

# $1 PATH. Prints three parts with a line `==` after each: programs; libraries as the loader lists them; directories of
# Pythons.
_SCRIPT = rf"""
path=$1
IFS=:; set --
for d in $path; do
  case $d in /*) ;; *) continue;; esac
  for n in {" ".join(TOOLS)}; do
    if [ -f "$d/$n" ] && [ -x "$d/$n" ]; then set -- "$@" "$d/$n"; fi
  done
done
unset IFS
follow() {{ readlink -f -- "$@" 2>/dev/null || for f; do readlink -f "$f"; done; }}
printf '%s\n' "$@"; echo ==
real=$(follow "$@" | sort -u)
for f in $real; do
  case $f in */ldconfig|*/uv|*/uvx) ;; *) LD_TRACE_LOADED_OBJECTS=1 "$f";; esac
done </dev/null 2>/dev/null | grep '(0x' | sort -u; echo ==
for p in $(printf '%s\n' "$@" $real | sed -n 's,/bin/\(python\|pytest\)[^/]*$,,p' | sort -u); do
  for l in "$p"/lib/python3*; do [ ! -d "$l" ] || printf '%s\n' "$l"; done
done; echo ==
"""


class ToolSet(Model):
    """Programs and libraries that a verifier depends on. Paths are as programs are called by, links not resolved."""

    path: str = ""
    """Directories that were searched for programs, joined by `:`."""

    programs: list[str] = []
    """Paths of the programs."""

    libraries: list[str] = []
    """Paths at which the loader finds the libraries of these programs, and the loader itself."""

    files: list[str] = []
    """Further files that programs start with: activation scripts and `pyvenv.cfg` of virtual environments, and programs
    of the workspace's `node_modules`.
    """

    loaded_from: list[str] = []
    """Directories of LD_LIBRARY_PATH, which the loader searches first."""

    pythons: list[str] = []
    """Directories of standard libraries (`/usr/lib/python3.11`), with the packages below them."""

    loader: dict[str, str] = {}
    """Content of the loader's own files by path, in base64; those that do not exist are not listed."""

    accounts: str = ""
    """Content of `/etc/passwd`, in Latin-1; empty unless `is_whole`."""

    is_whole: bool = False
    """Whether the agent can change any file, not only those in the directories of `path`."""


async def take_tools(sandbox: Sandbox, path: str, *, is_whole: bool) -> ToolSet:
    """Return the tools of a sandbox in which no agent has acted yet.

    Args:
        sandbox: The sandbox.
        path: Directories to search, joined by `:`: those that the agent may write, or the PATH of verifiers.
        is_whole: Whether the agent may write every file.

    Raises:
        VerifierError: The programs can't be listed.
    """
    result = await sandbox.control(_SCRIPT, path, timeout=120)
    parts = [[line for line in part.split("\n") if line] for part in result.stdout.split("==\n")]
    if len(parts) < 4:
        raise VerifierError("the sandbox's programs could not be listed", log_tail=result.stderr[-2000:])
    programs, loaded, pythons = parts[:3]
    loader: dict[str, str] = {}
    accounts = b""
    if is_whole:
        accounts = await sandbox.read_outside(ACCOUNTS) or b""
        for file in LOADER_FILES:
            if (content := await sandbox.read_outside(file)) is not None:
                loader[file] = base64.b64encode(content).decode()
    return ToolSet(
        path=path,
        programs=programs,
        libraries=sorted(set(_read_library_paths(loaded))),
        pythons=[posixpath.normpath(directory) for directory in pythons],
        loader=loader,
        accounts=accounts.decode("latin-1"),
        is_whole=is_whole,
    )


def _read_library_paths(lines: Iterable[str]) -> Iterable[str]:
    """Yield the absolute paths of libraries in lines of the loader's trace."""
    for line in lines:
        found = re.match(r"\s*(\S+)(?: => (\S+))? \(0x", line)
        if found and (place := found.group(2) or found.group(1)).startswith("/"):
            yield place
