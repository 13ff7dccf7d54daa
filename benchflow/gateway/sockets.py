"""The gateway's two sockets: sandboxes mount the one for agents' calls, the engine alone has the one for control."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import structlog
from aiohttp import web

from benchflow.contracts.gateway import SOCKET_NAME, Api, CallError
from benchflow.gateway.allowed_requests import find_allowed
from benchflow.gateway.answer import RecordedResponse
from benchflow.gateway.blockage import AbsenceWatch
from benchflow.gateway.connections import CallServer, OncePerMinute, Tally
from benchflow.gateway.control import ControlApp, Info
from benchflow.gateway.exchange import Exchange
from benchflow.gateway.hook import Diverged, MakeReplayer, Recorded, Replayer
from benchflow.gateway.memory_budget import Capacity
from benchflow.gateway.rollouts import Rollouts
from benchflow.gateway.upstream import Upstream, find_key, find_token
from benchflow.host_files import raise_storage_errors
from benchflow.llm_apis import DIALECTS, Dialect
from benchflow.paths import StatePaths
from benchflow.stack_processes import raise_open_files

__all__ = ["Diverged", "Gateway", "MakeReplayer", "Recorded", "Replayer"]

BACKLOG = 4096

log = structlog.get_logger("benchflow.gateway")


class Gateway:
    """The gateway of one host."""

    def __init__(self, paths: StatePaths, *, grace: float, make_replayer: MakeReplayer | None = None) -> None:
        """Make it.

        Args:
            paths: The state directory.
            grace: Seconds for which calls in flight may go on when the gateway stops.
            make_replayer: Opens records to answer from; None refuses registrations with a replay.
        """
        self._paths = paths
        self._grace = grace
        self._rollouts = Rollouts(paths.gateway, make_replayer)
        self._exchanges: set[Exchange] = set()
        self._runners: list[web.BaseRunner] = []
        self._capacity = Capacity()
        self._tally = Tally()
        self._upstream: Upstream | None = None
        self._stopping = False
        self._absence = AbsenceWatch(
            lambda: (rollout.blockage for rollout in self._rollouts.all()), paths.gateway.last_seen
        )
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Restore the rollouts of an earlier gateway, and listen on both sockets."""
        gateway = self._paths.gateway
        with raise_storage_errors(gateway.root):
            for directory, mode in ((gateway.root, 0o700), (gateway.rollouts, 0o700), (gateway.public, 0o755)):
                directory.mkdir(parents=True, exist_ok=True)
                # A mount of it into a sandbox may have created it before, with another mode.
                directory.chmod(mode)
        self._rollouts.load()
        self._absence.resume()
        self._watching = asyncio.create_task(self._absence.run())
        self._upstream = Upstream()
        for name in ("aiohttp.server", "asyncio"):
            logging.getLogger(name).addFilter(OncePerMinute(self._tally))
        calls = CallServer(self._answer, raise_open_files(), self._tally)
        runner = web.ServerRunner(calls, shutdown_timeout=self._grace)
        await self._open(runner, gateway.public / SOCKET_NAME, 0o666)
        control = ControlApp(self._rollouts, lambda: Info(pid=os.getpid(), stopping=self._stopping), self._absence)
        own = web.AppRunner(control.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._open(own, gateway.control, 0o600)

    async def stop(self) -> None:
        """Stop accepting calls, wait for those in flight, and cut off those that do not end within the grace period."""
        self._stopping = True
        for exchange in list(self._exchanges):
            exchange.stop()
        for runner in self._runners:
            await runner.cleanup()
        await asyncio.gather(*(exchange.end() for exchange in self._exchanges))
        if self._watching is not None:
            self._watching.cancel()
        if self._upstream is not None:
            await self._upstream.close()

    async def _open(self, runner: web.BaseRunner, path: Path, mode: int) -> None:
        await runner.setup()
        self._runners.append(runner)
        await web.SockSite(runner, _listener(path, mode), backlog=BACKLOG).start()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle any request of any agent."""
        assert self._upstream is not None
        url = request.rel_url
        rollout = self._rollouts.find_by_token(find_token(request.headers, url))
        answer = RecordedResponse(request, asyncio.get_running_loop().time())
        shape = _error_dialect(rollout.registration.api if rollout else None, request.headers)
        if rollout is None:
            self._tally.add("requests_without_a_token")
            return answer.refuse(shape, 401, CallError(kind="unknown_token", message="this key is no rollout's"))
        passed = find_allowed(rollout.registration, request.method, url.raw_path, url.raw_query_string)
        if passed is None:
            # Before its body is received, which may be large.
            rollout.refuse(request.method, url.raw_path)
            message = "the model gateway passes no such request on"
            return answer.refuse(shape, 404, CallError(kind="not_allowed", message=message))
        key = find_key(self._paths, rollout.registration)
        exchange = Exchange(request, rollout, passed, key)
        self._exchanges.add(exchange)
        # The exchange may go on after its agent has left.
        return await exchange.run(self._upstream, self._capacity, lambda: self._exchanges.discard(exchange))


def _error_dialect(api: Api | None, headers: Mapping[str, str]) -> Dialect:
    """Return the API dialect in which to report an error. api: None for an unauthenticated request."""
    if api is not None:
        return DIALECTS[api]
    if "x-goog-api-key" in headers:
        return DIALECTS["gemini"]
    return DIALECTS["anthropic-messages" if "x-api-key" in headers else "openai-chat"]


def _listener(path: Path, mode: int) -> socket.socket:
    """Return a listening socket at a path of any length, which atomically replaces that of an earlier gateway."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        new = f".{path.name}.new"
        with raise_storage_errors(path):
            path.with_name(new).unlink(missing_ok=True)
            # The address of a Unix socket has at most 108 bytes.
            listener.bind(f"/proc/self/fd/{directory}/{new}")
            path.with_name(new).chmod(mode)
            # It listens before it has its name, so that no client finds a socket that refuses connections.
            listener.listen(BACKLOG)
            path.with_name(new).replace(path)
    finally:
        os.close(directory)
    return listener
