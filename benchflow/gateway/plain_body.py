"""An answer's body on its way to the agent: unpacked, and without the key, piece by piece.

A packed body would hide the key, so it goes on unpacked. Endpoints are asked for unpacked ones: what comes packed all
the same costs a little, and what cannot be unpacked here is no answer.
"""

from __future__ import annotations

import zlib

from benchflow.gateway.key_cutter import KeyCutter, KeyForms

_WBITS = {"gzip": 31, "x-gzip": 31, "deflate": zlib.MAX_WBITS}


class UnpackingError(Exception):
    """A body is not packed as its head says, or has an encoding that is not known here."""


class PlainBody:
    """Takes a body's bytes as they come and gives those that may go on.

    encoding: the content encoding, empty for none. limit: bytes that it may unpack to. Raises `UnpackingError`.
    """

    def __init__(self, encoding: str, forms: KeyForms, limit: int) -> None:
        encoding = encoding.strip().lower()
        if encoding not in ("", "identity", *_WBITS):
            raise UnpackingError("the answer's content encoding is not known")
        self._wbits = _WBITS.get(encoding)
        self._inflate = zlib.decompressobj(self._wbits) if self._wbits is not None else None
        self._cutter = KeyCutter(forms)
        self._left = limit
        self._is_begun = False

    @property
    def is_packed(self) -> bool:
        """Whether its length changes on the way."""
        return self._wbits is not None

    def feed(self, data: bytes) -> bytes:
        """Return what may go on of all that came so far. Raises `UnpackingError`, also beyond the limit."""
        plain = self._unpacked(data)
        self._left -= len(plain)
        if self._left < 0:
            raise UnpackingError("the answer is too large")
        return self._cutter.feed(plain)

    def end(self) -> bytes:
        """Return the rest, when the upstream has sent all. Raises `UnpackingError` if something is missing."""
        if self._inflate is not None and not self._inflate.eof and self._is_begun:
            raise UnpackingError("the packed answer breaks off")
        return self._cutter.end()

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
                raise UnpackingError("the answer is not packed as it says") from error
            data = self._inflate.unused_data or self._inflate.unconsumed_tail
        return found
