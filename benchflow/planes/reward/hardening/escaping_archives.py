"""Find archives in the workspace that would unpack outside of the directory in which a verifier unpacks them.

A member named `../expected.txt`, or one that lies below a link, would overwrite the verifier's own files; a member that
links to these compares equal to them. No honest work produces such an archive.
"""

from __future__ import annotations

import io
import posixpath
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from typing import IO, NamedTuple, cast

from benchflow.planes.reward.hardening.verifier_dependencies import VERIFIERS

PATTERNS = ("*.tar", "*.tar.*", "*.tgz", "*.tbz2", "*.txz", "*.zip", "*.jar", "*.whl")
"""Globs over the names of archives that are read."""

MAX_ARCHIVES = 20
"""Maximum number of archives that are read."""

MAX_BYTES = 32 * 1024 * 1024
"""Maximum size of an archive that is read."""

_MAX_MEMBERS = 20_000
_MAX_UNPACKED = 512 * 1024 * 1024
_MAX_LINK = 4096


class _Member(NamedTuple):
    name: str
    target: str | None
    """Text of a link; None for other members."""


def find_escaping_member(content: bytes) -> str | None:
    """Return the name of the first member that leads out of the archive's directory; None if there is none.

    A member leads out if it has such a name, lies below a link, or is a link to the outside. None is also returned for
    content that can't be read: a verifier could not unpack it either.
    """
    links: set[str] = set()
    try:
        for member in _read_members(content):
            name = posixpath.normpath(member.name)
            if member.name.startswith("/") or name.startswith("../") or name == "..":
                return member.name
            parts = name.split("/")
            if any("/".join(parts[:number]) in links for number in range(1, len(parts))):
                return member.name
            if member.target is not None:
                links.add(name)
                if _is_escaping(name, member.target):
                    return f"{member.name} -> {member.target}"
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError):
        return None
    return None


def _read_members(content: bytes) -> Iterator[_Member]:
    """Yield the members of a zip or tar archive, up to the limits."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist()[:_MAX_MEMBERS]:
                is_link = stat.S_ISLNK(info.external_attr >> 16) and info.file_size <= _MAX_LINK
                yield _Member(info.filename, archive.read(info).decode(errors="replace") if is_link else None)
        return
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:*") as packed:
        # A compressed archive may unpack to any size, so the unpacked position is limited.
        bounded = cast(IO[bytes], packed.fileobj)
        for _ in range(_MAX_MEMBERS):
            member = packed.next()
            if member is None or bounded.tell() > _MAX_UNPACKED:
                return
            packed.members = []  # type: ignore[attr-defined]
            is_link = member.issym() or member.islnk()
            yield _Member(member.name, member.linkname if is_link and member.issym() else None)


def _is_escaping(name: str, target: str) -> bool:
    """Return whether a link leads out: a relative one of the archive's directory, an absolute one to the verifier's."""
    if target.startswith("/"):
        return any(target == place or target.startswith(f"{place}/") for place in (*VERIFIERS, "/proc"))
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), target)).startswith("..")
