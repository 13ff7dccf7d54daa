"""Directories that are built once, by the first process that needs one, and are complete or absent.

Builders exclude each other by a lock that the kernel releases when they die. The remains of a killed builder have
another name and are removed by the next one. A finished directory never changes, and its files are read-only.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchflow.errors import AgentInstallError
from benchflow.host_files import hold_lock_async
from benchflow.planes.agent.toolbox.build_steps import classify_failure


async def build_once(directory: Path, make: Callable[[Path], Awaitable[None]]) -> bool:
    """Build a directory, unless it exists, and return whether it was built now.

    Args:
        directory: Path of the directory.
        make: Callback that fills the directory that it receives. Its errors are raised.

    Raises:
        AgentInstallError: The disk is full or cannot be written.
    """
    if directory.is_dir():
        return False
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        async with hold_lock_async(directory.parent / ".locks" / f"{directory.name}.lock"):
            if directory.is_dir():
                return False
            for left in directory.parent.glob(f".{directory.name}.*.part"):
                remove_tree(left)
            part = directory.parent / f".{directory.name}.{os.getpid()}.part"
            part.mkdir(mode=0o755)
            try:
                await make(part)
                _seal(part)
                # The rename must not survive a power cut that the files do not survive.
                os.sync()
                part.rename(directory)
            except BaseException:
                remove_tree(part)
                raise
            return True
    except OSError as error:
        full = error.errno in (28, 122)
        raise classify_failure(f"building {directory.name}", "ENOSPC" if full else "", str(error)) from error


def remove_tree(directory: Path) -> None:
    """Remove a directory, also one with read-only content."""
    for at, names, _ in os.walk(directory):
        for name in (".", *names):
            path = Path(at) / name
            if not path.is_symlink():
                path.chmod(0o755)
    shutil.rmtree(directory, ignore_errors=True)


def link_tree(source: Path, target: Path) -> None:
    """Copy a tree by hard links, or by content where the file system has none."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, copy_function=link)


def link(source: str | Path, target: str | Path) -> None:
    """Make a hard link to a file, or copy it if that fails. A symbolic link is not followed."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def measure(directory: Path) -> tuple[int, int]:
    """Return the bytes on disk and the number of files below a directory."""
    size = files = 0
    for at, _, names in os.walk(directory):
        for name in names:
            size += (Path(at) / name).lstat().st_blocks * 512
            files += 1
    return size, files


def _seal(directory: Path) -> None:
    """Make all content readable and executable, but not writable, for all.

    Raise `AgentInstallError` for a link that leads out.
    """
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
    # The directory itself stays writable for its owner, who could not rename it otherwise.
    directory.chmod(0o755)
