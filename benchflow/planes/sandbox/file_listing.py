"""Listing all files of a sandbox from an archive of its root, for drivers whose layers this host can't read."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from typing import IO

from benchflow.archive_reader import ArchiveLimits, read_archive
from benchflow.confined import MAX_DEPTH
from benchflow.contracts.file_changes import FileChanges, FileKind, FileState
from benchflow.errors import UnsafePathError
from benchflow.planes.sandbox.overlays import compute_digest, escape_name, is_below

MAX_BYTES = 64 * 1024**3
"""Maximum number of bytes of all files of a sandbox."""

_CAPABILITY = "SCHILY.xattr.security.capability"

_KINDS: dict[bytes, FileKind] = {
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "link",
    tarfile.FIFOTYPE: "pipe",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
}


def list_archive(packed: IO[bytes], skip: Sequence[str]) -> FileChanges:
    """Return the files in an archive of a sandbox's root.

    Args:
        packed: The archive, seekable.
        skip: Paths to leave out, with all that is below them.

    Raises:
        UnsafePathError: The archive is broken, or has more than `MAX_BYTES`.
    """
    files: dict[str, FileState | None] = {}
    try:
        for member in read_archive(packed, ArchiveLimits(size=MAX_BYTES, depth=2 * MAX_DEPTH)):
            path = escape_name("/" + "/".join(member.parts))
            if member.leads_out or not member.parts or is_below(path, skip):
                continue
            info = member.info
            if info.islnk():
                # A hard link to an earlier member, which may have been left out.
                files[path] = files.get(escape_name("/" + info.linkname.removeprefix("./").lstrip("/")))
                continue
            kind = _KINDS.get(info.type, "file")
            files[path] = FileState(
                kind=kind,
                mode=0 if kind == "link" else info.mode & 0o7777,
                uid=info.uid,
                gid=info.gid,
                size=info.size if kind == "file" else 0,
                digest=compute_digest(member.content) if member.content is not None else "",
                target=escape_name(info.linkname) if kind == "link" else "",
                capability=info.pax_headers.get(_CAPABILITY, "").encode("utf-8", "surrogateescape").hex(),
            )
    except tarfile.TarError as error:
        raise UnsafePathError(
            f"the sandbox's files cannot be listed: {error}", remedy="see what the agent left there"
        ) from error
    return FileChanges(files=files)
