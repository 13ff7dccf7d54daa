"""Access to the Docker daemon's API: one client, called in threads off the event loop, with errors translated.

No other module of the driver catches an exception of `docker` or `requests`, except where it asks with the client
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import docker
import requests
import urllib3
from docker import errors as docker_errors
from docker.utils import kwargs_from_env

from benchflow.errors import (
    BenchFlowError,
    DaemonUnavailableError,
    SandboxError,
    SandboxLostError,
    SandboxUnavailableError,
)
from benchflow.planes.sandbox.cancellation import run_stoppable
from benchflow.planes.sandbox.docker.exec_stream import ExecStream
from benchflow.planes.sandbox.docker.host_processes import has_stopped_entry, kill_all
from benchflow.planes.sandbox.docker.translation import API_TIMEOUT, ConflictError, NotFoundError, translate
from benchflow.planes.sandbox.timeouts import AwakeDeadline, awake_wait

T = TypeVar("T")

THREADS = 32
"""Maximum number of concurrent calls to the daemon; each holds one connection."""

BUILD_THREADS = 64
"""Maximum number of concurrent builds, pulls and other transfers."""

PIDS_LIMIT = 4096
"""Maximum number of processes and threads of a container."""

SPARE_PIDS = 256
"""Processes and threads beyond the limit while a shell of the engine enters: the runtime's program has threads, too."""

ENTRY_CHECK_SEC = 1.0
"""Poll interval in seconds, while a process enters a container, for whether it was stopped there. Many times what
entering takes on an idle host."""

ENTRY_SEC = 300.0
"""Timeout in seconds for entering a container if no process is seen to be stopped."""

ANSWER_SEC = 3.0
"""Timeout in seconds of a ping, which needs nothing but the daemon."""

KILL_SEC = 2.0
"""Timeout in seconds for the daemon to kill a container; then its processes are killed past the daemon."""

UNLOCK_SEC = 20.0
"""Timeout in seconds for the daemon to notice that the killed processes have ended."""

_ID = re.compile("[0-9a-f]{64}")

# The library reads long answers past `requests`, which would have translated urllib3's errors.
_LIBRARY = (docker_errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)


class RecordingClient(docker.APIClient):
    """The library's client, which records each response so that another thread can close it."""

    def __init__(self, **options: Any) -> None:
        """Make it from the options of `docker.APIClient`."""
        self.last = threading.local()
        super().__init__(**options)

    def post(self, url: str | bytes, *args: Any, **options: Any) -> requests.Response:
        """Send a POST and return its response, which is also this thread's `last.response`."""
        response = super().post(url, *args, **options)
        self.last.response = response
        return response


class _Entry:
    """An exec (process in a container) that may not have entered its container yet.

    `is_awaited` is set once a caller waits for it to enter; `is_refused`, once the container is killed because it
    can't.
    """

    def __init__(self) -> None:
        self.is_awaited = asyncio.Event()
        self.is_refused = False
        self.watch: asyncio.Task[None]

    def give_sign(self) -> None:
        """Cancel the watch, since output or EOF has come from the exec.

        Not if the watch has killed the container: then the output is the daemon's message about that.
        """
        if not self.is_refused:
            self.watch.cancel()


class DockerDaemon:
    """The Docker daemon for coroutines. The client connects on first use."""

    def __init__(self) -> None:
        """Make it. Nothing is started or connected."""
        self._guard = threading.Lock()
        # Not `_guard`, which the event loop takes as well: connecting to a frozen daemon blocks.
        self._connecting = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._client: RecordingClient | None = None
        self._entries: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, set[_Entry]]] = (
            weakref.WeakKeyDictionary()
        )

    async def call(self, ask: Callable[[RecordingClient], T]) -> T:
        """Run `ask` with the client in a thread and return its result. Raises the errors of `translate`."""
        return await asyncio.get_running_loop().run_in_executor(self._get_pool("docker", THREADS), self._ask, ask)

    async def call_stoppable(self, ask: Callable[[threading.Event, RecordingClient], T]) -> T:
        """Run `ask` as `call` does, for a call that a sandbox can prolong.

        Args:
            ask: Receives an event, and the client. A cancellation of the coroutine sets the event and waits for its
                end.
        """
        return await run_stoppable(lambda stop: self._ask(lambda client: ask(stop, client)))

    async def call_slow(self, ask: Callable[[RecordingClient], T]) -> T:
        """Run `ask` as `call` does, in a second pool for calls of minutes, so that builds never block the others."""
        return await asyncio.get_running_loop().run_in_executor(
            self._get_pool("docker-build", BUILD_THREADS), self._ask, ask
        )

    def _get_pool(self, name: str, threads: int) -> ThreadPoolExecutor:
        with self._guard:
            if name not in self._pools:
                self._pools[name] = ThreadPoolExecutor(threads, thread_name_prefix=name)
            return self._pools[name]

    def _ask(self, ask: Callable[[RecordingClient], T]) -> T:
        """Run `ask` with the client in this thread, and translate its errors."""
        try:
            return ask(self._connect())
        except _LIBRARY as error:
            raise translate(error) from error

    async def require_answer(self) -> None:
        """Check that the daemon answers a ping now. Called after a timeout, to tell whether the daemon is the cause.

        Raises:
            DaemonUnavailableError: The daemon does not answer.
        """
        pool = self._get_pool("docker-ping", 4)
        asking = asyncio.get_running_loop().run_in_executor(pool, self._ask, lambda client: client.ping())
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not (await asyncio.wait([asking], timeout=ANSWER_SEC))[0]:
            raise DaemonUnavailableError(
                f"the Docker daemon did not answer within {ANSWER_SEC:g} s",
                remedy="look at the daemon's log and at the load of this host",
            )
        await asking

    async def call_entered(self, container: str, ask: Callable[[RecordingClient], T]) -> T:
        """Run `ask` as `call` does, for a call about a container, once no exec is entering the container.

        The daemon blocks some calls until a starting exec has entered, partly with a lock held without which the
        container can't be killed. So the wait is here, where it takes no thread.

        Args:
            container: Id of the container, as given to `open_exec`.
            ask: The call.

        Raises:
            SandboxError: An exec could not enter, and the container was killed for it.
        """
        entries = list(self._entries.get(asyncio.get_running_loop(), {}).get(container, ()))
        if entries:
            for entry in entries:
                entry.is_awaited.set()
            await asyncio.wait([entry.watch for entry in entries])
            for entry in entries:
                if not entry.watch.cancelled() and (error := entry.watch.exception()) is not None:
                    raise error
        return await self.call(ask)

    async def inspect(self, container: str) -> dict[str, Any]:
        """Return the `inspect` data of a container, once no exec is entering it.

        Raises:
            SandboxLostError: The container is missing.
            SandboxError: An exec could not enter, and the container was killed for it.
        """
        found: dict[str, Any] = await self.call_entered(container, lambda client: client.inspect_container(container))
        return found

    async def inspect_image(self, reference: str) -> dict[str, Any]:
        """Return the `inspect` data of an image. Raises `NotFoundError` if it is not on the daemon's host."""
        found: dict[str, Any] = await self.call(lambda client: client.inspect_image(reference))  # type: ignore[no-untyped-call]
        return found

    @contextlib.asynccontextmanager
    async def raise_pids_limit(self, container: str) -> AsyncIterator[None]:
        """Raise a container's pids limit in the block, so that a shell of the engine can enter and kill processes."""
        with contextlib.suppress(SandboxError):
            await self._limit_processes(container, PIDS_LIMIT + SPARE_PIDS)
        try:
            yield
        finally:
            # Processes beyond the restored limit keep running.
            with contextlib.suppress(SandboxError):
                await self._limit_processes(container, PIDS_LIMIT)

    async def _limit_processes(self, container: str, limit: int) -> None:
        def update(client: RecordingClient) -> None:
            # The library's own method doesn't know this limit.
            address = f"{client.base_url}/v{client.api_version}/containers/{container}/update"
            client.post(address, json={"PidsLimit": limit}, timeout=API_TIMEOUT).raise_for_status()

        await self.call_entered(container, update)

    async def open_exec(self, container: str, exec_id: str) -> ExecStream:
        """Start an exec and return its attached stream, while a task watches until it has entered the container.

        The watch is needed because the daemon answers before the exec has started.

        Args:
            container: Id of the container.
            exec_id: Id of the created exec.
        """
        containers, entry = self._entries.setdefault(asyncio.get_running_loop(), {}), _Entry()
        entries = containers.setdefault(container, set())
        entry.watch = asyncio.create_task(self._watch(container, exec_id, entry))
        entries.add(entry)

        def note_end(watch: asyncio.Task[None]) -> None:
            # A failed entry stays: `call_entered` raises its error for every later call about the container.
            if watch.cancelled() or watch.exception() is None:
                entries.discard(entry)
                if not entries:
                    containers.pop(container, None)

        entry.watch.add_done_callback(note_end)
        try:
            return await self.call(
                lambda client: ExecStream(client.exec_start(exec_id, socket=True), on_sign=entry.give_sign)
            )
        except BenchFlowError:
            entry.watch.cancel()
            raise

    async def _watch(self, container: str, exec_id: str, entry: _Entry) -> None:
        """Return once an exec has started or ended; kill the container if it can't enter.

        It can't if it was stopped on its way in, or has not entered within `ENTRY_SEC`.
        """
        started, entering, pause = time.monotonic(), AwakeDeadline(ENTRY_SEC), 0.002
        asking: asyncio.Future[dict[str, Any]] | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ENTRY_CHECK_SEC):
                    await entry.is_awaited.wait()
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, ENTRY_CHECK_SEC / 2)
            if asking is None:
                asking = asyncio.ensure_future(self.call(lambda client: client.exec_inspect(exec_id)))
                asking.add_done_callback(lambda done: done.cancelled() or done.exception())
            is_over = entering.is_over()
            # Docker 26 holds the exec's lock while it starts it, and answers after that.
            if (await asyncio.wait([asking], timeout=ENTRY_CHECK_SEC))[0]:
                try:
                    state = asking.result()
                except BenchFlowError:
                    return
                asking = None
                # The daemon sets `Running` when it begins to start an exec, and `Pid` once that has started.
                if state["Pid"] or state["ExitCode"] is not None:
                    return
                if not state["Running"]:
                    # The daemon was not asked to start it yet; the caller that was to ask may have been cancelled.
                    if is_over:
                        return
                    continue
            is_stopped = (
                time.monotonic() - started > ENTRY_CHECK_SEC
                and self.is_local
                and await asyncio.to_thread(has_stopped_entry, container)
            )
            if is_stopped or is_over:
                entry.is_refused = True
                await self.kill(container)
                raise SandboxError(
                    "the sandbox was ended: "
                    + ("a process in it stopped the one that entered it" if is_stopped else "it could not be entered"),
                    remedy="look for what sends SIGSTOP to other processes: a service of the task, or the agent",
                )

    async def kill(self, container: str) -> None:
        """Kill all processes of a container, stopped ones included. A missing or stopped container is success.

        It must be the first call about a container whose exec may be blocked: the daemon answers this one, unless
        another call waits for that exec. If it does not, the processes are killed past the daemon, which only root on
        its host can.

        Args:
            container: Id or name of the container.

        Raises:
            DaemonUnavailableError: The daemon does not answer at all.
            SandboxUnavailableError: The daemon did not kill the container in time.
        """
        loop = asyncio.get_running_loop()
        pool = self._get_pool("docker-kill", THREADS)
        killing = loop.run_in_executor(pool, self._ask, lambda client: client.kill(container))
        killing.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not await awake_wait(killing, KILL_SEC):
            if self.is_local:
                # The daemon lists containers without taking their locks.
                every = {"name": f"^/{container}$"}
                rows = await loop.run_in_executor(
                    pool, self._ask, lambda client: client.containers(all=True, filters=every)
                )
                # Control groups are matched by the full id in their names; a container's name could match others.
                for full_id in [row["Id"] for row in rows] or [container] * bool(_ID.fullmatch(container)):
                    await asyncio.to_thread(kill_all, full_id)
            if not await awake_wait(killing, UNLOCK_SEC):
                await self.require_answer()
                raise SandboxUnavailableError(
                    f"the Docker daemon did not kill the container {container} within {KILL_SEC + UNLOCK_SEC:g} s",
                    remedy="kill its processes on the daemon's host, as root (the name of their control group has the "
                    "container's id), or restart the daemon",
                )
        with contextlib.suppress(SandboxLostError, NotFoundError, ConflictError):
            await killing

    @property
    def is_local(self) -> bool:
        """Return whether DOCKER_HOST names a Unix socket: then the daemon's files are taken for this host's."""
        address = os.environ.get("DOCKER_HOST") or "unix:"
        return address.startswith("unix:")

    def close(self) -> None:
        """Cancel watches and close threads and connections. A later call makes new ones."""
        for containers in self._entries.values():
            for entry in [entry for entries in containers.values() for entry in entries]:
                # The tasks of a closed event loop can't be cancelled, and no longer run.
                if not entry.watch.done() and not entry.watch.get_loop().is_closed():
                    entry.watch.get_loop().call_soon_threadsafe(entry.watch.cancel)
        with self._guard:
            for pool in self._pools.values():
                pool.shutdown(wait=False, cancel_futures=True)
            self._pools.clear()
            if self._client is not None:
                self._client.close()
            self._client = None

    def _connect(self) -> RecordingClient:
        """Return the client, connected on first use."""
        with self._connecting:
            if self._client is None:
                # "auto" asks the daemon once, here; every later call goes to that version without asking.
                options: dict[str, Any] = {**kwargs_from_env()}
                self._client = RecordingClient(version="auto", timeout=API_TIMEOUT, max_pool_size=THREADS, **options)
            return self._client
