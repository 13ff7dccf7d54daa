"""The supervisor of the embedded stack: runs the server and the worker, restarts them, stops when idle.

One per state directory: it holds `stack.lock` for as long as it lives, and records its state in `stack.json`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import secrets
import signal
import socket
import sys
import time

import structlog

from benchflow.errors import GatewayError, StackError, StoreError
from benchflow.gateway.gateway_process import (
    GATEWAY_ROUND_SEC,
    LOOK_AT_GATEWAY_SEC,
    ensure_gateway,
    has_rollouts,
    is_running,
    stop_gateway,
)
from benchflow.host import make_state_private
from benchflow.host_files import hold_lock, write_atomic
from benchflow.idle import IdleWatch
from benchflow.log import configure_logging
from benchflow.paths import PRIVATE_UMASK, StatePaths
from benchflow.process_identity import read_start_time
from benchflow.rounds import repeat
from benchflow.stack import (
    ENCLOSED_PORT,
    IDLE_VARIABLE,
    PORT_VARIABLE,
    STOP_TIMEOUT_SEC,
    UI_PORT_VARIABLE,
    StackProcess,
    StackRecord,
    WorkerWanted,
    check_port,
    find_free_port,
    is_free,
    make_ui_token,
    read_record,
    read_wanted,
    read_wanted_port,
    was_stopped,
)
from benchflow.stack_processes import Backoff, end, raise_open_files, spawn
from benchflow.temporal_server import (
    FailedStartError,
    InterruptedStartError,
    NamespaceRefusedError,
    Server,
    remove_unfinished_database,
    start_server,
    wait_until_ready,
)

# Keeps memory level over thousands of rollouts, measured by benchmarks/perf/scale.py: without these the worker's
# allocator retains its peak. The environment overrides them.
FLAT_WORKER = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}

IDLE_ROUND_SEC = 60.0
"""Timeout of a request for the server's open work, in seconds."""
MAX_FIRST_STARTS = 3
"""Maximum number of servers that may end by themselves before one responds. Then clients that wait for the stack get
the error.
"""
DOOR_BACKLOG = 512
"""Maximum number of connections that wait while the Web UI's door starts."""

log = structlog.get_logger("benchflow.supervisor")


class Supervisor:
    """Supervisor of server, worker, gateway and door: restarts those that die, replaces the worker on request."""

    def __init__(self, paths: StatePaths) -> None:
        """Kill orphans of an earlier supervisor, choose the ports, and make the record."""
        self.paths = paths
        self.stopping = asyncio.Event()
        self.wanted_changed = asyncio.Event()
        previous = read_record(paths)
        # Orphans first, because they hold the ports.
        _end_orphans(previous)
        self._previous = previous
        self._door_listener: socket.socket | None = None
        self._door_is_open = asyncio.Event()
        self._came_up = False
        self._failed_starts = 0
        self._worker: asyncio.subprocess.Process | None = None
        self._is_recorded = False
        self._gateway_backoff = Backoff()
        port = read_wanted_port(PORT_VARIABLE)
        self.record = StackRecord(
            state="starting",
            supervisor=StackProcess.of(os.getpid()),
            port=ENCLOSED_PORT if port is None else port,
            ui_port=_choose_port(UI_PORT_VARIABLE, previous.ui_port if previous else None, other_than=port),
            namespace="benchflow",
            # A requested port is one of the host, so the server gets no namespace of its own.
            socket=str(paths.server_socket) if port is None else None,
            exposure=None if port is None else f"{PORT_VARIABLE} is set",
        )

    async def run(self) -> None:
        """Run the stack until it is stopped or idle, then end its processes. Raise if it does not start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self.wanted_changed.set)
        self._write(state="starting")

        def is_fatal(error: Exception) -> bool:
            # Until it is up, the client that started it waits for its error. Once work relies on it, it never gives up.
            return not self._came_up

        idle = IdleWatch(self.paths, float(os.environ.get(IDLE_VARIABLE) or 900))

        async def stop_if_idle() -> None:
            if await idle.is_idle(self.record):
                log.info("idle: stopping")
                self.stopping.set()

        # The worker ends first: it hands its activities over, which needs the server.
        keepers = [
            repeat("idle", stop_if_idle, every_sec=min(15.0, max(0.2, idle.limit_sec / 4)), limit_sec=IDLE_ROUND_SEC),
            repeat("door", self._keep_door, every_sec=1.0),
            repeat("worker", self._keep_worker, every_sec=1.0, is_final=is_fatal),
            repeat("gateway", self._keep_gateway, every_sec=LOOK_AT_GATEWAY_SEC, limit_sec=GATEWAY_ROUND_SEC),
            repeat("server", self._keep_server, every_sec=1.0, is_final=is_fatal),
        ]
        tasks = [asyncio.create_task(each) for each in keepers]
        stop = asyncio.create_task(self.stopping.wait())
        done, _ = await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        with contextlib.suppress(StoreError):
            self._write(state="stopping")
        for task in (stop, *tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        with contextlib.suppress(GatewayError, OSError):
            await stop_gateway(self.paths)
        if self._door_listener is not None:
            self._door_listener.close()
        for ended in done - {stop}:
            ended.result()

    # --- the server ---

    async def _keep_server(self) -> None:
        """Run the server, restarted whenever it has ended. Raise `StackError` if the first start fails."""
        backoff = Backoff()
        while True:
            backoff.started()
            try:
                await self._run_server()
            except StackError as error:
                if not self._came_up and not self._may_start_again(error):
                    raise
                log.warning("the server did not start", error=str(error))
            self._count_restart("server")
            await asyncio.sleep(backoff.next())

    def _may_start_again(self, error: StackError) -> bool:
        """Return whether to retry the start of a server that failed before the first one was up."""
        if isinstance(error, FailedStartError):
            # One of its ports may have been taken between its choice and its use, by any process on loopback, or by its
            # own connections in a namespace: the dev server panics then, with status 2.
            self._failed_starts += 1
            remove_unfinished_database(self.paths.database)
            return self._failed_starts < MAX_FIRST_STARTS
        return isinstance(error, InterruptedStartError)

    async def _run_server(self) -> None:
        """Start a server and wait until it has ended. Raise `StackError` if it does not come up."""
        server = await self._start_server()
        self._write(server=server.server, enclosure=server.enclosure)
        try:
            if self.record.exposure is None and self._door_listener is None:
                self._open_door()
            await wait_until_ready(server, self.record)
            self._came_up = True
            self._write(state="running")
            # Freeze modules that were imported meanwhile, as in `main`.
            gc.freeze()
            await server.process.wait()
            log.warning("the server ended", return_code=server.process.returncode)
        finally:
            await server.end()

    async def _start_server(self) -> Server:
        """Start the server: enclosed, or else on loopback, where every user of the host can connect to it."""
        if self.record.socket is not None:
            try:
                return await start_server(self.paths, self.record)
            except NamespaceRefusedError as error:
                # Clients rely on its enclosure once it has been up.
                if self._came_up:
                    raise
                log.warning("every user of this host can reach the server", reason=error.message)
                previous = self._previous
                port = previous.port if previous is not None and previous.socket is None else None
                port = _choose_port(PORT_VARIABLE, port, other_than=self.record.ui_port)
                self._write(port=port, socket=None, exposure=error.message)
        self._leave_taken_ports()
        return await start_server(self.paths, self.record)

    def _leave_taken_ports(self) -> None:
        """Choose other loopback ports for those that are in use. Raise `StackError` if one was requested."""
        check_port(PORT_VARIABLE)
        check_port(UI_PORT_VARIABLE)
        if not is_free(self.record.port):
            port = find_free_port(other_than=self.record.ui_port)
            log.warning("the server's port was taken by another process", port=self.record.port, instead=port)
            self._write(port=port)
            # The worker would look for the server at the old port to hand over its work; the next worker takes it over.
            if self._worker is not None and self._worker.returncode is None:
                self._worker.kill()
        if not is_free(self.record.ui_port):
            self._write(ui_port=find_free_port(other_than=self.record.port))

    # --- the Web UI's door ---

    def _open_door(self) -> None:
        """Listen on the Web UI's port; on another one if that was taken since it was chosen."""
        make_ui_token(self.paths)
        try:
            self._door_listener = _listen(self.record.ui_port)
        except OSError:
            check_port(UI_PORT_VARIABLE)
            self._write(ui_port=find_free_port())
            self._door_listener = _listen(self.record.ui_port)
        self._door_is_open.set()

    async def _keep_door(self) -> None:
        """Start the door's process on the first connection, and restart it on the next one after it has ended.

        Every user of the host can connect to it, and flood it. So it is a process of its own, and this process accepts
        none of its connections.
        """
        await self._door_is_open.wait()
        assert self._door_listener is not None
        run = secrets.token_hex(16)
        command = [sys.executable, "-m", "benchflow.door", str(self._door_listener.fileno()), run]
        descriptors = (self._door_listener.fileno(),)
        backoff = Backoff()
        while True:
            await _wait_until_readable(self._door_listener)
            backoff.started()
            try:
                door = await spawn(command, self.paths.logs / "door.out", dict(os.environ), descriptors=descriptors)
            except OSError as error:
                log.warning("the Web UI's door did not start", error=str(error))
            else:
                self._write(door=StackProcess.of(door.pid))
                try:
                    await door.wait()
                finally:
                    await end(door, 0)
                log.warning("the Web UI's door ended", return_code=door.returncode)
                self._count_restart("door")
            await asyncio.sleep(backoff.next())

    # --- the worker ---

    async def _keep_worker(self) -> None:
        """Run the requested worker, restarted when it has ended, and replaced when another one is requested."""
        backoff = Backoff()
        try:
            while True:
                wanted = read_wanted(self.paths)
                if self._worker is None or self._worker.returncode is not None or wanted != self.record.wanted:
                    backoff.started()
                    older, newer = self._worker, await self._start_worker(wanted)
                    if older is not None and older.returncode is None:
                        await self._ready(newer)
                        if newer.returncode is not None and older.returncode is None:
                            # The older worker stays: agents need one that runs.
                            log.warning("a new worker ended before it was ready", return_code=newer.returncode)
                            self._count_restart("worker")
                            await asyncio.sleep(max(1.0, backoff.next()))
                            continue
                        await end(older, STOP_TIMEOUT_SEC)
                    self._worker = newer
                    # Only now: the client that requested this worker waits until no older code takes its work.
                    self._write(worker=StackProcess.of(self._worker.pid), wanted=wanted)
                current = self._worker
                ended = asyncio.create_task(current.wait())
                changed = asyncio.create_task(self.wanted_changed.wait())
                try:
                    await asyncio.wait({ended, changed}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    ended.cancel()
                    changed.cancel()
                self.wanted_changed.clear()
                if current.returncode is not None:
                    log.warning("the worker ended", return_code=current.returncode)
                    self._count_restart("worker")
                    await asyncio.sleep(backoff.next())
        except asyncio.CancelledError:
            if self._worker is not None:
                await end(self._worker, STOP_TIMEOUT_SEC / 2)
            raise

    # --- the gateway ---

    async def _keep_gateway(self) -> None:
        """Restart the gateway if it has ended: one round. A worker starts it first, when an agent needs it."""
        if not self._is_recorded:
            self._write()
        if has_rollouts(self.paths) and not is_running(self.paths):
            log.warning("the model gateway does not run")
            self._count_restart("gateway")
            await asyncio.sleep(self._gateway_backoff.next())
            self._gateway_backoff.started()
            await ensure_gateway(self.paths)

    async def _start_worker(self, wanted: WorkerWanted) -> asyncio.subprocess.Process:
        env = FLAT_WORKER | dict(os.environ) | {"PYTHONPATH": wanted.pythonpath}
        command = [wanted.python, "-P", "-m", "benchflow.worker", "--embedded"]
        return await spawn(command, self.paths.logs / "worker.out", env)

    async def _ready(self, worker: asyncio.subprocess.Process) -> None:
        """Wait until a new worker polls, or ends, so that the older one is not drained before there is a successor."""
        mark = self.paths.running / f"{worker.pid}-{read_start_time(worker.pid)}" / "ready"
        deadline = time.monotonic() + STOP_TIMEOUT_SEC
        while not mark.exists() and worker.returncode is None and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    # --- processes and the record ---

    def _count_restart(self, name: str) -> None:
        restarts = {**self.record.restarts, name: self.record.restarts.get(name, 0) + 1}
        self._write(restarts=restarts)

    def _write(self, **changes: object) -> None:
        self.record = self.record.model_copy(update=changes)
        try:
            write_atomic(self.paths.stack_record, self.record.model_dump_json(indent=1).encode(), mode=0o600)
            self._is_recorded = True
        except StoreError:
            if not self._came_up:
                raise
            # A full disk. Processes stay supervised, and the record is written when there is space again.
            self._is_recorded = False


def _choose_port(variable: str, previous: int | None, *, other_than: int | None = None) -> int:
    wanted = read_wanted_port(variable)
    if wanted is not None:
        return wanted
    return previous if previous is not None and is_free(previous) else find_free_port(other_than=other_than)


def _listen(port: int) -> socket.socket:
    """Return a socket that listens on a port of 127.0.0.1. Raise `OSError` if it is in use."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(DOOR_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


async def _wait_until_readable(listener: socket.socket) -> None:
    """Wait until a connection can be accepted."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(listener, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listener)


def _end_orphans(previous: StackRecord | None) -> None:
    """Kill the children of an earlier supervisor that was killed itself and could not end them."""
    for process in (previous.door, previous.worker, previous.enclosure, previous.server) if previous else ():
        while process is not None and process.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.01)


def main() -> int:
    """Run the supervisor, unless one runs, or the stack was stopped meanwhile. Return the exit status."""
    # Imported objects live as long as the process: freeze them, so that no collection scans them. The last collection,
    # at exit, would take longer than all else.
    gc.freeze()
    os.umask(PRIVATE_UMASK)
    raise_open_files()
    paths = StatePaths.default()
    make_state_private(paths)
    with hold_lock(paths.stack_lock, wait_sec=0) as lock:
        # Without the lock: one runs. Stopped: several were started at once; the first one has run and has been stopped
        # before this one got the lock.
        return 0 if lock is None or was_stopped(paths) else _run(paths)


def _run(paths: StatePaths) -> int:
    """Run the supervisor, whose lock this process holds, and return the exit status."""
    configure_logging(file=paths.logs / "supervisor.log")
    supervisor: Supervisor | None = None
    try:
        supervisor = Supervisor(paths)
        asyncio.run(supervisor.run())
        return 0
    except Exception as error:
        log.exception("the supervisor failed")
        if supervisor is not None:
            failed = supervisor.record.model_copy(update={"state": "failed", "error": str(error)})
            write_atomic(paths.stack_record, failed.model_dump_json(indent=1).encode(), mode=0o600)
        return 1


if __name__ == "__main__":
    sys.exit(main())
