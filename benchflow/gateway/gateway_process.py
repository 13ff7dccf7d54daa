"""Start and stop of the gateway of a state directory: one process, which outlives the process that started it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import benchflow
from benchflow.errors import GatewayError, GatewayUnavailableError
from benchflow.host_files import lock, open_fd, raise_storage_errors
from benchflow.log_files import open_log, read_tail
from benchflow.paths import StatePaths

if TYPE_CHECKING:
    from benchflow.gateway.control import Info
    from benchflow.gateway.gateway_client import GatewayClient

START_SEC = 120.0
STOP_SEC = 60.0

LOOK_AT_GATEWAY_SEC = 0.5
"""Seconds between checks that the gateway runs, by the supervisor or by a worker of a cluster."""

GATEWAY_ROUND_SEC = START_SEC + STOP_SEC + 30
"""Seconds after which such a check is taken to hang: it may stop an outdated gateway and start another."""

_LOOK_EVERY = 0.02

# Memory stays level over many calls: without these settings glibc keeps freed memory. The environment wins.
FLAT = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}


async def ensure_gateway(paths: StatePaths) -> Info:
    """Start the gateway unless it runs, wait until it responds, and return its process and protocol.

    A gateway of an older version is replaced: the new one restores its rollouts from their files and records.

    Raises:
        GatewayUnavailableError: It does not start, does not respond, or is of an older version with calls in flight.
    """
    # Imported here: the supervisor imports this module and rarely calls this, and an HTTP client is a third of the
    # time that it takes to start.
    from benchflow.gateway.control import PROTOCOL
    from benchflow.gateway.gateway_client import GatewayClient

    client = GatewayClient(paths, patience=0.0)
    deadline = time.monotonic() + START_SEC
    started: subprocess.Popen[bytes] | None = None
    while time.monotonic() < deadline:
        try:
            info = await client.ping()
        except GatewayUnavailableError:
            info = None
        if info is not None and not info.stopping:
            if info.protocol >= PROTOCOL:
                return info
            await _stop_outdated(paths, client)
        if not is_running(paths) and (started is None or started.poll() is not None):
            if started is not None and started.returncode:
                break
            started = start_gateway(paths)
        await asyncio.sleep(_LOOK_EVERY)
    raise GatewayUnavailableError(
        "the model gateway does not start",
        file=str(paths.logs / "gateway.out"),
        log_tail=read_tail(paths.logs / "gateway.out"),
    )


async def _stop_outdated(paths: StatePaths, client: GatewayClient) -> None:
    """Stop a gateway of an older version. Raise `GatewayUnavailableError` if that would break a call."""
    busy = [status.id for status in await client.statuses() if status.in_flight or status.waiting]
    if busy:
        raise GatewayUnavailableError(
            f"a model gateway of an older version runs, with calls of {busy[0]} under way",
            file=str(paths.gateway.root),
            remedy="wait for them to end, or run `bench stack stop`",
        )
    await stop_gateway(paths)


def start_gateway(paths: StatePaths) -> subprocess.Popen[bytes]:
    """Start a gateway process in a session of its own. It exits by itself if another one runs."""
    with raise_storage_errors(paths.logs):
        output = open_log(paths.logs / "gateway.out")
    package = str(Path(benchflow.__file__).parents[1])
    path = os.pathsep.join(part for part in (package, os.environ.get("PYTHONPATH", "")) if part)
    with output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "benchflow.gateway", "--state", str(paths.root.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=FLAT | dict(os.environ) | {"PYTHONPATH": path},
        )


async def stop_gateway(paths: StatePaths) -> bool:
    """Stop the gateway and wait until its calls have ended and it exits. Return False if none ran.

    Raises:
        GatewayError: It does not exit in time.
        GatewayUnavailableError: It runs, but does not respond.
    """
    if not is_running(paths):
        return False
    from benchflow.gateway.gateway_client import GatewayClient

    info = await GatewayClient(paths).ping()
    os.kill(info.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SEC
    while is_running(paths):
        if time.monotonic() > deadline:
            raise GatewayError("the model gateway does not end", remedy=f"kill -9 {info.pid}")
        await asyncio.sleep(_LOOK_EVERY)
    return True


def has_rollouts(paths: StatePaths) -> bool:
    """Return whether any rollout is registered, so that a gateway is needed."""
    return any(paths.gateway.rollouts.glob("*.json"))


def is_running(paths: StatePaths) -> bool:
    """Return whether a gateway process holds the lock, even if it does not respond yet."""
    with suppress(FileNotFoundError), open_fd(paths.gateway.lock, os.O_RDWR) as fd:
        return not lock(fd, shared=True, wait_sec=0)
    return False
