"""Archives that somebody wrote to hurt whoever reads them: refused by a typed error, soon, and in little memory."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchflow.archive_reader import ArchiveLimitError, ArchiveLimits, copy_content, read_archive

LIMITS = ArchiveLimits(size=10_000, entries=50)


def archive(*members: tuple[str, bytes], format: int = tarfile.PAX_FORMAT) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=format) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    packed.seek(0)
    return packed


def header(name: str = "f", kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def extended(body: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return header("x", kind, len(body)) + body + bytes(-len(body) % 512)


def record(key: str, value: str) -> bytes:
    body = f" {key}={value}\n".encode()
    size = len(body)
    while len(str(size)) + len(body) != size:
        size = len(str(size)) + len(body)
    return str(size).encode() + body


def read(packed: io.BytesIO, limits: ArchiveLimits = LIMITS) -> dict[str, bytes | None]:
    return {
        "/".join(member.parts): None if member.content is None else member.content.read()
        for member in read_archive(packed, limits)
    }


def test_members_are_read_as_they_were_written() -> None:
    long = "/".join(["directory" * 10] * 20)
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        found = read(archive(("./a//b", b"one"), (long, b"two"), ("ünï\n", b""), format=format))
        assert found == {"a/b": b"one", long: b"two", "ünï\n": b""}


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a/.."])
def test_a_name_that_leads_out_is_told(name: str) -> None:
    assert [member.leads_out for member in read_archive(archive((name, b"")), LIMITS)] == [True]


def sparse(size: int, *holes: int) -> bytes:
    """Return a member of the old GNU format that says to be of any size and to have data at these offsets."""
    info = bytearray(header("f", tarfile.GNUTYPE_SPARSE))
    for index, number in enumerate(holes):
        info[386 + 12 * index : 398 + 12 * index] = tarfile.itn(number, 12, tarfile.GNU_FORMAT)
    info[483:495] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
    info[148:156] = b" " * 8
    info[148:156] = b"%06o\0 " % sum(info)
    return bytes(info)


ATTACKS: dict[str, Callable[[], bytes]] = {
    "terabytes of holes": lambda: sparse(10**12, 0, 0),
    "holes that end before they begin": lambda: sparse(100, 0, -50),
    "data outside of the file": lambda: sparse(100, 10**9, 10),
    "terabytes that are not there": lambda: header(size=10**12),
    "a size below zero": lambda: header(size=-512),
    "a long name of a gigabyte": lambda: header("././@LongLink", tarfile.GNUTYPE_LONGNAME, 10**9) + bytes(2048),
    "a long name below zero": lambda: header("././@LongLink", tarfile.GNUTYPE_LONGNAME, -512) + bytes(2048),
    "an extended header of a gigabyte": lambda: header("x", tarfile.XHDTYPE, 10**9) + bytes(2048),
    "keywords that overlap": lambda: extended(b"2 " * 100_000 + b"="),
    "a number of a megabyte": lambda: extended(b"1" * 250_000),
    "a number as a value": lambda: extended(record("comment", "1" * 200_000)),
    "a record of no length": lambda: extended(b"0 a=b\n"),
    "a record past the end": lambda: extended(b"99 a=b\n"),
    "thousands of global headers": lambda: b"".join(
        extended(b"".join(record(f"k{n}.{m}", "v") for m in range(300)), tarfile.XGLTYPE) + header() for n in range(5)
    ),
    "headers without end": lambda: extended(record("comment", "x")) * 5000 + header(),
    "names deeper than any tree": lambda: archive(("a/" * 70 + "b", b"")).getvalue(),
    "a name longer than any path": lambda: archive(("/".join(["a" * 200] * 25), b"")).getvalue(),
    "too many members": lambda: archive(*((str(n), b"") for n in range(60))).getvalue(),
    "too much content": lambda: archive(*((str(n), b"x" * 1000) for n in range(11))).getvalue(),
    "compressed": lambda: __import__("gzip").compress(archive(("a", b"")).getvalue()),
    "nothing of the kind": lambda: b"no archive" * 100,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_archive_made_to_hurt_is_refused_at_once(attack: str) -> None:
    packed = io.BytesIO(ATTACKS[attack]() + bytes(1024))
    began = time.process_time()
    with pytest.raises(tarfile.TarError):
        read(packed)
    assert time.process_time() - began < 5


def test_what_exceeds_a_limit_says_so() -> None:
    with pytest.raises(ArchiveLimitError, match="unpacks to more than 3 bytes"):
        read(archive(("a", b"1234")), ArchiveLimits(size=3))
    with pytest.raises(ArchiveLimitError, match="more than 1 members"):
        read(archive(("a", b""), ("b", b"")), ArchiveLimits(size=3, entries=1))


def test_whoever_reads_is_asked_before_each_member_and_each_piece() -> None:
    asked = []
    [member] = read_archive(archive(("a", b"x" * 10)), LIMITS, lambda: asked.append("member"))
    assert asked == ["member", "member"]
    for member in read_archive(archive(("a", b"x" * 10)), LIMITS):
        assert member.content is not None
        copy_content(member.content, io.BytesIO(), lambda: asked.append("piece"))
    assert asked[2:] == ["piece"]


@settings(max_examples=300, deadline=None)
@given(
    spoilt=st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=8),
    cut=st.integers(0, 4096),
)
def test_no_spoilt_archive_raises_anything_else(spoilt: list[tuple[int, int]], cut: int) -> None:
    content = bytearray(
        extended(record("path", "a/b") + record("mtime", "1.5"))
        + header(size=3)
        + b"abc".ljust(512, b"\0")
        + sparse(9, 0, 3)
    )
    for place, value in spoilt:
        if place < len(content):
            content[place] = value
    try:
        found = read(io.BytesIO(bytes(content[: cut or None])), ArchiveLimits(size=1000))
    except tarfile.TarError:
        return
    assert sum(len(each or b"") for each in found.values()) <= 1000
