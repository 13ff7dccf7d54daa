"""The daemon's API: one client, off the event loop, and the one table that translates its errors.

Nothing else in the provider catches an exception of `docker` or `requests`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import docker
import requests
from docker import errors as docker_errors
from docker.utils import kwargs_from_env

from benchflow.errors import (
    BenchFlowError,
    SandboxError,
    SandboxLostError,
    SandboxUnavailableError,
)
from benchflow.planes.sandbox.cancellation import run_stoppable
from benchflow.planes.sandbox.docker.stream import Stream

T = TypeVar("T")

THREADS = 32
"""Calls to the daemon that may wait at the same time; each holds one connection."""

BUILD_THREADS = 64

API_TIMEOUT = 120.0
"""Seconds a single call may be silent. A start on a crowded host takes seconds."""

GONE = (
    "no such container",
    "is not running",
    "is being removed",
    "marked for removal",
    "cannot exec in a stopped",
    "container not running",
    "process not running",
)


class Conflict(SandboxError):
    """The daemon refused because something of this name or in this state exists."""


class NotFound(SandboxError):
    """The daemon does not know the object: image, network or execution."""


class RecordingClient(docker.APIClient):
    """The library's client, which lets a long response be ended from another thread."""

    def __init__(self, **options: Any) -> None:
        self.last = threading.local()
        super().__init__(**options)

    def post(self, url: str | bytes, *args: Any, **options: Any) -> requests.Response:
        response = super().post(url, *args, **options)
        self.last.response = response
        return response


class Engine:
    """The daemon, asked from coroutines. Connects on first use, so that making one never fails."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._client: RecordingClient | None = None

    async def call(self, ask: Callable[[RecordingClient], T]) -> T:
        """Run `ask` with the client in a thread. Raises what `translate` makes of its errors."""
        return await asyncio.get_running_loop().run_in_executor(self._pool("docker", THREADS), self._ask, ask)

    async def stoppable(self, ask: Callable[[threading.Event, RecordingClient], T]) -> T:
        """The same for what the sandbox may draw out: a cancel sets the event, and waits for its end."""
        return await run_stoppable(lambda stop: self._ask(lambda client: ask(stop, client)))

    async def follow(self, ask: Callable[[RecordingClient], T]) -> T:
        """The same for what takes minutes, in threads of its own, so that builds never hold up the rest."""
        return await asyncio.get_running_loop().run_in_executor(
            self._pool("docker-build", BUILD_THREADS), self._ask, ask
        )

    def _pool(self, name: str, threads: int) -> ThreadPoolExecutor:
        with self._guard:
            if name not in self._pools:
                self._pools[name] = ThreadPoolExecutor(threads, thread_name_prefix=name)
            return self._pools[name]

    def _ask(self, ask: Callable[[RecordingClient], T]) -> T:
        try:
            return ask(self._connected())
        except (docker_errors.DockerException, requests.RequestException, OSError) as error:
            raise translate(error) from error

    async def open_exec(self, exec_id: str) -> Stream:
        """Start an execution, attached to its streams."""
        return await self.call(lambda client: Stream(client.exec_start(exec_id, socket=True)))

    @property
    def is_local(self) -> bool:
        """Whether the daemon sees the files of this host, as far as its address tells."""
        address = os.environ.get("DOCKER_HOST") or "unix:"
        return address.startswith("unix:")

    def close(self) -> None:
        """Let go of threads and connections. A later call makes new ones."""
        with self._guard:
            for pool in self._pools.values():
                pool.shutdown(wait=False, cancel_futures=True)
            self._pools.clear()
            if self._client is not None:
                self._client.close()
            self._client = None

    def _connected(self) -> RecordingClient:
        with self._guard:
            if self._client is None:
                # "auto" asks the daemon once, here; every later call goes to that version without asking.
                options: dict[str, Any] = {**kwargs_from_env()}
                self._client = RecordingClient(version="auto", timeout=API_TIMEOUT, max_pool_size=THREADS, **options)
            return self._client


def translate(error: Exception) -> BenchFlowError:
    """What an exception of the library means to a caller of the sandbox plane."""
    if isinstance(error, docker_errors.APIError):
        return _translate_answer(error)
    if isinstance(error, requests.ReadTimeout):
        return SandboxUnavailableError(
            f"the Docker daemon did not answer within {API_TIMEOUT:.0f} s",
            remedy="look at the daemon's log and at the load of this host",
        )
    text = str(error)
    if "Permission denied" in text or isinstance(error, PermissionError):
        return SandboxUnavailableError(
            "this user may not talk to the Docker daemon",
            remedy="add the user to the group that owns the socket (`sudo usermod -aG docker $USER`, then log "
            "in again), or run as root",
        )
    no_daemon = (
        "Connection refused",
        "No such file",
        "Connection aborted",
        "Error while fetching",
        "Max retries",
    )
    if isinstance(error, requests.ConnectionError) or any(part in text for part in no_daemon):
        return SandboxUnavailableError(
            f"no Docker daemon answers: {_first_line(text)}",
            remedy="install Docker and start it (`sudo systemctl start docker`, or `sudo dockerd`), or set "
            "DOCKER_HOST to a running daemon",
        )
    return SandboxError(f"the Docker daemon cannot be used: {_first_line(text)}")


def _translate_answer(error: docker_errors.APIError) -> BenchFlowError:
    said = str(error.explanation or error)
    status = error.status_code
    low = said.lower()
    if any(part in low for part in GONE):
        return SandboxLostError(f"the container is gone: {said}")
    if "no space left on device" in low or "disk quota exceeded" in low:
        return SandboxError(
            f"Docker has no space left: {said}",
            remedy="free space where Docker keeps its data (`docker system df`, `docker system prune`)",
        )
    if status == 404:
        return NotFound(said)
    if status == 409:
        return Conflict(said)
    return SandboxError(f"Docker: {said}")


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"
