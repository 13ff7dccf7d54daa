"""The body of a request: received within bounds, and read so that an endpoint reads no other request in its bytes.

JSON leaves open which of two equal keys counts, and some parsers take keys for equal that differ in case. An agent that
writes `"stream": false, "Stream": true` would be metered for one request and served another. A body goes on byte for
byte, or not at all.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

from benchflow.contracts.gateway import CallError
from benchflow.gateway.allowed_requests import Passed
from benchflow.gateway.dialects import Asked, Dialect, read_json
from benchflow.gateway.memory import Capacity
from benchflow.gateway.plain_body import UnpackingError, unpack
from benchflow.gateway.values import MAX_VALUES, count_values

REQUEST_LIMIT = 100 * 1024 * 1024
"""Bytes of a request's body."""

BODY_SEC = 60.0
"""The longest that a body may take, from when the gateway is ready for it."""

_METERED_KEYS = (
    *("model", "messages", "input", "instructions", "system", "contents", "systemInstruction", "generationConfig"),
    *("stream", "stream_options", "include_usage", "background", "tools", "functions", "mcp_servers"),
    *("service_tier", "serviceTier", "speed", "inference_geo", "models", "fallbacks", "plugins", "web_search_options"),
    *("prompt", "temperature", "top_p", "seed", "n", "max_tokens", "max_completion_tokens", "max_output_tokens"),
)
"""The keys by which a request is metered, changed or refused."""

_BY_FOLDED = {key.casefold(): key for key in _METERED_KEYS}


class BodyError(Exception):
    """A request's body is not taken. status: what the agent gets. kind: as in `CallError`."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        self.status, self.kind, self.message = status, kind, message
        super().__init__(message)


@dataclass
class TakenRequest:
    """A request that was received.

    sent: the body that goes on. read: the same unpacked, None where it could not be. document: what it is in JSON,
    where it is metered. asked: what that asks. size: bytes that are held of it. problem: why it does not go on.
    """

    sent: bytes = b""
    read: bytes | None = None
    document: dict[str, Any] | None = None
    is_json: bool = False
    asked: Asked = field(default_factory=Asked)
    size: int = 0
    problem: CallError | None = None


async def take_request(
    request: web.BaseRequest, body: bytes, passed: Passed, dialect: Dialect | None, capacity: Capacity
) -> TakenRequest:
    """Read a body, as far as it decides how the call is metered and changed. dialect: None for no call of one."""
    taken = TakenRequest(body, body)
    encoding = ", ".join(request.headers.getall("Content-Encoding", ()))
    if dialect is None and passed.counts_as == "call":
        taken.read, taken.is_json = await capacity.parse(len(body), partial(read_unmetered, body, encoding))
    else:
        try:
            # What was packed goes on unpacked: an endpoint may unpack it to something else.
            taken.sent, taken.document = await capacity.parse(len(body), partial(read_request, body, encoding))
            taken.read, taken.is_json = taken.sent, True
        except (ValueError, UnpackingError) as error:
            taken.problem = CallError(kind="unreadable", message=f"the request cannot be read in one way: {error}")
    taken.size = len(taken.read or taken.sent)
    if dialect is not None and taken.document is not None:
        taken.asked = dialect.asked(passed.path.partition("?")[0], taken.document)
        named = sorted(key for key in dialect.forbidden if taken.document.get(key))
        if named:
            message = f"the model gateway passes no request on with {', '.join(named)}"
            taken.problem = CallError(kind="not_allowed", message=message)
    return taken


def reserved_size(request: web.BaseRequest) -> int:
    """Return the bytes that a request's body takes at most. Raises `BodyError` for one that is too large."""
    length = request.content_length
    if length is not None and length > REQUEST_LIMIT:
        raise _too_large()
    # The length of a packed or chunked body is known when it is there.
    return REQUEST_LIMIT if length is None or "Content-Encoding" in request.headers else length


async def receive_body(request: web.BaseRequest) -> bytes:
    """Return a request's body as it came. Raises `BodyError` for one that is too large, too slow or malformed."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # Else aiohttp takes it for a part of the answer, and the answer's own head for sent.
        request.writer.output_size = 0
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SEC):
            while data := await request.content.readany():
                body += data
                if len(body) > REQUEST_LIMIT:
                    raise _too_large()
    except TimeoutError:
        raise BodyError(408, "too_slow", f"the request's body did not come within {BODY_SEC:g} s") from None
    except web.RequestPayloadError as error:
        raise BodyError(400, "unreadable", "the request's body is malformed") from error
    return bytes(body)


def read_request(body: bytes, encoding: str) -> tuple[bytes, dict[str, Any]]:
    """Return a body unpacked, and the JSON object that it is.

    Raises `ValueError` for what is no object, and for one that two parsers could read in two ways, `UnpackingError` for
    what is not packed as its head says.
    """
    plain = unpack(body, encoding, REQUEST_LIMIT)
    check_size(plain)
    # The faster parser also bounds the depth.
    if not isinstance(read_json(plain), dict):
        raise ValueError("it is no JSON object")
    document: dict[str, Any] = json.loads(plain.decode(), object_pairs_hook=_unique)
    options = document.get("stream_options")
    for key in (*document, *(options if isinstance(options, dict) else ())):
        meant = _BY_FOLDED.get(key.casefold(), key)
        if key != meant:
            raise ValueError(f"it has the key {key!r}, which some endpoints take for {meant!r}")
    return plain, document


def read_unmetered(body: bytes, encoding: str) -> tuple[bytes | None, bool]:
    """Return a body that goes on as it is, unpacked for the record if that can be done, and whether it is JSON."""
    try:
        plain = unpack(body, encoding, REQUEST_LIMIT)
        check_size(plain)
        read_json(plain)
    except UnpackingError:
        return None, False
    except ValueError:
        return plain, False
    return plain, True


def check_size(text: bytes) -> None:
    """Raise `ValueError` for a text that is too large a document, before it is made one."""
    if count_values(text) > MAX_VALUES:
        raise ValueError("it has too many values")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key twice in an object")
    return found


def _too_large() -> BodyError:
    return BodyError(413, "too_large", f"a request has at most {REQUEST_LIMIT} bytes")
