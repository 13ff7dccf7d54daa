"""The translation of the daemon's and the library's errors into those of the sandbox plane."""

from __future__ import annotations

import errno
import os

import requests
import urllib3
from docker import errors as docker_errors

from benchflow.contracts.failures import storage_error
from benchflow.errors import (
    BenchFlowError,
    DaemonUnavailableError,
    SandboxBusyError,
    SandboxError,
    SandboxLostError,
    SandboxSpaceError,
    SandboxUnavailableError,
)
from benchflow.planes.sandbox.driven.engine_scripts import make_fork_error, reports_fork_failure

GONE = (
    "no such container",
    "is not running",
    "is being removed",
    "marked for removal",
    "cannot exec in a stopped",
    "container not running",
    "process not running",
)
"""Parts of the daemon's messages about a container that does not run, or is missing."""

FULL = ("no space left on device", "disk quota exceeded")
"""Parts of its messages about a full disk."""

BUSY = (
    *FULL,
    "cannot allocate memory",
    "resource temporarily unavailable",
    "too many open files",
    "port is already allocated",
    "address already in use",
    "device or resource busy",
    "i/o timeout",
)
"""Parts of its messages if a retry may succeed soon, because the host is short of something."""

AWAY = (
    "connection error: desc",
    "error while dialing",
    "containerd.sock",
    "ttrpc: closed",
    "transport is closing",
    "client connection is closing",
    ": unavailable",
    "code = unavailable",
    "code = deadlineexceeded",
    "context deadline exceeded",
    "context canceled",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "unexpected eof",
    "is shutting down",
)
"""Parts of its messages if it is ending, or its containerd has ended, restarts or hangs."""

_NETWORK = ("http://", "https://", "dial tcp", "lookup ")
"""Parts of its messages about a registry; containerd, in contrast, is reached through a Unix socket."""

API_TIMEOUT = 120.0
"""Timeout in seconds for each wait of a call for data. A start on a crowded host takes seconds."""


class ConflictError(SandboxError):
    """The daemon refused, because the name is taken or the object is in the wrong state."""


class NotFoundError(SandboxError):
    """The daemon does not know the image, network or exec."""


def translate(error: Exception) -> BenchFlowError:
    """Return the error of the sandbox plane for an exception of the library."""
    if isinstance(error, docker_errors.APIError):
        return _translate_answer(error)
    if isinstance(error, requests.ReadTimeout):
        return DaemonUnavailableError(
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
    if isinstance(error, _CUT_OFF) or any(part in text for part in _NO_DAEMON):
        address = os.environ.get("DOCKER_HOST")
        return DaemonUnavailableError(
            f"no Docker daemon answers{f' at {address}' if address else ''}: {_take_first_line(text)}",
            remedy="install Docker and start it (`sudo systemctl start docker`, or `sudo dockerd`), or set "
            "DOCKER_HOST to a running daemon",
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        # A disk of this host, to which data from the daemon was to be written.
        return storage_error(error, "what the Docker daemon sends")
    message = f"the Docker daemon cannot be used: {_take_first_line(text)}"
    return SandboxBusyError(message) if is_busy(text) else SandboxError(message)


_CUT_OFF = (
    requests.ConnectionError,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.HTTPError,
    docker_errors.StreamParseError,
    ConnectionError,
)

_NO_DAEMON = ("Connection refused", "No such file", "Connection aborted", "Error while fetching", "Max retries")


def _translate_answer(error: docker_errors.APIError) -> BenchFlowError:
    """Return the error for an error response of the daemon."""
    message = str(error.explanation or error)
    status = error.status_code
    low = message.lower()
    if any(part in low for part in GONE):
        return SandboxLostError(f"the container is gone: {message}")
    if status == 404:
        return NotFoundError(message)
    if status == 409:
        return ConflictError(message)
    if (passing := find_passing_error(message)) is not None:
        return passing
    if is_busy(message):
        return SandboxBusyError(f"Docker: {message}", remedy="look at the daemon's log and at the load of this host")
    return SandboxError(f"Docker: {message}")


def is_busy(message: str) -> bool:
    """Return whether a retry may succeed soon, by the daemon's message about a failure."""
    return any(part in message.lower() for part in (*BUSY, *AWAY))


def is_out_of_processes(message: str) -> bool:
    """Return whether a container reached its pids limit, by the message of its shell or of the runtime."""
    return reports_fork_failure(message) or "read init-p: " in message


def make_space_error(message: str) -> SandboxSpaceError:
    """Return the error for a full disk of the daemon, with the message of the daemon or the operating system."""
    return SandboxSpaceError(
        f"Docker has no space left: {message}",
        remedy="free space where Docker keeps its data (`docker system df`, `docker system prune`)",
    )


def raise_if_full(message: str) -> None:
    """Raise `SandboxSpaceError` if a message is about a full disk of the daemon."""
    if any(part in message.lower() for part in FULL):
        raise make_space_error(message)


def find_passing_error(message: str) -> SandboxError | None:
    """Return the error for a failed start of a command if the command is not at fault; None otherwise.

    Such failures pass: a full disk, a container at its pids limit, or a containerd that does not answer.

    Args:
        message: The daemon's message.
    """
    low = message.lower()
    if any(part in low for part in FULL):
        return make_space_error(message)
    if is_out_of_processes(message):
        return make_fork_error(message)
    if any(part in low for part in AWAY) and not any(part in low for part in _NETWORK):
        return DaemonUnavailableError(
            f"the Docker daemon's containerd does not answer: {message}", remedy="look at the logs of both"
        )
    return None


def _take_first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"
