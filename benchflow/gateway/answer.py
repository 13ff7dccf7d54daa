"""What goes back to an agent: bytes as they come, an answer as a whole, or an error of the gateway's own."""

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
from benchflow.gateway.dialects import Answered, Dialect, Document, count_spoken, documents
from benchflow.gateway.key_cutter import KeyForms
from benchflow.gateway.memory import RESPONSE_LIMIT
from benchflow.gateway.plain_body import UnpackingError, unpack
from benchflow.gateway.upstream import HOP_BY_HOP

_SET_HERE = HOP_BY_HOP | {"content-length", "date", "server"}
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""What no value of a header may have; some endpoints' have, and the server here would fail on it."""
_RECORDED = ("content-type", "content-encoding", "retry-after")


class Answer:
    """The answer to one request, and what is to be recorded of it. began: when the request was there (monotonic).

    status: None until the agent was given one. delivered: bytes of the body that were handed over while the agent was
    there. error: why it is not what it should be.
    """

    def __init__(self, request: web.BaseRequest, began: float) -> None:
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
        """Send the head of an answer whose body will follow. length: of the body, where it is known."""
        self._stream = web.StreamResponse(status=status, headers=_passed_on(headers.items()))
        self._stream.content_length = length
        self._note(status, headers)
        await self._stream.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Send a part of the body, and wait while the agent is slow. Raises `ConnectionError` when it has left."""
        assert self._stream is not None
        if self._first_byte is None:
            self._first_byte = time.monotonic()
        self.body += data
        await self._stream.write(data)
        self.delivered = len(self.body)

    def break_off(self) -> None:
        """Close the connection in the middle of the body, so that nobody takes it for a whole one."""
        if self._request.transport is not None:
            self._request.transport.close()

    def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> web.StreamResponse:
        """An answer that is there as a whole."""
        self._note(status, headers)
        self._first_byte = time.monotonic()
        self.body += body
        self._stream = web.Response(status=status, headers=_passed_on(headers.items()), body=body)
        return self._stream

    def refuse(self, dialect: Dialect, status: int, error: CallError) -> web.StreamResponse:
        """An error of the gateway's own, in the shape that the agent's client knows, and not worth a repetition."""
        self.error = error
        headers = {"content-type": "application/json", "x-should-retry": "false"}
        return self.whole(status, headers, json.dumps(dialect.error(status, error.message)).encode())

    @property
    def response(self) -> web.StreamResponse:
        """Return what was begun, or what is sent to nobody: the answer had not begun when its agent left."""
        return self._stream if self._stream is not None else web.Response()

    @property
    def encoding(self) -> str:
        """The content encoding, empty for none."""
        return self.headers.get("content-encoding", "")

    def timing(self, upstream_first_byte: float | None) -> CallTiming:
        return CallTiming(
            first_byte_ms=_ms(self._first_byte, self._began),
            total_ms=_ms(time.monotonic(), self._began) or 0.0,
            upstream_first_byte_ms=upstream_first_byte,
        )

    def _note(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        small = {name.lower(): value for name, value in headers.items()}
        self.headers = {
            name: value
            for name, value in small.items()
            if name in _RECORDED or name.endswith(("request-id", "-cf-ray"))
        }


def _ms(moment: float | None, began: float) -> float | None:
    return None if moment is None else round(1000 * (moment - began), 3)


def _passed_on(headers: Iterable[tuple[str, str]]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers if name.lower() not in _SET_HERE)


def plain_headers(headers: CIMultiDictProxy[str], forms: KeyForms, *, is_unpacked: bool) -> CIMultiDict[str]:
    """Return an upstream's headers as the agent gets them: without the key, and without what is the connection's.

    is_unpacked: the body goes on in another form than the headers say.
    """
    dropped = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    # A cookie may be a login of whoever has the key.
    dropped |= {"set-cookie", *(("content-encoding",) if is_unpacked else ())}
    return CIMultiDict(
        (name, forms.cover_text(value))
        for name, value in headers.items()
        if name.lower() not in dropped
        and _NAME.fullmatch(name)
        and not _CONTROL.search(value)
        # A name with a covered key in it would be none.
        and forms.cover_text(name) == name
    )


class ReadAnswer(NamedTuple):
    """What an answer says, what of that was delivered to the agent, and the characters of its texts."""

    answered: Answered
    heard: Answered
    spoken: int


def read_answer(body: bytes, delivered: int, encoding: str, dialect: Dialect | None) -> ReadAnswer:
    """Return what an answer says. delivered: bytes of its body that the agent got. dialect: None for no call of one."""
    try:
        plain = unpack(body, encoding, RESPONSE_LIMIT)
    except UnpackingError:
        plain = b""
    found = spoken = 0

    def counted() -> Iterator[Document]:
        nonlocal found, spoken
        for document in documents(plain):
            found, spoken = found + 1, spoken + count_spoken(document)
            yield document

    if dialect is None:
        collections.deque(counted(), maxlen=0)
        return ReadAnswer(Answered(), Answered(), spoken)
    answered = heard = dialect.answered(counted())
    if delivered < len(body) and not encoding:
        heard = dialect.answered(documents(body[:delivered]))
    # Of an answer in no known form, all may be what the model says.
    return ReadAnswer(answered, heard, spoken or (0 if found else len(plain)))
