"""The response to an agent: bytes as they come, a whole body, or an error of the gateway's own."""

from __future__ import annotations

import collections
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from benchflow.contracts.gateway import CallError, CallTiming
from benchflow.gateway.key_cutter import KeyForms
from benchflow.gateway.memory_budget import RESPONSE_LIMIT
from benchflow.gateway.plain_body import UnpackingError, unpack
from benchflow.gateway.upstream import HOP_BY_HOP
from benchflow.llm_apis import Dialect, Document, ParsedResponse, count_output, documents

_SET_BY_SERVER = HOP_BY_HOP | {"content-length", "date", "server"}
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Control characters that no header's value may have. Some endpoints send them, and aiohttp's server would fail on
them.
"""
_RECORDED = ("content-type", "content-encoding", "retry-after")


class RecordedResponse:
    """The response to one request, and what of it is recorded.

    Attributes:
        status: HTTP status; None until the response has begun.
        headers: Recorded headers, with names in lower case.
        body: Bytes of the body so far.
        delivered: Bytes of the body that were sent while the agent was connected.
        error: Why the response is incomplete or an error; None if it is neither.
    """

    def __init__(self, request: web.BaseRequest, began: float) -> None:
        """Make it. `began` is the monotonic time at which the request arrived."""
        self._request = request
        self._began = began
        self._stream: web.StreamResponse | None = None
        self._first_byte: float | None = None
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.delivered = 0
        self.error: CallError | None = None

    async def begin(self, status: int, headers: Mapping[str, str], length: int | None) -> None:
        """Send the head of a response whose body will follow. `length` is that of the body; None if it is not known."""
        self._stream = web.StreamResponse(status=status, headers=_drop_connection_headers(headers.items()))
        self._stream.content_length = length
        self._note(status, headers)
        await self._stream.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Send a part of the body, and wait while the agent is slow. Raise `ConnectionError` when it has left."""
        assert self._stream is not None
        if self._first_byte is None:
            self._first_byte = time.monotonic()
        self.body += data
        await self._stream.write(data)
        self.delivered = len(self.body)

    def break_off(self) -> None:
        """Close the connection within the body, so that no client takes it for complete."""
        if self._request.transport is not None:
            self._request.transport.close()

    def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> web.StreamResponse:
        """Return a response with a complete body, to be sent by aiohttp."""
        self._note(status, headers)
        self._first_byte = time.monotonic()
        self.body += body
        self._stream = web.Response(status=status, headers=_drop_connection_headers(headers.items()), body=body)
        return self._stream

    def refuse(self, dialect: Dialect, status: int, error: CallError) -> web.StreamResponse:
        """Return an error of the gateway's own in the format of the dialect, marked as not to be retried."""
        self.error = error
        headers = {"content-type": "application/json", "x-should-retry": "false"}
        return self.whole(status, headers, json.dumps(dialect.error_body(status, error.message)).encode())

    @property
    def response(self) -> web.StreamResponse:
        """Return the response that was begun; an empty one, sent to nobody, if the agent left before it began."""
        return self._stream if self._stream is not None else web.Response()

    @property
    def encoding(self) -> str:
        """Return the content encoding; empty for none."""
        return self.headers.get("content-encoding", "")

    def timing(self, upstream_first_byte: float | None) -> CallTiming:
        """Return the call's times, with the given milliseconds to the upstream's first byte."""
        return CallTiming(
            first_byte_ms=_ms(self._first_byte, self._began),
            total_ms=_ms(time.monotonic(), self._began) or 0.0,
            upstream_first_byte_ms=upstream_first_byte,
        )

    def _note(self, status: int, headers: Mapping[str, str]) -> None:
        """Note status and headers for the record."""
        self.status = status
        small = {name.lower(): value for name, value in headers.items()}
        self.headers = {
            name: value
            for name, value in small.items()
            if name in _RECORDED or name.endswith(("request-id", "-cf-ray"))
        }


def _ms(moment: float | None, began: float) -> float | None:
    return None if moment is None else round(1000 * (moment - began), 3)


def _drop_connection_headers(headers: Iterable[tuple[str, str]]) -> CIMultiDict[str]:
    """Return the headers without those of a single connection and those that this server sets."""
    return CIMultiDict((name, value) for name, value in headers if name.lower() not in _SET_BY_SERVER)


def plain_headers(headers: CIMultiDictProxy[str], forms: KeyForms, *, is_unpacked: bool) -> CIMultiDict[str]:
    """Return an upstream's headers for the agent: without the key, and without those of the connection itself.

    Args:
        headers: The upstream's headers.
        forms: The key, which is covered in values.
        is_unpacked: Whether the body is forwarded without its content encoding.
    """
    dropped = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    # A cookie may be a login of the key's owner.
    dropped |= {"set-cookie", *(("content-encoding",) if is_unpacked else ())}
    return CIMultiDict(
        (name, forms.cover_text(value))
        for name, value in headers.items()
        if name.lower() not in dropped
        and _NAME.fullmatch(name)
        and not _CONTROL.search(value)
        # A name in which the key was covered would be invalid.
        and forms.cover_text(name) == name
    )


class ParsedAnswer(NamedTuple):
    """A parsed response."""

    sent: ParsedResponse
    """All that the endpoint has sent."""

    delivered: ParsedResponse
    """The part that was delivered to the agent; the same as `sent` for a compressed body."""

    output_chars: int
    """Characters of model output."""


def parse_answer(body: bytes, delivered: int, encoding: str, dialect: Dialect | None) -> ParsedAnswer:
    """Parse a response.

    Args:
        body: Its bytes so far.
        delivered: Number of them that the agent received.
        encoding: Its content encoding; empty for none.
        dialect: Its dialect; None if it is not to a generation call, so that only its characters are counted.
    """
    try:
        plain = unpack(body, encoding, RESPONSE_LIMIT)
    except UnpackingError:
        plain = b""
    found = output_chars = 0

    def counted() -> Iterator[Document]:
        nonlocal found, output_chars
        for document in documents(plain):
            found, output_chars = found + 1, output_chars + count_output(document)
            yield document

    if dialect is None:
        collections.deque(counted(), maxlen=0)
        return ParsedAnswer(ParsedResponse(), ParsedResponse(), output_chars)
    sent = received = dialect.parse_response(counted())
    if delivered < len(body) and not encoding:
        received = dialect.parse_response(documents(body[:delivered]))
    # A body that holds no JSON document may be model output as a whole.
    return ParsedAnswer(sent, received, output_chars or (0 if found else len(plain)))
