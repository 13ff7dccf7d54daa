"""The door of the Web UI: an HTTP proxy on loopback that authenticates its user and forwards to the UI's socket.

Every user of the host can connect to a loopback port, and so can every web page that the owner's browser shows. The
token, once in the address, is exchanged for a cookie of this run of the stack. A request is rejected without it, from
another origin, or under another host name (which is how a page reaches loopback by DNS rebinding).

It is a process of its own, so that a flood of requests costs the owner no more than the Web UI:

    python -m benchflow.door LISTENER RUN

LISTENER is the descriptor of the socket that the supervisor listens on; RUN is a random name of this run of the stack.
The supervisor keeps the socket open, so that the port stays the stack's, and connections wait, while a new process
starts.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import logging
import os
import socket
import sys
from collections.abc import Mapping

import aiohttp
import structlog
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from benchflow.log import configure_logging
from benchflow.paths import PRIVATE_UMASK, StatePaths, make_socket_address
from benchflow.stack import make_ui_token

_HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"),
    "upgrade",
}
_OTHER_SITES = ("same-site", "cross-site")
_CHUNK = 64 * 1024
_MAX_BODY_BYTES = 16 * 1024 * 1024

MAX_STRANGERS = 64
"""Maximum number of unauthenticated connections. One more aborts the oldest: a browser sends its request at once, a
client that wants to hold connections does not.
"""
MAX_OWNERS = 256
"""Maximum number of authenticated connections that are protected. Further ones are served, but may be aborted as if
they were unauthenticated.
"""
STRANGER_SEC = 10.0
"""Seconds within which a connection must authenticate."""
IDLE_SEC = 75.0
"""Seconds for which a connection may be kept open between two requests."""
_ACCEPT_RETRY_SEC = 0.1

log = structlog.get_logger("benchflow.door")

UNAUTHORIZED = (
    "This is the Web UI of somebody's BenchFlow stack. `bench stack status` prints its address with the token.\n"
)


class Door:
    """HTTP proxy in front of one stack's Web UI.

    Args:
        listener: Socket that listens on a port of 127.0.0.1.
        ui_socket: Address of the Web UI's socket.
        token: Token that authenticates the owner.
        run: Name of this run of the stack. Cookies of other runs are invalid.
    """

    def __init__(self, listener: socket.socket, ui_socket: str, token: str, run: str) -> None:
        """Make it; `serve` accepts connections."""
        self._listener = listener
        self._ui_socket = ui_socket
        self._token = token
        # Not the token itself: while no stack runs, another user may listen on the port, and be sent the cookie.
        # Derived from it, so that a browser stays logged in when this process is restarted.
        self._session = hmac.digest(token.encode(), run.encode(), "sha256").hex()
        port = listener.getsockname()[1]
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        # A browser sends a cookie to every port of its host: another stack's must have another name.
        self._cookie = f"benchflow-ui-{port}"
        self._strangers: dict[asyncio.BaseProtocol, tuple[asyncio.Transport, float]] = {}
        """Unauthenticated connections, oldest first, and when each was accepted."""

    async def serve(self) -> None:
        """Accept connections until this process ends."""
        # Responses of the UI pass unchanged, compressed or not; its cookies are left to the browser.
        self._upstream = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self._ui_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._answer)
        # aiohttp logs each malformed request, with a traceback: any user of the host could fill the disk.
        unheard = logging.Logger("benchflow.door.requests")
        unheard.disabled = True
        # No access log: an address may hold the token.
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=unheard,
            auto_decompress=False,
            keepalive_timeout=IDLE_SEC,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        assert runner.server is not None
        self._server = runner.server
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._accept_connections())
                group.create_task(self._end_silent_connections())
        finally:
            await runner.cleanup()
            await self._upstream.close()

    async def _accept_connections(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        while True:
            try:
                client, _ = await loop.sock_accept(self._listener)
                transport, protocol = await loop.connect_accepted_socket(self._server, client)
            except OSError:
                # Out of descriptors or memory, until a connection ends; or the client has gone already.
                await asyncio.sleep(_ACCEPT_RETRY_SEC)
                continue
            self._strangers = {each: found for each, found in self._strangers.items() if not found[0].is_closing()}
            self._strangers[protocol] = (transport, loop.time())
            if len(self._strangers) > MAX_STRANGERS:
                self._end(next(iter(self._strangers)))

    async def _end_silent_connections(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(STRANGER_SEC / 10)
            for protocol, (_, accepted) in [*self._strangers.items()]:
                if loop.time() - accepted > STRANGER_SEC:
                    self._end(protocol)

    def _end(self, protocol: asyncio.BaseProtocol) -> None:
        """Abort an unauthenticated connection."""
        transport, _ = self._strangers.pop(protocol)
        # Not `close`, which waits until all is sent, while the client may never read.
        transport.abort()

    def _keep(self, request: web.Request) -> None:
        """Protect an authenticated connection from being aborted, unless too many are."""
        if len(self._server.connections) - len(self._strangers) < MAX_OWNERS:
            self._strangers.pop(request.protocol, None)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Return the response to a request; close the connection after it unless it is authenticated."""
        response = await self._admit(request)
        if request.protocol in self._strangers:
            response.force_close()
        return response

    async def _admit(self, request: web.Request) -> web.StreamResponse:
        """Forward a request if it is authenticated; otherwise return an error response, or the redirect of a login."""
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return web.Response(status=403, text=UNAUTHORIZED)
        given = request.query.get("token")
        if given is not None and request.method == "GET" and _is_equal(given, self._token):
            self._keep(request)
            return self._let_in(request.rel_url)
        origin = request.headers.get("Origin")
        # A page on another port of this host is the same site: browsers send the cookie in spite of `SameSite`.
        if origin not in (None, f"http://{hosts[0]}") or request.headers.get("Sec-Fetch-Site") in _OTHER_SITES:
            return web.Response(status=403, text=UNAUTHORIZED)
        if not _is_equal(request.cookies.get(self._cookie, ""), self._session):
            return web.Response(status=401, text=UNAUTHORIZED)
        self._keep(request)
        try:
            return await self._forward(request)
        except (ConnectionError, web.HTTPException):
            # The browser has gone, or the request is too large.
            raise
        except Exception:
            log.exception("a request of the stack's owner failed")
            raise

    def _let_in(self, url: URL) -> web.Response:
        """Exchange the token in an address for a cookie, and redirect to the address without it."""
        kept = url.without_query_params("token")
        # A redirect to `//name` would lead to another host.
        place = "/" + kept.raw_path_qs.lstrip("/\\")
        response = web.Response(status=303, headers={"Location": place, "Referrer-Policy": "no-referrer"})
        response.headers["Cache-Control"] = "no-store"
        response.set_cookie(self._cookie, self._session, path="/", httponly=True, samesite="Strict")
        return response

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        """Send a request to the Web UI and stream its response."""
        headers = _strip_hop_by_hop(request.headers)
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
            found = _strip_hop_by_hop(answer.headers)
            for name in [name for name in found if name.lower().startswith("access-control-")]:
                del found[name]
            response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=found)
            await response.prepare(request)
            async for piece in answer.content.iter_chunked(_CHUNK):
                await response.write(piece)
            await response.write_eof()
            return response


_SKIPPED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that the HTTP client would add by itself."""


def _is_equal(given: str, expected: str) -> bool:
    """Compare in constant time, against timing attacks."""
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _strip_hop_by_hop(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers without hop-by-hop ones, which concern one connection only."""
    kept: CIMultiDict[str] = CIMultiDict(headers)
    named = {name.strip().lower() for value in kept.getall("Connection", []) for name in value.split(",")}
    for name in {name.lower() for name in kept} & (_HOP_BY_HOP | named):
        kept.popall(name)
    return kept


def main() -> None:
    """Serve on an inherited socket until killed."""
    # Imported objects live as long as the process: freeze them, so that no collection scans them.
    gc.freeze()
    os.umask(PRIVATE_UMASK)
    listener, run = sys.argv[1:]
    paths = StatePaths.default()
    configure_logging(file=paths.logs / "door.log")
    door = Door(socket.socket(fileno=int(listener)), make_socket_address(paths.ui_socket), make_ui_token(paths), run)
    asyncio.run(door.serve())


if __name__ == "__main__":
    main()
