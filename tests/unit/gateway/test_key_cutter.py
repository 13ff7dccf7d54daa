"""The key is found in a stream however it is split, and nothing else is changed or held back."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import zlib
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchflow.gateway.key_cutter import KeyCutter, KeyForms
from benchflow.gateway.plain_body import PlainBody, UnpackingError

QUICK = settings(max_examples=60, deadline=None, database=None)
"""Few enough for every run, whose time a busy machine does not bound; nothing is left in the working directory."""

LETTERS = 'ab/"+='
KEYS = st.one_of(
    st.text(LETTERS, min_size=8, max_size=12),
    # Without spaces around it, as a header has it.
    st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=8, max_size=40)
    .map(str.strip)
    .filter(lambda key: len(key) >= 8),
)
CUTS = st.lists(st.integers(0, 400), max_size=12)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return the data, split at these places."""
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


def written(key: str, before: str) -> list[str]:
    """Return texts that hold the key, each in a form that is to be found."""
    text = f"{before}{key}tail"
    return [
        text,
        json.dumps({"k": text}),
        json.dumps({"k": json.dumps(text)}),
        quote(text, safe=""),
        base64.b64encode(text.encode()).decode(),
        base64.urlsafe_b64encode(text.encode()).decode(),
        *(escaped(text, *ways) for ways in (["\\u{:04x}"], ["\\\\u{:04X}"], ["%{:02x}"], ["&#{};"], ["&#x{:04X};"])),
        escaped(text, "\\u{:04X}", "%{:02X}", "&#{:03};", "%25{:02X}"),
    ]


def escaped(text: str, *ways: str) -> str:
    """Return a text with each character escaped, in one way after the other."""
    return "".join(way.format(ord(character)) for way, character in zip(itertools.cycle(ways), text, strict=False))


@QUICK
@given(KEYS, st.text(LETTERS, max_size=7), CUTS, st.integers(0, 11))
@example(key="aaaaaaaa", before="aaa", cuts=[1, 9, 10], form=0)
def test_a_key_is_covered_however_the_stream_is_split(key: str, before: str, cuts: list[int], form: int) -> None:
    forms = KeyForms("K", key)
    data = f"{written(key, before)[form]} and {key[:5]}".encode()
    cutter = KeyCutter(forms)
    got = b"".join([*(cutter.feed(piece) for piece in pieces(data, cuts)), cutter.end()])
    # The same as of the whole at once, and as long.
    assert got == forms.cover(data)
    assert len(got) == len(data)
    assert got != data
    assert not [text for text in (key, json.dumps(key)[1:-1], quote(key, safe="")) if text.encode() in got]


@QUICK
@given(KEYS, st.lists(st.text(LETTERS, max_size=9)))
def test_only_what_a_key_may_begin_with_is_held_back(key: str, texts: list[str]) -> None:
    forms = KeyForms("K", key)
    cutter = KeyCutter(forms)
    fed = passed = 0
    for text in texts:
        fed += len(text)
        passed += len(cutter.feed(text.encode()))
        assert fed - passed < forms.max_length
    assert passed + len(cutter.end()) == fed


@QUICK
@given(st.binary(), CUTS)
def test_what_holds_no_key_passes_as_it_is_and_at_once(data: bytes, cuts: list[int]) -> None:
    cutter = KeyCutter(KeyForms("K", "sk-0123456789abcdef"))
    # None of what a form of it begins with.
    for piece in pieces(data.translate(None, b"scNz\\%&"), cuts):
        assert cutter.feed(piece) == piece
    assert cutter.end() == b""


def test_a_key_is_what_a_header_makes_of_it() -> None:
    assert KeyForms("K", " sk-0123456789 ").cover(b"Bearer sk-0123456789.") == b"Bearer [K]**********."


@pytest.mark.parametrize("key", ["", "EMPTY", "1234567"])
def test_a_key_that_is_in_every_text_by_chance_is_no_secret(key: str) -> None:
    cutter = KeyCutter(KeyForms("K", key))
    assert cutter.feed(b"EMPTY 1234567 ") == b"EMPTY 1234567 "


@pytest.mark.parametrize("way", ["\\u{:04x}", "%{:02x}", "&#{};", "&#x{:x};"])
def test_a_key_that_is_escaped_in_part_is_covered(way: str) -> None:
    key = "sk-0123456789abcdef"
    text = "".join(way.format(ord(letter)) if number % 3 else letter for number, letter in enumerate(key))
    assert KeyForms("K", key).cover(f"<{text}>".encode()) == f"<{'[K]'.ljust(len(text), '*')}>".encode()


@QUICK
@given(st.binary(max_size=300), CUTS, st.sampled_from(["gzip", "x-gzip", "deflate", "raw deflate", "GZIP"]))
def test_a_packed_body_is_unpacked_however_it_is_split(data: bytes, cuts: list[int], encoding: str) -> None:
    packed = zlib.compress(data) if encoding == "deflate" else gzip.compress(data[:100]) + gzip.compress(data[100:])
    if encoding == "raw deflate":
        packed = zlib.compress(data, wbits=-zlib.MAX_WBITS)
    body = PlainBody(encoding.split()[-1], KeyForms("", ""), 1000)
    assert b"".join([*(body.feed(piece) for piece in pieces(packed, cuts)), body.end()]) == data


def test_a_packed_body_that_unpacks_to_too_much_is_given_up_soon() -> None:
    body = PlainBody("gzip", KeyForms("", ""), 1000)
    with pytest.raises(UnpackingError, match="too large"):
        body.feed(gzip.compress(bytes(10**7)))


@pytest.mark.parametrize("what", ["cut off", "with more", "not packed"])
def test_what_is_not_packed_as_it_says_is_no_answer(what: str) -> None:
    text = gzip.compress(b"text")
    packed = {"cut off": text[:-3], "with more": text + b"more", "not packed": b"text"}[what]
    body = PlainBody("gzip", KeyForms("", ""), 1000)
    with pytest.raises(UnpackingError):
        body.feed(packed)
        body.end()
