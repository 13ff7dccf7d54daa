"""Read and clear the flags in a git index by which git overlooks changes: `skip-worktree` and `assume-unchanged`."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection

_ASSUMED, _EXTENDED, _SKIPPED = 0x8000, 0x4000, 0x4000
_STAT = 40
"""Bytes of an entry before the object's name."""


def list_flagged_paths(index: bytes) -> list[str] | None:
    """Return the paths with such a flag; None if the bytes are no valid index."""
    found = _read_entries(index)
    return None if found is None else [path for path, _, is_flagged in found if is_flagged]


def clear_flags(index: bytes, kept: Collection[str]) -> bytes:
    """Return an index with these flags cleared, and with its checksum adapted.

    Args:
        index: Valid index.
        kept: Paths that keep their flags.
    """
    changed = bytearray(index)
    for path, at, is_flagged in _read_entries(index) or ():
        if not is_flagged or path in kept:
            continue
        flags = struct.unpack_from(">H", changed, at)[0]
        struct.pack_into(">H", changed, at, flags & ~_ASSUMED)
        if flags & _EXTENDED:
            more = struct.unpack_from(">H", changed, at + 2)[0]
            struct.pack_into(">H", changed, at + 2, more & ~_SKIPPED)
    size = _find_hash_size(index)
    # With `index.skipHash`, git writes zeros for the checksum.
    if size is not None and any(index[-size:]):
        algorithm = hashlib.sha1 if size == 20 else hashlib.sha256
        changed[-size:] = algorithm(changed[:-size]).digest()
    return bytes(changed)


def _find_hash_size(index: bytes) -> int | None:
    """Return the bytes of an object's name, 20 or 32 by the hash function; None if the bytes are no valid index."""
    for size in (20, 32):
        if _read_with_size(index, size) is not None:
            return size
    return None


def _read_entries(index: bytes) -> list[tuple[str, int, bool]] | None:
    size = _find_hash_size(index)
    return None if size is None else _read_with_size(index, size)


def _read_with_size(index: bytes, size: int) -> list[tuple[str, int, bool]] | None:
    """Return (path, offset of the flags, whether one is set) of each entry; None if the bytes are no valid index.

    Args:
        index: Bytes of the index file.
        size: Bytes of an object's name.
    """
    if len(index) < 12 + size or index[:4] != b"DIRC":
        return None
    version, count = struct.unpack_from(">II", index, 4)
    if version not in (2, 3, 4):
        return None
    found, at, name = [], 12, b""
    try:
        for _ in range(count):
            begin, place = at, at + _STAT + size
            flags = struct.unpack_from(">H", index, place)[0]
            at = place + 2
            more = 0
            if flags & _EXTENDED:
                if version == 2:
                    return None
                more = struct.unpack_from(">H", index, at)[0]
                at += 2
            if version == 4:
                dropped, at = _read_number(index, at)
                if dropped > len(name):
                    return None
                name = name[: len(name) - dropped]
            else:
                name = b""
            end = index.index(b"\0", at)
            name += index[at:end]
            at = end + 1 if version == 4 else begin + (end - begin + 8) // 8 * 8
            is_flagged = bool(flags & _ASSUMED or more & _SKIPPED)
            found.append((name.decode(errors="surrogateescape"), place, is_flagged))
    except (ValueError, struct.error, IndexError):
        return None
    return found if at <= len(index) - size and _is_valid_end(index, at, size) else None


def _is_valid_end(index: bytes, at: int, size: int) -> bool:
    """Return whether the bytes from `at` on are extensions and a checksum, which tells the two hash sizes apart."""
    while at < len(index) - size:
        if at + 8 > len(index) - size:
            return False
        at += 8 + struct.unpack_from(">I", index, at + 4)[0]
    return at == len(index) - size


def _read_number(index: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and the offset after it."""
    value = index[at] & 0x7F
    while index[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (index[at] & 0x7F)
    return value, at + 1
