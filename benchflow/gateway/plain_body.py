"""A body without its content encoding and, on its way to the agent, without the key, piece by piece.

A packed body would hide the key, so it goes on unpacked. Endpoints are asked for unpacked ones: what comes packed all
the same costs a little, and what cannot be unpacked here is no answer.
"""

from __future__ import annotations

import zlib

from benchflow.gateway.key_cutter import KeyCutter, KeyForms

_WBITS = {"gzip": 31, "x-gzip": 31, "deflate": zlib.MAX_WBITS}
_RAW_DEFLATE_WBITS = -zlib.MAX_WBITS


class UnpackingError(Exception):
    """A body is not packed as its head says, or has an encoding that is not known here."""


class Unpacker:
    """Takes a body's bytes as they come and gives those that were packed in them.

    encoding: the content encoding, empty for none. limit: bytes that it may unpack to. Raises `UnpackingError`.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        encoding = encoding.strip().lower()
        if encoding not in ("", "identity", *_WBITS):
            raise UnpackingError("the content encoding is not known")
        self._wbits = _WBITS.get(encoding)
        # `deflate` is zlib's format by the standard, and many servers send the bare one: the first two bytes tell.
        self._is_undecided = encoding == "deflate"
        self._start = b""
        self._inflate = zlib.decompressobj(self._wbits) if self._wbits is not None else None
        self._left = limit
        self._is_begun = False

    @property
    def is_packed(self) -> bool:
        """Whether the body's length changes on the way."""
        return self._wbits is not None

    def feed(self, data: bytes) -> bytes:
        """Return what was packed in all that came so far, and was not returned. Raises `UnpackingError`."""
        if self._is_undecided:
            self._start += data
            if len(self._start) < 2:
                return b""
            data = self._decide()
        found = self._unpacked(data)
        self._left -= len(found)
        if self._left < 0:
            raise UnpackingError("the body is too large")
        return found

    def end(self) -> None:
        """Raise `UnpackingError` if something is missing of what has begun."""
        if (self._is_undecided and self._start) or (
            self._inflate is not None and not self._inflate.eof and self._is_begun
        ):
            raise UnpackingError("the packed body breaks off")

    def _decide(self) -> bytes:
        self._is_undecided = False
        if self._start[0] & 0x0F != zlib.DEFLATED or int.from_bytes(self._start[:2], "big") % 31:
            self._wbits = _RAW_DEFLATE_WBITS
            self._inflate = zlib.decompressobj(self._wbits)
        return self._start

    def _unpacked(self, data: bytes) -> bytes:
        if self._inflate is None or self._wbits is None:
            return data
        found = b""
        while data and len(found) <= self._left:
            if self._inflate.eof:
                # The next member: what gzip packs may be several texts, one after the other.
                self._inflate = zlib.decompressobj(self._wbits)
            self._is_begun = True
            try:
                found += self._inflate.decompress(data, self._left - len(found) + 1)
            except zlib.error as error:
                raise UnpackingError("the body is not packed as it says") from error
            data = self._inflate.unused_data or self._inflate.unconsumed_tail
        return found


class PlainBody:
    """Takes an answer's bytes as they come and gives those that may go on. Parameters as of `Unpacker`."""

    def __init__(self, encoding: str, forms: KeyForms, limit: int) -> None:
        self._unpacker = Unpacker(encoding, limit)
        self._cutter = KeyCutter(forms)

    @property
    def is_packed(self) -> bool:
        """Whether its length changes on the way."""
        return self._unpacker.is_packed

    def feed(self, data: bytes) -> bytes:
        """Return what may go on of all that came so far. Raises `UnpackingError`, also beyond the limit."""
        return self._cutter.feed(self._unpacker.feed(data))

    def end(self) -> bytes:
        """Return the rest, when the upstream has sent all. Raises `UnpackingError` if something is missing."""
        self._unpacker.end()
        return self._cutter.end()


def unpack(data: bytes, encoding: str, limit: int) -> bytes:
    """Return a whole body unpacked. Raises `UnpackingError`."""
    unpacker = Unpacker(encoding, limit)
    found = unpacker.feed(data)
    unpacker.end()
    return found
