"""A directory that is built once, by whoever comes first, and is whole or not there at all.

Builders exclude each other by a lock that the kernel drops when they die. What a killed one left lies under another
name and is removed by the next. Once in place a directory is never changed, and nobody may write into it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchflow.errors import AgentInstallError
from benchflow.planes.agent.toolbox.steps import failed
from benchflow.planes.sandbox.records import file_lock


async def built_once(directory: Path, make: Callable[[Path], Awaitable[None]]) -> bool:
    """Make sure that `directory` is there; whether it was built now. `make` fills the directory that it is given.

    Raises what `make` raises, and `AgentInstallError` where the disk is full or cannot be written.
    """
    if directory.is_dir():
        return False
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        async with file_lock(directory.parent / ".locks" / f"{directory.name}.lock"):
            if directory.is_dir():
                return False
            for left in directory.parent.glob(f".{directory.name}.*.part"):
                remove_tree(left)
            part = directory.parent / f".{directory.name}.{os.getpid()}.part"
            part.mkdir(mode=0o755)
            try:
                await make(part)
                _seal(part)
                # A rename that survives a power cut must not lead to files that did not.
                os.sync()
                part.rename(directory)
            except BaseException:
                remove_tree(part)
                raise
            return True
    except OSError as error:
        full = error.errno in (28, 122)
        raise failed(f"building {directory.name}", "ENOSPC" if full else "", str(error)) from error


def remove_tree(directory: Path) -> None:
    """Remove a directory, also one whose content may not be written."""
    for at, names, _ in os.walk(directory):
        for name in (".", *names):
            path = Path(at) / name
            if not path.is_symlink():
                path.chmod(0o755)
    shutil.rmtree(directory, ignore_errors=True)


def link_tree(source: Path, target: Path) -> None:
    """The same files under another directory, sharing their content where the file system can."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, copy_function=link)


def link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def measure(directory: Path) -> tuple[int, int]:
    """(bytes on disk, number of files) below a directory."""
    size = files = 0
    for at, _, names in os.walk(directory):
        for name in names:
            size += (Path(at) / name).lstat().st_blocks * 512
            files += 1
    return size, files


def _seal(directory: Path) -> None:
    """Everybody may read and run what is there, nobody may change it; no link leads out of it."""
    root = directory.resolve()
    for at, names, files in os.walk(directory, topdown=False):
        for name in (*names, *files):
            path = Path(at) / name
            if path.is_symlink():
                if not path.resolve().is_relative_to(root) or path.readlink().is_absolute():
                    raise AgentInstallError(
                        f"{path.relative_to(directory)} is a link to {path.readlink()}, outside of the toolbox",
                        remedy="leave the package out that brings it, or prune it",
                    )
                continue
            mode = path.stat().st_mode
            path.chmod(0o555 if stat.S_ISDIR(mode) or mode & 0o111 else 0o444)
    # Its own directory stays writable for its owner, who could not rename it otherwise.
    directory.chmod(0o755)
