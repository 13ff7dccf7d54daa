"""HTTP/1.1 messages: a request out of the bytes that came so far, and the bytes of a response."""

from __future__ import annotations

import json

from office_core.errors import Invalid, TooLarge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST_HEAD = 32 * 1024
LONGEST_BODY = 8 * 1024 * 1024
REASONS = {
    200: "OK",
    201: "Created",
    202: "Accepted",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Request:
    """headers: names in lower case. parts: of the path, decoded. query: (name, value), decoded."""

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes, *, keeps_alive: bool) -> None:
        path, _, query = target.partition("?")
        self.method = method
        self.parts = [_decoded(part) for part in path.strip("/").split("/")]
        self.query = [_pair(pair) for pair in query.split("&") if pair]
        self.headers = headers
        self.body = body
        self.keeps_alive = keeps_alive


class Response:
    def __init__(self, status: int, body: bytes = b"", media_type: str = "") -> None:
        self.status = status
        self.body = body
        self.media_type = media_type

    @classmethod
    def of_json(cls, value: Any, status: int = 200) -> Response:
        return cls(status, json.dumps(value, ensure_ascii=False).encode() + b"\n", "application/json")

    def as_bytes(self, *, keeps_alive: bool, with_body: bool = True) -> bytes:
        head = [f"HTTP/1.1 {self.status} {REASONS[self.status]}", f"Content-Length: {len(self.body)}"]
        if self.media_type:
            head.append(f"Content-Type: {self.media_type}")
        head.append(f"Connection: {'keep-alive' if keeps_alive else 'close'}")
        return "\r\n".join([*head, "", ""]).encode() + (self.body if with_body else b"")


class Incoming:
    """The bytes of one connection that have not become a request yet."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self._invited = False

    def add(self, data: bytes) -> None:
        self.buffer += data

    def next_request(self) -> Request | None:
        """The next whole request; None if more has to come. Raises `Refused` when it can't become one."""
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self.buffer) > LONGEST_HEAD:
                raise TooLarge("the head of the request is too long")
            return None
        method, target, version, headers = _head(bytes(self.buffer[:end]))
        body = self._body(headers, end + 4)
        if body is None:
            return None
        self._invited = False
        connection = headers.get("connection", "").lower()
        keeps_alive = "close" not in connection and (version != "HTTP/1.0" or "keep-alive" in connection)
        return Request(method, target, headers, body, keeps_alive=keeps_alive)

    def wants_invitation(self) -> bool:
        """Whether the other side waits to be told to send its body; true once a request."""
        head = bytes(self.buffer.partition(b"\r\n\r\n")[0]).lower()
        if self._invited or b"100-continue" not in head or len(head) == len(self.buffer):
            return False
        self._invited = True
        return True

    def _body(self, headers: dict[str, str], start: int) -> bytes | None:
        """Takes head and body out of the buffer, when all of it is there."""
        if "transfer-encoding" in headers:
            whole = _chunks(self.buffer, start)
            if whole is None:
                return None
            body, end = whole
        else:
            length = headers.get("content-length", "0")
            if not (length.isascii() and length.isdigit()):
                raise Invalid("the Content-Length is not a number")
            if int(length) > LONGEST_BODY:
                raise TooLarge(f"a body may have at most {LONGEST_BODY} bytes")
            end = start + int(length)
            if len(self.buffer) < end:
                return None
            body = bytes(self.buffer[start:end])
        del self.buffer[:end]
        return body


def _head(data: bytes) -> tuple[str, str, str, dict[str, str]]:
    first, *rest = data.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[1].startswith("/") or not words[2].startswith("HTTP/1."):
        raise Invalid("this is not an HTTP/1.1 request")
    headers = {}
    for row in rest:
        name, colon, value = row.partition(":")
        if not colon or not name or name != name.strip():
            raise Invalid("a header of the request has no name")
        headers[name.lower()] = value.strip()
    return words[0], words[1], words[2], headers


def _chunks(buffer: bytearray, start: int) -> tuple[bytes, int] | None:
    """A body in chunks, and where it ends; None if more has to come."""
    body = bytearray()
    while True:
        line_end = buffer.find(b"\r\n", start)
        if line_end < 0:
            return None
        try:
            size = int(bytes(buffer[start:line_end]).partition(b";")[0], 16)
        except ValueError:
            raise Invalid("a chunk of the body has no size") from None
        if size < 0 or len(body) + size > LONGEST_BODY:
            raise TooLarge(f"a body may have at most {LONGEST_BODY} bytes")
        start = line_end + 2
        if size == 0:
            end = buffer.find(b"\r\n", start)
            while end > start:  # trailers
                start, end = end + 2, buffer.find(b"\r\n", end + 2)
            return None if end < 0 else (bytes(body), end + 2)
        if len(buffer) < start + size + 2:
            return None
        body += buffer[start : start + size]
        start += size + 2


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return _decoded(name.replace("+", " ")), _decoded(value.replace("+", " "))


def _decoded(text: str) -> str:
    """Percent-decoding; `urllib.parse` would cost its import at every start."""
    first, *rest = text.encode("latin-1", "replace").split(b"%")
    decoded = [first]
    for piece in rest:
        try:
            byte = bytes.fromhex(piece[:2].decode("latin-1"))
        except ValueError:
            byte = b""
        decoded.append(byte + piece[2:] if byte else b"%" + piece)
    try:
        return b"".join(decoded).decode()
    except UnicodeDecodeError:
        raise Invalid("the address is not UTF-8") from None
