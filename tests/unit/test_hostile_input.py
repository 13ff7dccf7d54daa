"""Whatever bytes a parser of foreign input is given, it returns a value or raises the error that it documents.

Never another exception, never a hang, never a number that is none. Inputs are random bytes, valid examples with pieces
cut out, repeated and exchanged, and what parsers are known to stumble over.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from support.hostile_parsers import DOCUMENTED, PARSERS, Parser

LONGEST_SEC = 20.0
"""For one input on a busy machine: what never ends, or grows with the square, takes longer."""

TRAPS = [
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-1e999",
    b"1" * 400,
    b"9" * 5000,
    b"-0.0",
    b"true",
    b"null",
    b'"\\ud800"',
    b'{"a": 1, "a": 2}',
    b"[" * 20_000,
    b'{"a":' * 20_000,
    b"[" * 2000 + b"]" * 2000,
    b"[" * 600 + b"]" * 600,
    b'"' + b"[" * 600 + b"]" * 600 + b'\\ud800"',
    b'["\\ud800", ' + b"[" * 600 + b"]" * 600 + b"]",
    b"a=" + b"[" * 5000,
    b"- " * 5000,
    b'["\\ud800", ' + b"[" * 5000,
    b"a = " + b"9" * 5000,
    b"a: &a [*a]",
    b"a: " + b"[" * 60_000,
    b"---\na: " + b"[" * 12_000 + b"]" * 12_000 + b"\n---\nx\n",
    b"---\na: " + b"[" * 60_000 + b"\n---\nx\n",
    b"---\n" + b"? " * 20_000 + b"\n---\nx\n",
    b"---\n" + b"- " * 20_000 + b"\n---\nx\n",
    b"x" * 50_000,
    b"\n" * 20_000,
    b" " * 20_000,
    b"$(" * 3000,
    b"(" * 3000,
    b"${a:-" * 3000,
    b"\\" * 10_001,
    b"'" * 10_001,
    b"<<E\n" * 1000,
    b"a.b." * 5000 + b"c = 1",
]


@st.composite
def hostile(draw: st.DrawFn, examples: tuple[bytes, ...]) -> bytes:
    """Bytes for a parser that takes the examples."""
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return draw(
            st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode(errors="replace")))
        )
    data = draw(st.sampled_from(examples))
    if kind == 1:
        return data
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = draw(st.integers(begin, min(len(data), begin + draw(st.sampled_from([0, 1, 8, 64])))))
        piece = draw(
            st.one_of(
                st.sampled_from(TRAPS),
                st.binary(max_size=8),
                st.sampled_from(examples).flatmap(
                    lambda one: st.integers(0, len(one)).map(lambda at: one[at : at + 40])
                ),
            )
        )
        data = data[:begin] + piece + data[end:]
    return data


def tokens(data: bytes) -> list[tuple[int, int]]:
    """Where the values of a JSON, TOML or YAML text may begin and end."""
    signs = b' \n\t,:=[]{}"'
    ends = [-1, *(at for at, byte in enumerate(data) if byte in signs), len(data)]
    return [(one + 1, two) for one, two in pairwise(ends) if two > one + 1]


def refuses_or_returns(parser: Parser, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        began = time.monotonic()
        try:
            made = parser.read(data, Path(directory))
        except (*DOCUMENTED, *parser.errors):
            made = None
        assert time.monotonic() - began < LONGEST_SEC
    assert [number for number in _numbers(made, 0) if not math.isfinite(number)] == []


def _numbers(value: Any, depth: int) -> list[float]:
    """All floats of what a parser returned."""
    if isinstance(value, float):
        return [value]
    if depth > 8:
        return []
    if isinstance(value, BaseModel):
        value = vars(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [number for each in inner for number in _numbers(each, depth + 1)]


EACH = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name.replace(" ", "-"))


@EACH
def test_an_example_is_taken(parser: Parser, tmp_path: Path) -> None:
    """Else what is made of it would only ever be refused at once."""
    for number, example in enumerate(parser.examples):
        (tmp_path / str(number)).mkdir()
        parser.read(example, tmp_path / str(number))


@EACH
def test_what_parsers_stumble_over_is_refused_or_returned(parser: Parser) -> None:
    for trap in TRAPS:
        refuses_or_returns(parser, trap)


@EACH
def test_any_bytes_are_refused_or_returned(parser: Parser) -> None:
    search(parser, 12, derandomize=True)


@EACH
@pytest.mark.long
def test_traps_in_the_place_of_each_value_are_refused_or_returned(parser: Parser) -> None:
    for example in parser.examples:
        for begin, end in tokens(example):
            for trap in TRAPS:
                if len(trap) < 10_000:
                    refuses_or_returns(parser, example[:begin] + trap + example[end:])


@EACH
@pytest.mark.long
def test_many_more_bytes_are_refused_or_returned(parser: Parser) -> None:
    search(parser, 400, derandomize=False)


def search(parser: Parser, examples: int, *, derandomize: bool) -> None:
    """Look for an input that a parser neither takes nor refuses. A failure prints it, and how to try it again."""

    @settings(
        max_examples=examples,
        derandomize=derandomize,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=True,
    )
    @given(hostile(parser.examples))
    def check(data: bytes) -> None:
        refuses_or_returns(parser, data)

    check()
