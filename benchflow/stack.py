"""The embedded stack as its clients see it: a real Temporal server, a worker, and the supervisor of both.

`ensure_stack()` finds or starts it and returns within a second or two. It outlives the command that started it, and
stops by itself when it has no open work and no client has used it for a while.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from random import SystemRandom
from typing import Literal

from benchflow.contracts.base import Model
from benchflow.contracts.operator_options import WorkerOptions
from benchflow.errors import ConfigError, StackError
from benchflow.host import make_state_private
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.log_files import open_log
from benchflow.paths import StatePaths
from benchflow.process_identity import is_alive, read_start_time

PORT_VARIABLE = "BENCHFLOW_STACK_PORT"
"""Environment variable that requests a port of the host for the server, which then has no namespace of its own."""
UI_PORT_VARIABLE = "BENCHFLOW_UI_PORT"
"""Environment variable that requests a port for the Web UI."""
IDLE_VARIABLE = "BENCHFLOW_STACK_IDLE_SEC"
"""Environment variable: seconds without use after which an idle stack stops."""
SYNCHRONOUS_VARIABLE = "BENCHFLOW_STACK_SYNCHRONOUS"
"""Environment variable: `normal`, or `full` for a database that loses nothing in a power cut but waits for the disk at
each commit.
"""
PORTS = range(10_000, 32_768)
"""Ports that `find_free_port` chooses from: below those that Linux uses for outgoing connections. A connection could
take one of those before the server listens there, or while it is restarted.
"""
ENCLOSED_PORT = 7233
"""Port of the server in a network namespace where nothing else listens: the default of Temporal's tools."""
START_TIMEOUT_SEC = 60.0
STOP_TIMEOUT_SEC = 60.0


class StackProcess(Model):
    """Process identified by pid and start time, so that a reused pid is not mistaken for it."""

    pid: int
    started: int | None = None

    @classmethod
    def of(cls, pid: int) -> StackProcess:
        """Return the process that has this pid now."""
        return cls(pid=pid, started=read_start_time(pid))

    @property
    def alive(self) -> bool:
        """Return whether it still runs."""
        return is_alive(self.pid, self.started)


class WorkerWanted(Model):
    """Worker that should run: identified by its interpreter and the digest of the package."""

    python: str
    digest: str
    pythonpath: str = ""


class StackRecord(Model):
    """State of the stack, as recorded by its supervisor."""

    state: Literal["starting", "running", "stopping", "failed"]
    supervisor: StackProcess
    port: int
    """Port of the server: in its network namespace, or on loopback if it has none."""
    ui_port: int
    """Port on loopback of the Web UI's door, or of the Web UI itself if the server has no namespace."""
    namespace: str
    server: StackProcess | None = None
    enclosure: StackProcess | None = None
    """Process that holds the server's network namespace and relays connections into it; None without one."""
    socket: str | None = None
    """Path of the socket through which clients connect to the address; None if the address is on loopback."""
    exposure: str | None = "an earlier version has started it"
    """Reason why every user of this host can reach the server and its Web UI; None if only the stack's user can. The
    default stands for records of earlier versions.
    """
    door: StackProcess | None = None
    """Process of the Web UI's door; None until a browser first connects."""
    worker: StackProcess | None = None
    wanted: WorkerWanted | None = None
    """Identity of `worker`; None before the first one runs."""
    restarts: dict[str, int] = {}
    """Number of restarts by component."""
    error: str | None = None
    """Error with which the supervisor failed, if it did."""

    @property
    def address(self) -> str:
        """Return host:port of the server."""
        return f"127.0.0.1:{self.port}"

    @property
    def ui(self) -> str:
        """Return the URL of the Web UI, without the token."""
        return f"http://127.0.0.1:{self.ui_port}"


# --- for clients -----------------------------------------------------------------------------------------


@functools.cache
def compute_package_digest() -> str:
    """Return the digest of this package's code and data, which identifies a worker."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".toml")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def describe_own_worker() -> WorkerWanted:
    """Return the worker that runs the code of this process."""
    path = os.pathsep.join(p for p in (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")) if p)
    return WorkerWanted(python=sys.executable, digest=compute_package_digest(), pythonpath=path)


def read_wanted(paths: StatePaths) -> WorkerWanted:
    """Return the worker that was last requested; if none was, that of this process."""
    try:
        return WorkerWanted.model_validate_json(paths.worker_wanted.read_bytes())
    except (FileNotFoundError, ValueError):
        return describe_own_worker()


def read_record(paths: StatePaths) -> StackRecord | None:
    """Return the record of the stack, running or not; None if there is no readable one."""
    try:
        return StackRecord.model_validate_json(paths.stack_record.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def find_running(paths: StatePaths) -> StackRecord | None:
    """Return the record of the stack if its supervisor is alive; else None."""
    record = read_record(paths)
    return record if record is not None and record.supervisor.alive else None


def read_ui_login(paths: StatePaths, record: StackRecord) -> str:
    """Return the URL of the Web UI with its token, if it needs one."""
    place = f"{record.ui}/namespaces/{record.namespace}/workflows"
    if record.exposure is not None:
        return place
    try:
        return f"{place}?token={paths.ui_token.read_text().strip()}"
    except FileNotFoundError:
        # The stack is starting for the first time; the token is not written yet.
        return place


def make_ui_token(paths: StatePaths) -> str:
    """Return the token of the Web UI. It is generated once, so that a bookmark outlives restarts."""
    try:
        found = paths.ui_token.read_text().strip()
    except FileNotFoundError:
        found = ""
    if not found:
        found = secrets.token_urlsafe(32)
        write_atomic(paths.ui_token, found.encode(), mode=0o600)
    return found


def was_stopped(paths: StatePaths) -> bool:
    """Return whether the stack was stopped on purpose, and not requested since."""
    return paths.stack_stopped.exists()


def ensure_stack(paths: StatePaths | None = None) -> StackRecord:
    """Return the record of the running stack, with a worker of this code; start stack and worker if need be.

    Args:
        paths: State directory; None for the default one.

    Raises:
        StackError: It does not start in time.
        StackError: A requested port is in use.
        ConfigError: A setting in the environment is invalid.
    """
    paths = paths or StatePaths.default()
    with raise_storage_errors(paths.root):
        make_state_private(paths)
        paths.last_used.touch(mode=0o600)
        paths.stack_stopped.unlink(missing_ok=True)
    deadline = time.monotonic() + START_TIMEOUT_SEC
    child: subprocess.Popen[bytes] | None = None
    asked = False
    while time.monotonic() < deadline:
        record = find_running(paths)
        if record is not None and record.state == "running":
            if record.wanted == describe_own_worker():
                return record
            asked = asked or _ask_for_worker(paths, record)
        if record is None and (child is None or child.poll() is not None):
            # A supervisor that ends with 0 found another one running, which may be gone by now: then start one again.
            if child is not None and child.returncode:
                _raise_start_failure(paths)
            check_port(PORT_VARIABLE)
            check_port(UI_PORT_VARIABLE)
            read_synchronous()
            # The worker inherits this environment; with an invalid value, it would exit at each start.
            WorkerOptions.from_environment(os.environ)
            _write_wanted(paths)
            paths.stack_stopped.unlink(missing_ok=True)
            child = _spawn_supervisor(paths)
        time.sleep(0.02)
    raise StackError(
        f"the embedded stack did not start within {START_TIMEOUT_SEC:.0f} s",
        file=str(paths.logs),
        remedy="read the logs there; bench stack stop; try again",
    )


def stop_stack(paths: StatePaths | None = None) -> bool:
    """Stop the stack and wait until it is gone. Return False if none ran.

    Args:
        paths: State directory; None for the default one.

    Raises:
        StackError: The supervisor does not end in time.
    """
    paths = paths or StatePaths.default()
    record = find_running(paths)
    if record is None:
        return False
    # Clients that wait for a job restart a stack that has died; this file tells them that it was stopped on purpose.
    paths.stack_stopped.touch(mode=0o600)
    with contextlib.suppress(ProcessLookupError):
        os.kill(record.supervisor.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_SEC
    while record.supervisor.alive:
        if time.monotonic() > deadline:
            raise StackError("the supervisor does not stop", remedy=f"kill -9 {record.supervisor.pid}")
        time.sleep(0.02)
    return True


def check_port(variable: str) -> None:
    """Raise `StackError` if the port that an environment variable requests is in use."""
    port = read_wanted_port(variable)
    if port is not None and not is_free(port):
        raise StackError(
            f"port {port} is taken by another process",
            key=variable,
            remedy=f"unset {variable} to let a free port be chosen, or name another",
        )


def read_wanted_port(variable: str) -> int | None:
    """Return the port that an environment variable requests; None if it is not set. Raise `ConfigError` for no port."""
    text = os.environ.get(variable)
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ConfigError(f"{text!r} is not a port", key=variable, remedy="a number from 1 to 65535")
    return int(text)


def read_synchronous() -> str:
    """Return SQLite's `synchronous` setting for the server's database. Raise `ConfigError` for an invalid one."""
    text = os.environ.get(SYNCHRONOUS_VARIABLE) or "normal"
    if text not in ("normal", "full"):
        raise ConfigError(f"{text!r} is neither", key=SYNCHRONOUS_VARIABLE, remedy="use normal or full, or unset it")
    return text


def find_free_port(*, other_than: int | None = None) -> int:
    """Return a random port of 127.0.0.1 in `PORTS` that is not in use."""
    first = SystemRandom().randrange(len(PORTS))
    ports = chain(PORTS[first:], PORTS[:first])
    return next(port for port in ports if port != other_than and is_free(port))


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _spawn_supervisor(paths: StatePaths) -> subprocess.Popen[bytes]:
    with raise_storage_errors(paths.logs):
        output = open_log(paths.logs / "supervisor.out")
    env = {key: value for key, value in os.environ.items() if not key.startswith("TEMPORAL_")}
    env["BENCHFLOW_STATE_DIR"] = str(paths.root)
    env["PYTHONPATH"] = describe_own_worker().pythonpath
    with output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "benchflow.supervisor"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=env,
        )


def _raise_start_failure(paths: StatePaths) -> None:
    """Raise the recorded error of a supervisor that failed to start; return if another supervisor has taken over."""
    record = read_record(paths)
    if record is not None and record.state == "failed":
        raise StackError(record.error or "the supervisor ended", file=str(paths.logs), remedy="read the logs there")


def _write_wanted(paths: StatePaths) -> None:
    write_atomic(paths.worker_wanted, describe_own_worker().model_dump_json().encode())


def _ask_for_worker(paths: StatePaths, record: StackRecord) -> bool:
    """Request a worker of this code, which replaces and drains the running one. Return True."""
    _write_wanted(paths)
    with contextlib.suppress(ProcessLookupError):
        os.kill(record.supervisor.pid, signal.SIGHUP)
    return True
