"""Covering of the real key in an endpoint's responses while they pass.

An endpoint, or a proxy before it, may repeat a request's headers. The key is covered by as many bytes as it has, so
that a response keeps the length in its head. It is found in the forms in which programs write a text: as it is, in JSON
(also JSON within a JSON string), in HTML, percent-encoded, with any of its characters escaped or not, and in base64 of
both alphabets, at any offset in the encoded text. A key that an endpoint writes in pieces, in hex, or in broken lines
is not found.

Each character has some hundred spellings, so a key has more forms than can be listed. Where a text has an escape of one
of the key's characters, which is rare, all spellings are followed from each place before it, character by character.
"""

from __future__ import annotations

import base64
import functools
import html
import html.entities
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from benchflow.secrets import MIN_LENGTH

_MAX_DIGITS = 7
"""Maximum of digits of an HTML character reference: one with more leading zeros is not found."""


class KeyForms:
    """One key in all its forms. A key of fewer than eight characters has none, since it would occur by chance.

    Attributes:
        max_length: Bytes of the longest form.
    """

    def __init__(self, name: str, key: str) -> None:
        """Make the forms of a key, which is covered by its `name` in brackets."""
        # A header has the key without surrounding blanks.
        key = key.strip()
        self._label = f"[{name}]".encode()
        self.max_length = 0
        self._escaped: _EscapedForms | None = None
        self._fixed: list[bytes] = []
        if len(key) >= MIN_LENGTH:
            self._escaped = _EscapedForms(key)
            plain = key.encode("utf-8", "surrogateescape")
            # The longest one first: one may begin as another one does.
            self._fixed = sorted({plain, *_base64_forms(plain)}, key=len, reverse=True)
            self._pattern = re.compile(b"|".join(map(re.escape, self._fixed)))
            self.max_length = max(len(self._fixed[0]), self._escaped.max_length)

    def cover(self, data: bytes) -> bytes:
        """Return the data with each form of the key covered, at the same length."""
        return self._cover(data, len(data))[0]

    def cover_text(self, text: str) -> str:
        """Return the name or value of a header with each form of the key covered."""
        return self.cover(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def cover_decided(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the data covered as far as it is decided, and the rest, which may be the beginning of a form."""
        return self._cover(data, None)

    def _cover(self, data: bytes, undecided: int | None) -> tuple[bytes, bytes]:
        """Cover the data up to `undecided`; None: up to where a form may begin. Return it and the rest."""
        if self._escaped is None:
            return data, b""
        # Far faster than a search for all forms at once, and nearly always enough.
        has_fixed = any(form in data for form in self._fixed)
        has_escapes = self._escaped.has_escapes(data)
        done: list[bytes] = []
        at = 0
        while True:
            # A form that is found may end within another one that has begun: decide again from its end on.
            limit = self._find_partial(data, at) if undecided is None else undecided
            found: list[tuple[int, int]] = []
            if has_fixed and (match := self._pattern.search(data, at)):
                found.append((match.start(), -match.end()))
            if has_escapes and (span := self._escaped.find(data, at)):
                found.append((span[0], -span[1]))
            start, end = min(found, default=(limit, 0))
            # A form at or after such a beginning waits: further data may show that a longer form began earlier.
            if start >= limit:
                done.append(data[at:limit])
                return b"".join(done), data[limit:]
            length = -end - start
            done += [data[at:start], self._label[:length].ljust(length, b"*")]
            at = -end

    def _find_partial(self, data: bytes, at: int) -> int:
        """Return the start of the longest suffix of `data[at:]` that may begin a form; `len(data)` if there is none."""
        assert self._escaped is not None
        found = self._escaped.find_partial(data, at)
        for form in self._fixed:
            start = data.find(form[:1], max(at, len(data) - len(form) + 1), found)
            while start >= 0:
                if form.startswith(data[start:]):
                    found = start
                    break
                start = data.find(form[:1], start + 1, found)
        return found


class KeyCutter:
    """Covers a key in a stream, however it is split. Only the possible beginning of a key is buffered."""

    def __init__(self, forms: KeyForms) -> None:
        """Make it for a key."""
        self._forms = forms
        self._buffer = b""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that may be forwarded after a further piece."""
        passing, self._buffer = self._forms.cover_decided(self._buffer + data)
        return passing

    def end(self) -> bytes:
        """Return the buffered bytes at the end of the stream, covered."""
        rest, self._buffer = self._forms.cover(self._buffer), b""
        return rest


_ESCAPING = frozenset({b"\\", b"%", b"&"})
"""First bytes of escapes."""


@functools.cache
def _entities(character: str) -> tuple[str, ...]:
    """Return the names of HTML entities that stand for a character."""
    return tuple(name for name, meant in html.entities.html5.items() if meant == character)


class _Character:
    """The spellings of a character of a key."""

    def __init__(self, character: str) -> None:
        self.spellings = frozenset(_spellings(character))
        self.lengths = sorted(set(map(len, self.spellings)))
        self.beginnings = frozenset(text[:end] for text in self.spellings for end in range(len(text)))


@functools.cache
def _character(character: str) -> _Character:
    return _Character(character)


class _EscapedForms:
    """The forms of a key in which any character may be escaped. `max_length`: bytes of the longest one."""

    def __init__(self, key: str) -> None:
        of = {character: _character(character) for character in key}
        self._characters = [of[character] for character in key]
        self.max_length = sum(character.lengths[-1] for character in self._characters)
        self._escape = re.compile(_escape_pattern(key))
        self._has_specials = bool(set(key) & set('\\/"'))
        # Places at which a form may start, judged by two bytes.
        raw, following = ({text[:1] for text in of[character].spellings} - _ESCAPING for character in key[:2])
        then = b"".join(map(re.escape, sorted(following | _ESCAPING | {key[1:2].encode()[:1]})))
        starts = [
            re.escape(byte) + b"(?=[" + then + b"]|\\Z)"
            for byte in sorted(raw | {key[:1].encode()[:1]})
            if byte < b"\x80"
        ]
        starts += [re.escape(byte) for byte in raw if byte >= b"\x80"]
        starts += [rb"\\(?=[\\u/\"]|\Z)", rb"%(?=[0-9a-fA-F]|\Z)", rb"&(?=[#a-zA-Z]|\Z)"]
        self._first = re.compile(b"|".join(starts))

    def has_escapes(self, data: bytes) -> bool:
        """Return whether any character of the key occurs escaped."""
        is_possible = b"%" in data or b"&" in data or b"\\u" in data or (self._has_specials and b"\\" in data)
        return is_possible and self._escape.search(data) is not None

    def find(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Return start and end of the first form with an escape from `at` on; None if there is none."""
        for escape in self._escape.finditer(data, at):
            # A form with this escape starts here at the latest. Places up to the previous escape were tried with it.
            for first in self._first.finditer(data, max(at, escape.start() - self.max_length), escape.start() + 1):
                end, _ = self._follow(data, first.start())
                if end:
                    return first.start(), end
            at = escape.start() + 1
        return None

    def find_partial(self, data: bytes, at: int) -> int:
        """Return the start of the longest suffix of `data[at:]` that may begin a form; `len(data)` if there is none."""
        for first in self._first.finditer(data, max(at, len(data) - self.max_length)):
            if self._follow(data, first.start())[1]:
                return first.start()
        return len(data)

    def _follow(self, data: bytes, start: int) -> tuple[int, bool]:
        """Return the furthest end of a form that starts there, 0 for none, and whether more data may yield another."""
        places = {start}
        is_cut = False
        for character in self._characters:
            following = set()
            for place in places:
                left = len(data) - place
                if left < character.lengths[-1] and data[place:] in character.beginnings:
                    is_cut = True
                following |= {
                    place + length
                    for length in character.lengths
                    if length <= left and data[place : place + length] in character.spellings
                }
            if not following:
                return 0, is_cut
            places = following
        return max(places), is_cut


@functools.lru_cache(maxsize=64)
def key_forms(name: str, key: str) -> KeyForms:
    """Return the cached forms of a key: every call of a rollout needs them."""
    return KeyForms(name, key)


def _escape_pattern(key: str) -> bytes:
    """Return a pattern that matches within every escape of any of the key's characters."""
    hexes = {f"{ord(character):x}" for character in key}
    units = {pair.hex() for character in key for pair in _utf16(character)}
    octets = {f"{byte:02x}" for byte in key.encode("utf-8", "surrogateescape")}
    names = [name for character in key for name in _entities(character)]
    patterns = [
        rf"\\(?i:u(?:{'|'.join(units)}))",
        rf"%(?:25)?(?i:{'|'.join(octets)})",
        rf"&(?:amp;)?#0*(?:{'|'.join(str(ord(character)) for character in key)})",
        rf"&(?:amp;)?#[xX]0*(?i:{'|'.join(hexes)})",
        *([rf"&(?:{'|'.join(names)})"] if names else []),
        *([r"\\[\\/\"]"] if set(key) & set('\\/"') else []),
    ]
    return "|".join(patterns).encode("ascii")


def _spellings(character: str) -> Iterator[bytes]:
    """Yield the spellings of a character in JSON, JSON within JSON, HTML and URLs."""
    encoded = "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
    unit = "".join(f"\\u{pair.hex()}" for pair in _utf16(character))
    found = {character, encoded, encoded.replace("%", "%25"), quote(character, safe="")}
    found |= {unit.replace("\\", "\\" * count) for count in (1, 2, 4)}
    for is_ascii in (True, False):
        once = json.dumps(character, ensure_ascii=is_ascii)[1:-1]
        found |= {once, json.dumps(once, ensure_ascii=is_ascii)[1:-1]}
    if character == "/":
        found |= {"\\/", "\\\\/", "\\\\\\/"}
    code = ord(character)
    for width in range(1, _MAX_DIGITS + 1):
        for number in (f"{code:0{width}d}", f"x{code:0{width}x}", f"X{code:0{width}x}"):
            found |= {f"&#{number}", f"&#{number};", f"&amp;#{number}", f"&amp;#{number};"}
    found |= {f"&{name}" for name in _entities(character)}
    for text in found:
        # Hexadecimal digits may be of either case.
        yield text.encode("utf-8", "surrogateescape")
        yield _HEX.sub(lambda match: match[0].upper(), text).encode("utf-8", "surrogateescape")


_HEX = re.compile(
    r"(?<=%)[0-9a-f]{2}|(?<=%25)[0-9a-f]{2}|(?<=\\u)[0-9a-f]{4}|(?<=&#[xX])[0-9a-f]+|(?<=;#[xX])[0-9a-f]+"
)


def _utf16(character: str) -> list[bytes]:
    """Return the UTF-16 code units of a character, each as two bytes."""
    units = character.encode("utf-16-be", "surrogatepass")
    return [units[at : at + 2] for at in range(0, len(units), 2)]


def _base64_forms(plain: bytes) -> Iterable[bytes]:
    """Yield the base64 forms of the key, for each offset in a longer text and both alphabets."""
    for offset in range(3):
        # In the base64 of a longer text, only the letters that encode nothing but the key.
        first, last = -(-offset * 8 // 6), (offset + len(plain)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(bytes(offset) + plain)[first:last]
