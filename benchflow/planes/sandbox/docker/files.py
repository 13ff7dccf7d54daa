"""Files in and out of a container, the small ones through the root shell.

A small archive goes through the shell as text (base64 in a here-document), which takes a few milliseconds; a
large one, or an image without `tar` and `base64`, takes the daemon's archive call.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import posixpath
import shlex
import tarfile
import tempfile
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

from benchflow.errors import SandboxError
from benchflow.planes.sandbox.archives import ArrivingArchive, entry, pack, unpack
from benchflow.planes.sandbox.cancellation import StoppedError, run_stoppable
from benchflow.planes.sandbox.docker.engine import Engine, RecordingClient
from benchflow.planes.sandbox.docker.shell import RootShell
from benchflow.planes.sandbox.docker.translation import NotFound

SMALL = 512 * 1024
"""Bytes of an archive that still goes through the shell."""

READ_LIMIT = 64 * 1024 * 1024

NOT_THERE = 44
NO_FILE = 45

_MAKE = """
mk() { d=$1; n=; while [ ! -d "$d" ] && [ "$d" != / ]; do n=$d; d=${d%/*}; [ -n "$d" ] || d=/; done
  mkdir -p -- "$1" || return 1; [ -z "$n" ] || chown -R "$2" -- "$n"; }
umask 022
"""


class Files:
    """The files of one container."""

    def __init__(self, engine: Engine, shell: RootShell, container: str) -> None:
        self._engine = engine
        self._shell = shell
        self._container = container
        self._tools: frozenset[str] | None = None
        self._owners: dict[str, tuple[int, int]] = {}

    async def read(self, path: str) -> bytes:
        quoted = shlex.quote(path)
        answer = await self._shell.run(
            f"[ -e {quoted} ] || exit {NOT_THERE}; [ -f {quoted} ] || exit {NO_FILE}\n"
            f"head -c {READ_LIMIT + 1} <{quoted}"
        )
        if answer.code == NOT_THERE:
            raise FileNotFoundError(f"{path}: no such file in the sandbox")
        if answer.code == NO_FILE:
            raise SandboxError("is not a regular file", file=path)
        if answer.code:
            raise SandboxError(f"cannot be read: {answer.complaint}", file=path)
        if len(answer.out) > READ_LIMIT:
            raise SandboxError(f"is larger than {READ_LIMIT} bytes", file=path, remedy="download it instead")
        return answer.out

    async def write(self, path: str, content: bytes, mode: int, user: str) -> None:
        owner = await self._owner(user)
        if len(content) > SMALL or "base64" not in await self._available():
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                info = entry(posixpath.basename(path), mode, owner)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            await self._unpack_inside(packed, posixpath.dirname(path), owner)
            return
        # Written beside its place and moved there, so that a reader sees all of it and a link or a running
        # program in its place is replaced; what cannot be replaced (a mounted file) is overwritten.
        target, part = shlex.quote(path), shlex.quote(f"{path}.benchflow-part")
        answer = await self._shell.run(
            f"{_MAKE}[ ! -d {target} ] || {{ echo 'it is a directory' >&2; exit 1; }}\n"
            f"mk {shlex.quote(posixpath.dirname(path))} {owner[0]}:{owner[1]} || exit 1\n"
            f"base64 -d >{part} <<'end' || exit 1\n{base64.encodebytes(content).decode()}end\n"
            f"chmod {mode:o} {part} && chown {owner[0]}:{owner[1]} {part} || exit 1\n"
            f"mv -f {part} {target} 2>/dev/null || {{ cat {part} >{target}; c=$?; rm -f {part}; exit $c; }}"
        )
        if answer.code:
            raise SandboxError(f"cannot be written: {answer.complaint}", file=path)

    async def upload(self, source: Path, target: str, user: str, exclude: Sequence[str]) -> None:
        if not source.exists():
            raise SandboxError("does not exist on this host", file=str(source))
        owner = await self._owner(user)
        whole = source.is_dir()
        with tempfile.SpooledTemporaryFile(max_size=16 * SMALL) as packed:
            name = None if whole else posixpath.basename(target)
            await asyncio.to_thread(pack, source, packed, owner, exclude, name)
            await self._unpack_inside(packed, target if whole else posixpath.dirname(target), owner)

    async def download(self, source: str, target: Path, exclude: Sequence[str]) -> bool:
        with tempfile.SpooledTemporaryFile(max_size=16 * SMALL) as packed:
            single = await (
                self._pack_inside(source, packed)
                if "tar" in await self._available()
                else self._pack_by_daemon(source, packed)
            )
            if single is None:
                return False
            packed.seek(0)
            await run_stoppable(partial(unpack, packed, target, exclude, single))
        return True

    # --- inside --------------------------------------------------------------------------------------

    async def _unpack_inside(self, packed: IO[bytes], directory: str, owner: tuple[int, int]) -> None:
        size = packed.seek(0, os.SEEK_END)
        packed.seek(0)
        made = f"{_MAKE}mk {shlex.quote(directory)} {owner[0]}:{owner[1]} || exit 1\n"
        small = size <= SMALL and {"tar", "base64"} <= await self._available()
        if small:
            text = base64.encodebytes(packed.read()).decode()
            made += f"base64 -d <<'end' | tar -xpf - -C {shlex.quote(directory)}\n{text}end"
        answer = await self._shell.run(made)
        if answer.code:
            raise SandboxError(f"cannot be written: {answer.complaint}", file=directory)
        if not small:
            await self._engine.call(lambda client: client.put_archive(self._container, directory, packed))

    async def _pack_inside(self, source: str, packed: IO[bytes]) -> bool | None:
        """Pack with the image's tar; whether it is a single file, None where nothing is."""
        quoted = shlex.quote(source)
        single = (await self._shell.run(f"[ -e {quoted} ] || exit {NOT_THERE}; [ -d {quoted} ] || exit {NO_FILE}")).code
        if single == NOT_THERE:
            return None
        if single == NO_FILE:
            parent, name = (
                shlex.quote(posixpath.dirname(source) or "/"),
                shlex.quote(posixpath.basename(source)),
            )
            what = f"-h -C {parent} -- {name}"
        else:
            what = f"-C {quoted} ."
        answer = await self._shell.run(f"tar -cf - {what}", sink=ArrivingArchive(source, packed).take, timeout=None)
        # 1 is tar's word for a file that changed or vanished while it was read: what was read counts.
        if answer.code > 1:
            raise SandboxError(f"cannot be packed: {answer.complaint}", file=source)
        return single == NO_FILE

    async def _pack_by_daemon(self, source: str, packed: IO[bytes]) -> bool | None:
        resolved = await self._shell.run(f"cd -P -- {shlex.quote(source)} 2>/dev/null && pwd -P")
        whole = resolved.code == 0
        path = f"{resolved.out.decode().rstrip(chr(10))}/." if whole else source

        def fetch(stop: threading.Event, api: RecordingClient) -> None:
            arriving = ArrivingArchive(source, packed)
            pieces, _ = api.get_archive(self._container, path, chunk_size=None)
            with contextlib.closing(pieces):
                for piece in pieces:
                    if stop.is_set():
                        raise StoppedError
                    arriving.take(piece)

        try:
            await self._engine.stoppable(fetch)
        except NotFound:
            return None
        return not whole

    async def _available(self) -> frozenset[str]:
        if self._tools is None:
            answer = await self._shell.run("for t in tar base64; do command -v $t >/dev/null 2>&1 && echo $t; done; :")
            self._tools = frozenset(answer.out.decode().split())
        return self._tools

    async def _owner(self, user: str) -> tuple[int, int]:
        """The ids of `name`, `id`, `name:group` or `id:id`, from the container's own tables."""
        if user == "0":
            return 0, 0
        if user not in self._owners:
            name, _, group = user.partition(":")
            answer = await self._shell.run(_IDS.format(user=shlex.quote(name), group=shlex.quote(group)))
            if answer.code:
                raise SandboxError(
                    f"there is no user {user!r} in the sandbox",
                    key="user",
                    remedy="name a user that exists in the image, or add it in the Dockerfile",
                )
            uid, gid = answer.out.split()
            self._owners[user] = int(uid), int(gid)
        return self._owners[user]


# An id without an entry is valid, as it is for the daemon, with group 0.
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
