"""The gateway's two doors: agents' calls on a socket that sandboxes mount, the engine's on one that is its own."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import structlog
from aiohttp import web

from benchflow.contracts.gateway import SOCKET_NAME, CallError
from benchflow.gateway.allowed_requests import find_allowed
from benchflow.gateway.answer import Answer
from benchflow.gateway.control import Control, Info
from benchflow.gateway.exchange import REQUEST_LIMIT, Exchange, error_dialect
from benchflow.gateway.hook import Diverged, MakeReplayer, Recorded, Replayer
from benchflow.gateway.rollouts import Rollouts
from benchflow.gateway.upstream import Upstream, find_key, token_of
from benchflow.paths import StatePaths
from benchflow.store import storage_errors

__all__ = ["Diverged", "Gateway", "MakeReplayer", "Recorded", "Replayer"]

HEAD_LIMIT = 64 * 1024
"""Bytes of a line of a request's head."""

BACKLOG = 4096

log = structlog.get_logger("benchflow.gateway")


class Gateway:
    """One host's gateway.

    grace: seconds for calls under way when it is to end. make_replayer: who answers from records; None refuses to.
    """

    def __init__(self, paths: StatePaths, *, grace: float, make_replayer: MakeReplayer | None = None) -> None:
        self._paths = paths
        self._grace = grace
        self._rollouts = Rollouts(paths.gateway, make_replayer)
        self._exchanges: set[Exchange] = set()
        self._runners: list[web.AppRunner] = []
        self._upstream: Upstream | None = None
        self._stopping = False

    async def start(self) -> None:
        """Take over what an earlier one was told, and open both doors."""
        gateway = self._paths.gateway
        with storage_errors(gateway.root):
            for directory, mode in ((gateway.root, 0o700), (gateway.rollouts, 0o700), (gateway.public, 0o755)):
                directory.mkdir(parents=True, exist_ok=True)
                # Somebody who mounts it may have made it before.
                directory.chmod(mode)
        self._rollouts.load()
        self._upstream = Upstream()
        calls = web.Application(client_max_size=REQUEST_LIMIT)
        # Any path: a dot would not mean the line's end, which may be in one, percent-encoded.
        calls.router.add_route("*", r"/{path:[\s\S]*}", self._answer)
        await self._open(calls, gateway.public / SOCKET_NAME, 0o666, self._grace)
        control = Control(self._rollouts, lambda: Info(pid=os.getpid(), stopping=self._stopping))
        await self._open(control.app(), gateway.control, 0o600, grace=1.0)

    async def stop(self) -> None:
        """Take no more calls, let those under way end, cut off those that do not in time."""
        self._stopping = True
        for exchange in list(self._exchanges):
            exchange.stop()
        for runner in self._runners:
            await runner.cleanup()
        if self._upstream is not None:
            await self._upstream.close()

    async def _open(self, app: web.Application, path: Path, mode: int, grace: float) -> None:
        runner = web.AppRunner(
            app,
            # A call whose agent has left is nobody's.
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            max_line_size=HEAD_LIMIT,
            max_field_size=HEAD_LIMIT,
            keepalive_timeout=3600.0,
            shutdown_timeout=grace,
        )
        await runner.setup()
        self._runners.append(runner)
        await web.SockSite(runner, _listener(path, mode), backlog=BACKLOG).start()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Any request of any agent."""
        assert self._upstream is not None
        url = request.rel_url
        rollout = self._rollouts.of_token(token_of(request.headers, url))
        answer = Answer(request, asyncio.get_running_loop().time())
        shape = error_dialect(rollout.registration.api if rollout else None, request.headers)
        if rollout is None:
            return answer.refuse(shape, 401, CallError(kind="unknown_token", message="this key is no rollout's"))
        passed = find_allowed(rollout.registration, request.method, url.raw_path, url.raw_query_string)
        if passed is None:
            # Before its body is read: it may be large.
            rollout.refuse(request.method, url.raw_path)
            message = "the model gateway passes no such request on"
            return answer.refuse(shape, 404, CallError(kind="not_allowed", message=message))
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            message = f"a request has at most {REQUEST_LIMIT} bytes"
            return answer.refuse(shape, 413, CallError(kind="too_large", message=message))
        key = find_key(self._paths, rollout.registration)
        exchange = Exchange(request, rollout, passed, body, key)
        self._exchanges.add(exchange)
        try:
            return await exchange.run(self._upstream)
        finally:
            self._exchanges.discard(exchange)


def _listener(path: Path, mode: int) -> socket.socket:
    """A socket at a path of any length, which takes the place of an earlier gateway's in one step."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        new = f".{path.name}.new"
        with storage_errors(path):
            path.with_name(new).unlink(missing_ok=True)
            # The address of a socket has 108 bytes at most.
            listener.bind(f"/proc/self/fd/{directory}/{new}")
            path.with_name(new).chmod(mode)
            # Whoever finds it must find somebody behind it.
            listener.listen(BACKLOG)
            path.with_name(new).replace(path)
    finally:
        os.close(directory)
    return listener
