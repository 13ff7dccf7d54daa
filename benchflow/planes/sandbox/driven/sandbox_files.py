"""Transfer of files to and from a sandbox, by the driver's archives or, if it has one, its way for single files."""

from __future__ import annotations

import asyncio
import base64
import os
import posixpath
import shlex
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

from benchflow.archive_reader import ArchiveLimits, read_archive
from benchflow.contracts.accelerators import AccessesFiles
from benchflow.contracts.driver import SandboxDriver
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.archives import ArrivingArchive, pack, pack_bytes, unpack
from benchflow.planes.sandbox.cancellation import run_stoppable
from benchflow.planes.sandbox.driven.engine_scripts import EngineScripts

SMALL = 512 * 1024
"""Maximum bytes of an archive or file that is written by a script, as base64 text."""

READ_LIMIT = 64 * 1024 * 1024
"""Maximum bytes of a file that is read at once."""

_NOT_THERE = 44
"""Exit code of a script that finds no file."""
_NO_FILE = 45
"""Exit code of a script that finds something else than a regular file."""

_MAKE = """
mk() { d=$1; n=; while [ ! -d "$d" ] && [ "$d" != / ]; do n=$d; d=${d%/*}; [ -n "$d" ] || d=/; done
  mkdir -p -- "$1" || return 1; [ -z "$n" ] || chown -R "$2" -- "$n"; }
umask 022
"""

# An id without an entry in /etc/passwd is valid, with group 0.
_IDS = """
u={user}; g={group}; i=; j=
while IFS=: read -r n x a b r; do
  if [ "$n" = "$u" ] || [ "$a" = "$u" ]; then i=$a; j=$b; break; fi
done </etc/passwd
if [ -z "$i" ]; then case $u in ''|*[!0-9]*) exit 1;; esac; i=$u; j=0; fi
if [ -n "$g" ]; then
  k=; while IFS=: read -r n x a r; do [ "$n" = "$g" ] && k=$a; done </etc/group
  if [ -z "$k" ]; then case $g in *[!0-9]*) exit 1;; esac; k=$g; fi; j=$k
fi
echo "$i $j"
"""


class SandboxFiles:
    """The files of one sandbox."""

    def __init__(self, driver: SandboxDriver, handle: str, scripts: EngineScripts) -> None:
        """Make it. handle: the driver's handle of the sandbox."""
        self._driver = driver
        self._handle = handle
        self._scripts = scripts
        self._tools: frozenset[str] | None = None
        self._owners: dict[str, tuple[int, int]] = {}

    async def read(self, path: str) -> bytes:
        """Return the content of a regular file.

        Raises:
            FileNotFoundError: There is no such file.
            SandboxError: It is not a regular file, has more than `READ_LIMIT` bytes, or cannot be read.
        """
        if isinstance(self._driver, AccessesFiles):
            return await self._driver.read(self._handle, path, READ_LIMIT)
        quoted = shlex.quote(path)
        answer = await self._scripts.run(
            f"[ -e {quoted} ] || exit {_NOT_THERE}; [ -f {quoted} ] || exit {_NO_FILE}\n"
            f"head -c {READ_LIMIT + 1} <{quoted}"
        )
        if answer.exit_code == _NOT_THERE:
            raise FileNotFoundError(f"{path}: no such file in the sandbox")
        if answer.exit_code == _NO_FILE:
            raise SandboxError("is not a regular file", file=path)
        if answer.exit_code:
            raise SandboxError(f"cannot be read: {answer.complaint}", file=path)
        if len(answer.out) > READ_LIMIT:
            raise _make_size_error(path)
        return answer.out

    async def read_archived(self, path: str) -> bytes:
        """Return the content of a regular file as `read`, but always by the driver's archive."""
        with tempfile.SpooledTemporaryFile(max_size=16 * SMALL) as packed:
            single = await self._driver.get(self._handle, path, ArrivingArchive(path, packed).take)
            packed.seek(0)
            if single is None:
                raise FileNotFoundError(f"{path}: no such file in the sandbox")
            for member in read_archive(packed, ArchiveLimits(size=2 * READ_LIMIT)):
                if single and member.content is not None:
                    content = member.content.read(READ_LIMIT + 1)
                    if len(content) > READ_LIMIT:
                        raise _make_size_error(path)
                    return content
                break
        raise SandboxError("is not a regular file", file=path)

    async def write(self, path: str, content: bytes, mode: int, user: str) -> None:
        """Write a file and make its parent directories.

        Args:
            path: Absolute path of the file.
            content: Content of the file.
            mode: Permission bits.
            user: Owner of the file and of the directories that are made, as in `Process.user`.
        """
        if isinstance(self._driver, AccessesFiles):
            return await self._driver.write(self._handle, path, content, mode, user)
        owner = await self._owner(user)
        if len(content) > SMALL or not await self._takes_text("base64"):
            packed = pack_bytes(posixpath.basename(path), content, mode, owner)
            return await self._unpack(packed, posixpath.dirname(path), owner)
        # Written under a temporary name and renamed, so that a reader sees all of it, and a link or a running program
        # at the path is replaced. A path that cannot be replaced (a mounted file) is overwritten.
        target, part = shlex.quote(path), shlex.quote(f"{path}.benchflow-part")
        answer = await self._scripts.run(
            f"{_MAKE}[ ! -d {target} ] || {{ echo 'it is a directory' >&2; exit 1; }}\n"
            f"mk {shlex.quote(posixpath.dirname(path))} {owner[0]}:{owner[1]} || exit 1\n"
            f"base64 -d >{part} <<'end' || exit 1\n{base64.encodebytes(content).decode()}end\n"
            f"chmod {mode:o} {part} && chown {owner[0]}:{owner[1]} {part} || exit 1\n"
            f"mv -f {part} {target} 2>/dev/null || {{ cat {part} >{target}; c=$?; rm -f {part}; exit $c; }}"
        )
        if answer.exit_code:
            raise SandboxError(f"cannot be written: {answer.complaint}", file=path)

    async def upload(self, source: Path, target: str, user: str, exclude: Sequence[str]) -> None:
        """Copy a file, or a directory's content, into the sandbox.

        Args:
            source: File or directory of this host. Raises `SandboxError` if it does not exist.
            target: Path of the file, or of the directory for the content.
            user: Owner of the copies, as in `Process.user`.
            exclude: Shell patterns of paths or names to leave out.
        """
        if not source.exists():
            raise SandboxError("does not exist on this host", file=str(source))
        whole = source.is_dir()
        name = None if whole else posixpath.basename(target)
        directory = target if whole else posixpath.dirname(target)
        if isinstance(self._driver, AccessesFiles):
            with tempfile.TemporaryFile() as file:
                await asyncio.to_thread(pack, source, file, (0, 0), exclude, name)
                file.flush()
                file.seek(0)
                return await self._driver.unpack(self._handle, directory, file, user)
        owner = await self._owner(user)
        with tempfile.SpooledTemporaryFile(max_size=16 * SMALL) as packed:
            await asyncio.to_thread(pack, source, packed, owner, exclude, name)
            await self._unpack(packed, directory, owner)

    async def download(self, source: str, target: Path, exclude: Sequence[str]) -> bool:
        """Copy a file, or a directory's content, to this host.

        Args:
            source: Path in the sandbox.
            target: Path of the file, or of the directory for the content.
            exclude: Shell patterns of paths or names to leave out.

        Returns:
            False if there is nothing at `source`.
        """
        with tempfile.SpooledTemporaryFile(max_size=16 * SMALL) as packed:
            single = await self._driver.get(self._handle, source, ArrivingArchive(source, packed).take)
            if single is None:
                return False
            packed.seek(0)
            await run_stoppable(partial(unpack, packed, target, exclude, single))
        return True

    async def _unpack(self, packed: IO[bytes], directory: str, owner: tuple[int, int]) -> None:
        """Make a directory and unpack an archive there, by a script if it is small."""
        size = packed.seek(0, os.SEEK_END)
        packed.seek(0)
        made = f"{_MAKE}mk {shlex.quote(directory)} {owner[0]}:{owner[1]} || exit 1\n"
        small = size <= SMALL and await self._takes_text("tar", "base64")
        if small:
            text = base64.encodebytes(packed.read()).decode()
            made += f"base64 -d <<'end' | tar -xpf - -C {shlex.quote(directory)}\n{text}end"
        answer = await self._scripts.run(made)
        if answer.exit_code:
            raise SandboxError(f"cannot be written: {answer.complaint}", file=directory)
        if not small:
            await self._driver.put(self._handle, directory, packed)

    async def _takes_text(self, *tools: str) -> bool:
        """Return whether the sandbox has these programs, so that a script can decode small files."""
        if self._tools is None:
            answer = await self._scripts.run(
                "for t in tar base64; do command -v $t >/dev/null 2>&1 && echo $t; done; :"
            )
            self._tools = frozenset(answer.out.decode().split())
        return self._tools.issuperset(tools)

    async def _owner(self, user: str) -> tuple[int, int]:
        """Return uid and gid of `name`, `id`, `name:group` or `id:id`, by /etc/passwd and /etc/group of the sandbox."""
        if user == "0":
            return 0, 0
        if user not in self._owners:
            name, _, group = user.partition(":")
            answer = await self._scripts.run(_IDS.format(user=shlex.quote(name), group=shlex.quote(group)))
            if answer.exit_code:
                raise SandboxError(
                    f"there is no user {user!r} in the sandbox",
                    key="user",
                    remedy="name a user that exists in the image, or add it in the Dockerfile",
                )
            uid, gid = answer.out.split()
            self._owners[user] = int(uid), int(gid)
        return self._owners[user]


def _make_size_error(path: str) -> SandboxError:
    return SandboxError(f"is larger than {READ_LIMIT} bytes", file=path, remedy="download it instead")
