"""Sends a GET to URLs of a sandbox's services and reports the responses. Run inside the sandbox."""

from __future__ import annotations

import hashlib
import http.client
import json
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

from benchflow.planes.environment.helper.shared import run

MAX_BODY = 16 << 20


def observe_url(url: str, show: int, patience: float) -> dict[str, Any]:
    """Return the response of a GET as an `Observation`: status, size and digest, or the error.

    A body of at most `show` bytes is included. `patience`: timeout in seconds.
    """
    try:
        status, body = send_get(url, patience)
    except http.client.IncompleteRead:
        return {"url": url, "error": "the answer was cut short"}
    except (OSError, ValueError, http.client.HTTPException) as error:
        said = str(getattr(error, "strerror", None) or error)
        return {"url": url, "error": said.lower() or type(error).__name__}
    if len(body) > MAX_BODY:
        return {"url": url, "error": f"the body is larger than {MAX_BODY >> 20} MiB"}
    seen = {"url": url, "status": status, "digest": hashlib.sha256(canonicalize(body)).hexdigest(), "size": len(body)}
    if len(body) <= show:
        seen["body"] = body.decode("utf-8", "replace")
    return seen


def send_get(url: str, patience: float) -> tuple[int, bytes]:
    """Send a GET and return the status and the body. Raise the first error if no address of the host connects."""
    parts = urlsplit(url)
    # `localhost` is two addresses, and a service may listen on one of them only.
    hosts = ["127.0.0.1", "::1"] if parts.hostname == "localhost" else [parts.hostname or ""]
    refused: OSError | None = None
    for host in hosts:
        link = make_connection(parts.scheme, host, parts.port, patience)
        try:
            link.connect()
        except OSError as error:
            refused = refused or error
            continue
        try:
            place = (parts.path or "/") + ("?" + parts.query if parts.query else "")
            link.request("GET", place, headers={"Host": parts.netloc, "Accept": "*/*", "Connection": "close"})
            response = link.getresponse()
            return response.status, read_body(response, time.monotonic() + patience)
        finally:
            link.close()
    assert refused
    raise refused


def read_body(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """Return the body, cut off beyond `MAX_BODY` bytes. Raise `TimeoutError` for a stream beyond the deadline."""
    body = b""
    while len(body) <= MAX_BODY:
        piece = response.read1(1 << 16)
        if not piece:
            # Bytes of the announced Content-Length are missing; `read1` does not raise for that.
            if response.length:
                raise http.client.IncompleteRead(body, response.length)
            break
        body += piece
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return body


def make_connection(scheme: str, host: str, port: int | None, patience: float) -> http.client.HTTPConnection:
    """Return a connection to a host, not connected yet."""
    if scheme == "https":
        # A world's certificate may be self-signed; only its response counts.
        context = ssl._create_unverified_context()
        return http.client.HTTPSConnection(host, port, timeout=patience, context=context)
    return http.client.HTTPConnection(host, port, timeout=patience)


def canonicalize(body: bytes) -> bytes:
    """Return a JSON body with sorted keys and without spaces; any other body unchanged."""
    try:
        return json.dumps(json.loads(body), sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return body


def observe(request: dict[str, Any]) -> dict[str, Any]:
    """Return the observation of each URL of the request, in order."""
    return {"observed": [observe_url(url, request["show"], request["patience"]) for url in request["urls"]]}


if __name__ == "__main__":
    run(observe)
