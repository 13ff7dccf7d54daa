"""Taking the real key out of an endpoint's answers, while they pass.

An endpoint, or a proxy before it, may repeat a request's headers. The key is covered by as many bytes as it has: the
length of an answer stays what its head says. It is found in the forms in which programs write a text: as it is, in JSON
(also where that is a text in JSON itself), in HTML, percent-encoded, and in base64 of both alphabets, wherever it
begins there. A key that an endpoint writes in pieces, in hex, or in broken lines is not found.
"""

from __future__ import annotations

import base64
import functools
import html
import json
import re
from collections.abc import Iterable
from urllib.parse import quote

from benchflow.secrets import SHORTEST


class KeyForms:
    """One key in all its forms. A key of fewer than eight characters has none: it is in every text by chance."""

    def __init__(self, name: str, key: str) -> None:
        # As it is in a header.
        key = key.strip()
        self._label = f"[{name}]".encode()
        forms = {form for form in _forms(key) if form} if len(key) >= SHORTEST else set()
        # The longest one first: one may begin as another one does.
        self._forms = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._forms))) if forms else None

    def cover(self, data: bytes) -> bytes:
        """Return the data with each form of the key covered, as long as before."""
        return self._pattern.sub(self._cover, data) if self._pattern is not None else data

    def cover_text(self, text: str) -> str:
        """Return a header's name or value with each form of the key covered."""
        return self.cover(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def cover_begun(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the data covered as far as it is decided, and the rest, which may be the beginning of a form."""
        if self._pattern is None:
            return data, b""
        if not any(form in data for form in self._forms):
            # As nearly always: by far faster than to look for all forms at once.
            begun = self._find_begun(data, 0)
            return data[:begun], data[begun:]
        done: list[bytes] = []
        at = 0
        while True:
            begun = self._find_begun(data, at)
            match = self._pattern.search(data, at)
            # A match at or after a beginning waits: what comes next may show that a longer form began earlier.
            if match is None or match.start() >= begun:
                done.append(data[at:begun])
                return b"".join(done), data[begun:]
            done += [data[at : match.start()], self._cover(match)]
            at = match.end()

    def _find_begun(self, data: bytes, at: int) -> int:
        """Return where the longest end of `data[at:]` starts that a form begins with; the length if there is none."""
        found = len(data)
        for form in self._forms:
            start = data.find(form[:1], max(at, len(data) - len(form) + 1), found)
            while start >= 0:
                if form.startswith(data[start:]):
                    found = start
                    break
                start = data.find(form[:1], start + 1, found)
        return found

    def _cover(self, match: re.Match[bytes]) -> bytes:
        length = len(match[0])
        return self._label[:length].ljust(length, b"*")


class KeyCutter:
    """Covers a key in a stream, however the stream is split. Only what may be the beginning of a key is held back."""

    def __init__(self, forms: KeyForms) -> None:
        self._forms = forms
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what may go on of all that came so far."""
        passing, self._held = self._forms.cover_begun(self._held + data)
        return passing

    def end(self) -> bytes:
        """Return what was held back, when nothing comes any more."""
        rest, self._held = self._forms.cover(self._held), b""
        return rest


@functools.lru_cache(maxsize=64)
def key_forms(name: str, key: str) -> KeyForms:
    """Return the forms of a key, which every call of a rollout needs."""
    return KeyForms(name, key)


def _forms(key: str) -> Iterable[bytes]:
    escaped = quote(key, safe="")
    texts = {key, html.escape(key), escaped, re.sub("%..", lambda match: match[0].lower(), escaped)}
    for ascii in (True, False):
        once = json.dumps(key, ensure_ascii=ascii)[1:-1]
        texts |= {once, once.replace("/", "\\/"), json.dumps(once, ensure_ascii=ascii)[1:-1]}
    yield from (text.encode("utf-8", "surrogateescape") for text in texts)
    plain = key.encode("utf-8", "surrogateescape")
    for offset in range(3):
        # Of the base64 of a longer text, the letters that hold nothing but the key.
        first, last = -(-offset * 8 // 6), (offset + len(plain)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(bytes(offset) + plain)[first:last]
