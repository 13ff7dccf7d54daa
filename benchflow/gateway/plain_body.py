"""Removal of a body's content encoding and, on its way to the agent, of the key, piece by piece.

A compressed body would hide the key, so it is forwarded unpacked. Endpoints are asked for uncompressed bodies:
unpacking those that are compressed nevertheless costs a little, and one that cannot be unpacked is unusable.
"""

from __future__ import annotations

import zlib

from benchflow.gateway.key_cutter import KeyCutter, KeyForms

_WBITS = {"gzip": 31, "x-gzip": 31, "deflate": zlib.MAX_WBITS}
_RAW_DEFLATE_WBITS = -zlib.MAX_WBITS


class UnpackingError(Exception):
    """A body is not compressed as its head says, has an unknown content encoding, or is too large when unpacked."""


class Unpacker:
    """Unpacks a body incrementally."""

    def __init__(self, encoding: str, limit: int) -> None:
        """Make it. Raise `UnpackingError` for an unknown encoding.

        Args:
            encoding: The content encoding; empty for none.
            limit: Maximum of bytes that the body may unpack to.
        """
        encoding = encoding.strip().lower()
        if encoding not in ("", "identity", *_WBITS):
            raise UnpackingError("the content encoding is not known")
        self._wbits = _WBITS.get(encoding)
        # By the standard `deflate` is zlib's format, but many servers send raw deflate: the first two bytes decide.
        self._is_undecided = encoding == "deflate"
        self._start = b""
        self._inflate = zlib.decompressobj(self._wbits) if self._wbits is not None else None
        self._left = limit
        self._has_started = False

    @property
    def is_packed(self) -> bool:
        """Return whether the body has a content encoding, so that unpacking changes its length."""
        return self._wbits is not None

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that a further piece unpacks to. Raise `UnpackingError`, also beyond the limit."""
        if self._is_undecided:
            self._start += data
            if len(self._start) < 2:
                return b""
            data = self._decide()
        found = self._unpack(data)
        self._left -= len(found)
        if self._left < 0:
            raise UnpackingError("the body is too large")
        return found

    def end(self) -> None:
        """Raise `UnpackingError` if the compressed body is incomplete. An empty one is complete."""
        if (self._is_undecided and self._start) or (
            self._inflate is not None and not self._inflate.eof and self._has_started
        ):
            raise UnpackingError("the packed body breaks off")

    def _decide(self) -> bytes:
        """Decide between the two formats of `deflate`, and return the buffered bytes."""
        self._is_undecided = False
        if self._start[0] & 0x0F != zlib.DEFLATED or int.from_bytes(self._start[:2], "big") % 31:
            self._wbits = _RAW_DEFLATE_WBITS
            self._inflate = zlib.decompressobj(self._wbits)
        return self._start

    def _unpack(self, data: bytes) -> bytes:
        """Return the data unpacked, at most one byte beyond the limit."""
        if self._inflate is None or self._wbits is None:
            return data
        found = b""
        while data and len(found) <= self._left:
            if self._inflate.eof:
                # The next member: gzip data may consist of several, one after the other.
                self._inflate = zlib.decompressobj(self._wbits)
            self._has_started = True
            try:
                found += self._inflate.decompress(data, self._left - len(found) + 1)
            except zlib.error as error:
                raise UnpackingError("the body is not packed as it says") from error
            data = self._inflate.unused_data or self._inflate.unconsumed_tail
        return found


class PlainBody:
    """Unpacks a response incrementally, and covers the key in it."""

    def __init__(self, encoding: str, forms: KeyForms, limit: int) -> None:
        """Make it. Raise `UnpackingError` for an unknown encoding.

        Args:
            encoding: The content encoding; empty for none.
            forms: The key.
            limit: Maximum of bytes that the body may unpack to.
        """
        self._unpacker = Unpacker(encoding, limit)
        self._cutter = KeyCutter(forms)

    @property
    def is_packed(self) -> bool:
        """Return whether the body has a content encoding, so that unpacking changes its length."""
        return self._unpacker.is_packed

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to forward after a further piece. Raise `UnpackingError`, also beyond the limit."""
        return self._cutter.feed(self._unpacker.feed(data))

    def end(self) -> bytes:
        """Return the remaining bytes at the upstream's end. Raise `UnpackingError` if the body is incomplete."""
        self._unpacker.end()
        return self._cutter.end()


def unpack(data: bytes, encoding: str, limit: int) -> bytes:
    """Return a complete body unpacked.

    Args:
        data: The body.
        encoding: Its content encoding; empty for none.
        limit: Maximum of bytes that it may unpack to.

    Raises:
        UnpackingError: It cannot be unpacked, or is larger than the limit.
    """
    unpacker = Unpacker(encoding, limit)
    found = unpacker.feed(data)
    unpacker.end()
    return found
