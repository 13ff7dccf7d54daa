"""The daemon's API: one client, off the event loop, and the one table that translates its errors.

Nothing else in the provider catches an exception of `docker` or `requests`.
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
from benchflow.planes.sandbox.docker.host_processes import has_stopped_entry, kill_all
from benchflow.planes.sandbox.docker.stream import Stream
from benchflow.planes.sandbox.docker.translation import API_TIMEOUT, Conflict, NotFound, translate
from benchflow.planes.sandbox.timeouts import AwakeDeadline, awake_wait

T = TypeVar("T")

THREADS = 32
"""Calls to the daemon that may wait at the same time; each holds one connection."""

BUILD_THREADS = 64

PIDS_LIMIT = 4096
"""Most processes and threads of a container."""

SPARE_PIDS = 256
"""Processes and threads beyond the limit, while a shell of the engine's enters: the runtime's program has threads, too.
"""

ENTRY_CHECK_SEC = 1.0
"""Seconds between two looks at whether the process that enters a container was stopped there. Many times what entering
takes on an idle host.
"""

ENTRY_SEC = 300.0
"""Seconds that entering a container may take where nothing is seen to have been stopped."""

ANSWER_SEC = 3.0
"""Seconds that the daemon has for the one call that needs nothing but the daemon."""

KILL_SEC = 2.0
"""Seconds that the daemon has to kill a container before its processes are killed past the daemon."""

UNLOCK_SEC = 20.0
"""Seconds for the daemon to see that they are dead."""

_ID = re.compile("[0-9a-f]{64}")

# The library reads long answers past `requests`, which would have translated urllib3's errors.
_LIBRARY = (docker_errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)


class RecordingClient(docker.APIClient):
    """The library's client, which lets a long response be ended from another thread."""

    def __init__(self, **options: Any) -> None:
        self.last = threading.local()
        super().__init__(**options)

    def post(self, url: str | bytes, *args: Any, **options: Any) -> requests.Response:
        response = super().post(url, *args, **options)
        self.last.response = response
        return response


class _Entry:
    """An execution that may not have entered its container yet.

    is_awaited: somebody waits for that. is_refused: the container is being killed for it.
    """

    def __init__(self) -> None:
        self.is_awaited = asyncio.Event()
        self.is_refused = False
        self.watch: asyncio.Task[None]

    def give_sign(self) -> None:
        """End the watch, unless the sign is what the daemon says of an execution that the watch has ended."""
        if not self.is_refused:
            self.watch.cancel()


class Engine:
    """The daemon, asked from coroutines. Connects on first use, so that making one never fails."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # Not the guard, which the event loop takes: a frozen daemon holds up who connects to it.
        self._connecting = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._client: RecordingClient | None = None
        self._entries: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, set[_Entry]]] = (
            weakref.WeakKeyDictionary()
        )

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
        except _LIBRARY as error:
            raise translate(error) from error

    async def require_answer(self) -> None:
        """Return if the daemon answers now: what has run out of time may have done so for want of an answer.

        Raises:
            DaemonUnavailableError: It is frozen, or gone.
        """
        pool = self._pool("docker-ping", 4)
        asking = asyncio.get_running_loop().run_in_executor(pool, self._ask, lambda client: client.ping())
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not (await asyncio.wait([asking], timeout=ANSWER_SEC))[0]:
            raise DaemonUnavailableError(
                f"the Docker daemon did not answer within {ANSWER_SEC:g} s",
                remedy="look at the daemon's log and at the load of this host",
            )
        await asking

    async def about(self, container: str, ask: Callable[[RecordingClient], T]) -> T:
        """Run `ask` as `call` does, for what the daemon keeps waiting for as long as a command of the container starts.

        Some of it waits with a lock without which the container can't be killed. So it waits here, and costs no thread.

        Raises:
            SandboxError: A command could not start, and the container was killed for it.
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

    @contextlib.asynccontextmanager
    async def room_for_more(self, container: str) -> AsyncIterator[None]:
        """Let a container have more processes, so that one of the engine's can enter to kill some."""
        with contextlib.suppress(SandboxError):
            await self._limit_processes(container, PIDS_LIMIT + SPARE_PIDS)
        try:
            yield
        finally:
            # Those beyond the limit stay.
            with contextlib.suppress(SandboxError):
                await self._limit_processes(container, PIDS_LIMIT)

    async def _limit_processes(self, container: str, limit: int) -> None:
        def update(client: RecordingClient) -> None:
            # The library's own method doesn't know this limit.
            address = f"{client.base_url}/v{client.api_version}/containers/{container}/update"
            client.post(address, json={"PidsLimit": limit}, timeout=API_TIMEOUT).raise_for_status()

        await self.about(container, update)

    async def open_exec(self, container: str, exec_id: str) -> Stream:
        """Start an execution, attached to its streams. It is watched until it has entered the container.

        The daemon answers before the execution has started.
        """
        containers, entry = self._entries.setdefault(asyncio.get_running_loop(), {}), _Entry()
        entries = containers.setdefault(container, set())
        entry.watch = asyncio.create_task(self._watch(container, exec_id, entry))
        entries.add(entry)

        def note_end(watch: asyncio.Task[None]) -> None:
            # A failure stays, to be what is said of the container from now on.
            if watch.cancelled() or watch.exception() is None:
                entries.discard(entry)
                if not entries:
                    containers.pop(container, None)

        entry.watch.add_done_callback(note_end)
        try:
            return await self.call(
                lambda client: Stream(client.exec_start(exec_id, socket=True), on_sign=entry.give_sign)
            )
        except BenchFlowError:
            entry.watch.cancel()
            raise

    async def _watch(self, container: str, exec_id: str, entry: _Entry) -> None:
        """Return once an execution has started, or ended. Kill the container when a process in it holds that up."""
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
            # Docker 26 holds the execution's lock while it starts it, and answers after that.
            if (await asyncio.wait([asking], timeout=ENTRY_CHECK_SEC))[0]:
                try:
                    state = asking.result()
                except BenchFlowError:
                    return
                asking = None
                # The daemon sets the first when it begins to start it, the other when it has.
                if state["Pid"] or state["ExitCode"] is not None:
                    return
                if not state["Running"]:
                    # The daemon was not asked to start it yet; whoever was about to may have been cancelled.
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
        """Kill all processes of a container, whatever they have stopped. Not running, or missing, is success.

        It must be the first call about a container of which a start may be held up: the daemon answers this one, unless
        another waits for that start. Then the processes are killed past the daemon, which only root can, on its host.

        Args:
            container: Its id or its name.
        """
        loop = asyncio.get_running_loop()
        pool = self._pool("docker-kill", THREADS)
        killing = loop.run_in_executor(pool, self._ask, lambda client: client.kill(container))
        killing.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not await awake_wait(killing, KILL_SEC):
            if self.is_local:
                # The list of containers is answered without their locks.
                every = {"name": f"^/{container}$"}
                rows = await loop.run_in_executor(
                    pool, self._ask, lambda client: client.containers(all=True, filters=every)
                )
                # Control groups have ids in their names; a part of another group's name may be like this one's.
                for full_id in [row["Id"] for row in rows] or [container] * bool(_ID.fullmatch(container)):
                    await asyncio.to_thread(kill_all, full_id)
            if not await awake_wait(killing, UNLOCK_SEC):
                await self.require_answer()
                raise SandboxUnavailableError(
                    f"the Docker daemon did not kill the container {container} within {KILL_SEC + UNLOCK_SEC:g} s",
                    remedy="kill its processes on the daemon's host, as root (the name of their control group has the "
                    "container's id), or restart the daemon",
                )
        with contextlib.suppress(SandboxLostError, NotFound, Conflict):
            await killing

    @property
    def is_local(self) -> bool:
        """Whether the daemon sees the files of this host, as far as its address tells."""
        address = os.environ.get("DOCKER_HOST") or "unix:"
        return address.startswith("unix:")

    def close(self) -> None:
        """Let go of threads and connections. A later call makes new ones."""
        for containers in self._entries.values():
            for entry in [entry for entries in containers.values() for entry in entries]:
                # A closed loop runs no watch any more.
                if not entry.watch.done() and not entry.watch.get_loop().is_closed():
                    entry.watch.get_loop().call_soon_threadsafe(entry.watch.cancel)
        with self._guard:
            for pool in self._pools.values():
                pool.shutdown(wait=False, cancel_futures=True)
            self._pools.clear()
            if self._client is not None:
                self._client.close()
            self._client = None

    def _connected(self) -> RecordingClient:
        with self._connecting:
            if self._client is None:
                # "auto" asks the daemon once, here; every later call goes to that version without asking.
                options: dict[str, Any] = {**kwargs_from_env()}
                self._client = RecordingClient(version="auto", timeout=API_TIMEOUT, max_pool_size=THREADS, **options)
            return self._client
