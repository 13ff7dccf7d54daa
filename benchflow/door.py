"""The door of the Web UI: an HTTP server on loopback that lets in who has the token, and forwards to the UI's socket.

Every user of the host can connect to a loopback port, and so can every web page that the owner's browser shows. The
token, once in the address, is exchanged for a cookie of this run of the stack; a request without it, from another
origin, or under another host name (which is how a page reaches loopback by DNS rebinding) goes no further.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Mapping

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from benchflow.paths import StatePaths, socket_address
from benchflow.store import write_atomic

_HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"),
    "upgrade",
}
_OTHER_SITES = ("same-site", "cross-site")
_CHUNK = 64 * 1024
_MAX_BODY_BYTES = 16 * 1024 * 1024

UNAUTHORIZED = (
    "This is the Web UI of somebody's BenchFlow stack. `bench stack status` prints its address with the token.\n"
)


def make_token(paths: StatePaths) -> str:
    """Return the token of this stack. It is made once, so that a bookmark outlives restarts."""
    try:
        found = paths.ui_token.read_text().strip()
    except FileNotFoundError:
        found = ""
    if not found:
        found = secrets.token_urlsafe(32)
        write_atomic(paths.ui_token, found.encode(), mode=0o600)
    return found


class Door:
    """The door of one stack, on a port of 127.0.0.1."""

    def __init__(self, paths: StatePaths, port: int) -> None:
        self._socket = paths.ui_socket
        self._token = make_token(paths)
        # Not the token itself: while no stack runs, another user may listen on the port, and be sent the cookie.
        self._session = secrets.token_urlsafe(32)
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        # A cookie is sent to every port of its host: another stack's must not take the place of this one's.
        self._cookie = f"benchflow-ui-{port}"
        self._port = port
        self._runner: web.AppRunner | None = None
        self._upstream: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Listen. Raises `OSError` when the port is taken."""
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self._port))
        except OSError:
            listener.close()
            raise
        # The UI's answers pass as they are, compressed or not, and its cookies are the browser's.
        self._upstream = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(socket_address(self._socket)),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._answer)
        # No access log: an address may hold the token.
        self._runner = web.AppRunner(app, access_log=None, auto_decompress=False, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()

    async def close(self) -> None:
        """End, with the connections that are open."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._upstream is not None:
            await self._upstream.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return web.Response(status=403, text=UNAUTHORIZED)
        given = request.query.get("token")
        if given is not None and request.method == "GET" and _is_equal(given, self._token):
            return self._let_in(request.rel_url)
        origin = request.headers.get("Origin")
        # A page on another port of this host is of the same site: it sends the cookie, whatever its `SameSite` says.
        if origin not in (None, f"http://{hosts[0]}") or request.headers.get("Sec-Fetch-Site") in _OTHER_SITES:
            return web.Response(status=403, text=UNAUTHORIZED)
        if not _is_equal(request.cookies.get(self._cookie, ""), self._session):
            return web.Response(status=401, text=UNAUTHORIZED)
        return await self._forward(request)

    def _let_in(self, url: URL) -> web.Response:
        """Turn the token in an address into a cookie, and redirect to the address without it."""
        kept = url.without_query_params("token")
        # `//name` would lead to another host.
        place = "/" + kept.raw_path_qs.lstrip("/\\")
        response = web.Response(status=303, headers={"Location": place, "Referrer-Policy": "no-referrer"})
        response.headers["Cache-Control"] = "no-store"
        response.set_cookie(self._cookie, self._session, path="/", httponly=True, samesite="Strict")
        return response

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        assert self._upstream is not None
        headers = _end_to_end(request.headers)
        cookies = "; ".join(f"{name}={value}" for name, value in request.cookies.items() if name != self._cookie)
        headers.popall("Cookie", None)
        if cookies:
            headers["Cookie"] = cookies
        body = await request.read() if request.can_read_body else None
        headers.popall("Content-Length", None)
        url = URL(f"http://{request.host}{request.rel_url.raw_path_qs}", encoded=True)
        try:
            answer = await self._upstream.request(
                request.method, url, headers=headers, data=body, allow_redirects=False, skip_auto_headers=_SKIPPED
            )
        except aiohttp.ClientError:
            return web.Response(status=502, text="The Temporal server does not answer now; it may be restarting.\n")
        async with answer:
            found = _end_to_end(answer.headers)
            for name in [name for name in found if name.lower().startswith("access-control-")]:
                del found[name]
            response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=found)
            await response.prepare(request)
            async for piece in answer.content.iter_chunked(_CHUNK):
                await response.write(piece)
            await response.write_eof()
            return response


_SKIPPED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that a client would add by itself."""


def _is_equal(given: str, expected: str) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers that are not about one connection."""
    kept: CIMultiDict[str] = CIMultiDict(headers)
    named = {name.strip().lower() for value in kept.getall("Connection", []) for name in value.split(",")}
    for name in {name.lower() for name in kept} & (_HOP_BY_HOP | named):
        kept.popall(name)
    return kept
