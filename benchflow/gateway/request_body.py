"""The body of a request: received within limits, and parsed so that an endpoint cannot read another request in it.

JSON does not define which of two equal keys counts, and some parsers treat keys as equal that differ in case. An agent
that writes `"stream": false, "Stream": true` would be metered for one request and served another. A body is forwarded
byte for byte, or not at all.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

from benchflow.contracts.gateway import CallError
from benchflow.gateway.allowed_requests import Forwarding
from benchflow.gateway.memory_budget import Capacity
from benchflow.gateway.plain_body import UnpackingError, unpack
from benchflow.llm_apis import Dialect, ParsedRequest, read_json
from benchflow.llm_apis.value_counts import MAX_VALUES, count_values

REQUEST_LIMIT = 100 * 1024 * 1024
"""Maximum of bytes of a request's body."""

BODY_SEC = 60.0
"""Seconds for which the gateway waits for a body, from when it is ready for it."""

_METERED_KEYS = (
    *("model", "messages", "input", "instructions", "system", "contents", "systemInstruction", "generationConfig"),
    *("stream", "stream_options", "include_usage", "background", "tools", "functions", "mcp_servers"),
    *("service_tier", "serviceTier", "speed", "inference_geo", "models", "fallbacks", "plugins", "web_search_options"),
    *("prompt", "temperature", "top_p", "seed", "n", "max_tokens", "max_completion_tokens", "max_output_tokens"),
)
"""Keys by which a request is metered, changed or refused."""

_BY_FOLDED = {key.casefold(): key for key in _METERED_KEYS}


class BodyError(Exception):
    """A request's body is refused."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        """Make it.

        Args:
            status: HTTP status for the agent.
            kind: Kind of error, as in `CallError`.
            message: Description.
        """
        self.status, self.kind, self.message = status, kind, message
        super().__init__(message)


@dataclass
class ReceivedRequest:
    """A received request."""

    sent: bytes = b""
    """Body to forward."""

    read: bytes | None = None
    """The same, unpacked; None if it cannot be unpacked."""

    document: dict[str, Any] | None = None
    """The body as JSON, if it is metered."""

    is_json: bool = False
    """Whether the body is JSON."""

    parsed: ParsedRequest = field(default_factory=ParsedRequest)
    """Parsed request of a generation call; else empty."""

    size: int = 0
    """Bytes of memory that the body takes."""

    problem: CallError | None = None
    """Why the request is refused; None if it is forwarded."""


async def parse_received(
    request: web.BaseRequest, body: bytes, forwarding: Forwarding, dialect: Dialect | None, capacity: Capacity
) -> ReceivedRequest:
    """Unpack and parse a received body, as far as metering and changes need it.

    Args:
        request: The request.
        body: Its body, as received.
        forwarding: How it is forwarded.
        dialect: Dialect of a generation call; None for any other request.
        capacity: Capacity for parsing large bodies.

    Returns:
        The request, with `problem` set if the body is invalid or has forbidden keys.
    """
    received = ReceivedRequest(body, body)
    encoding = ", ".join(request.headers.getall("Content-Encoding", ()))
    if dialect is None and forwarding.counts_as == "call":
        received.read, received.is_json = await capacity.parse(len(body), partial(read_unmetered, body, encoding))
    else:
        try:
            # A compressed body is forwarded unpacked: an endpoint might unpack it differently.
            received.sent, received.document = await capacity.parse(len(body), partial(read_request, body, encoding))
            received.read, received.is_json = received.sent, True
        except (ValueError, UnpackingError) as error:
            received.problem = CallError(kind="unreadable", message=f"the request cannot be read in one way: {error}")
    received.size = len(received.read or received.sent)
    if dialect is not None and received.document is not None:
        received.parsed = dialect.parse_request(forwarding.path.partition("?")[0], received.document)
        named = sorted(key for key in dialect.forbidden if received.document.get(key))
        if named:
            message = f"the model gateway passes no request on with {', '.join(named)}"
            received.problem = CallError(kind="not_allowed", message=message)
    return received


def reserved_size(request: web.BaseRequest) -> int:
    """Return the maximum of bytes that a request's body can take. Raise `BodyError` if it is too large."""
    length = request.content_length
    if length is not None and length > REQUEST_LIMIT:
        raise _too_large()
    # The length of a compressed or chunked body is known only once it is received.
    return REQUEST_LIMIT if length is None or "Content-Encoding" in request.headers else length


async def receive_body(request: web.BaseRequest) -> bytes:
    """Receive a request's body as it is. Raise `BodyError` if it is too large, too slow or malformed."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # Otherwise aiohttp counts this as a part of the response, whose head it then takes for sent.
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

    Args:
        body: The body, as received.
        encoding: Its content encoding; empty for none.

    Raises:
        ValueError: It is no JSON object, or one that two parsers could read differently.
        UnpackingError: It is not compressed as its head says.
    """
    plain = unpack(body, encoding, REQUEST_LIMIT)
    check_size(plain)
    # The faster parser also limits the depth.
    if not isinstance(read_json(plain), dict):
        raise ValueError("it is no JSON object")
    document: dict[str, Any] = json.loads(plain.decode(), object_pairs_hook=_refuse_duplicates)
    options = document.get("stream_options")
    for key in (*document, *(options if isinstance(options, dict) else ())):
        meant = _BY_FOLDED.get(key.casefold(), key)
        if key != meant:
            raise ValueError(f"it has the key {key!r}, which some endpoints take for {meant!r}")
    return plain, document


def read_unmetered(body: bytes, encoding: str) -> tuple[bytes | None, bool]:
    """Return a body unpacked for the record, and whether it is JSON; (None, False) if it cannot be unpacked."""
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
    """Raise `ValueError` for a JSON text with too many values, before it is parsed."""
    if count_values(text) > MAX_VALUES:
        raise ValueError("it has too many values")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object. Raise `ValueError` if two have the same key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key twice in an object")
    return found


def _too_large() -> BodyError:
    return BodyError(413, "too_large", f"a request has at most {REQUEST_LIMIT} bytes")
