"""The choice of the sandbox for `auto`, with its reason: Docker if a daemon answers, else the local sandbox."""

from __future__ import annotations

import http.client
import os
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchflow.errors import SandboxUnavailableError

AUTO = "auto"
"""Name that stands for the choice."""

_SOCKET = "unix:///var/run/docker.sock"
"""Default address of the Docker daemon."""

DAEMON_TIMEOUT_SEC = 5.0
"""Timeout in seconds for the daemon's answer."""


@dataclass(frozen=True)
class SandboxChoice:
    """A chosen provider."""

    sandbox: str
    """Name of the provider."""

    reason: str
    """Reason of the choice, for people."""


def choose_sandbox(timeout: float = DAEMON_TIMEOUT_SEC) -> SandboxChoice:
    """Return Docker if its daemon answers in time, else the local sandbox.

    Args:
        timeout: Seconds for the daemon's answer.

    Raises:
        SandboxUnavailableError: Neither can be used.
    """
    address = find_docker_address()
    problem = find_docker_problem(address, timeout)
    if problem is None:
        return SandboxChoice("docker", f"a Docker daemon answers at {address}")
    from benchflow.planes.sandbox.local.requirements import require_platform

    try:
        require_platform()
    except SandboxUnavailableError as error:
        raise SandboxUnavailableError(
            f"there is nothing to run sandboxes on: {problem}; {error.message}",
            key="sandbox",
            remedy="start Docker (`sudo systemctl start docker`), or run as root on Linux for the local sandbox",
        ) from error
    return SandboxChoice("local", problem)


def find_docker_address() -> str:
    """Return the address of this host's Docker daemon, as DOCKER_HOST spells it."""
    return os.environ.get("DOCKER_HOST") or _SOCKET


def find_docker_problem(address: str, timeout: float = DAEMON_TIMEOUT_SEC) -> str | None:
    """Return the reason why no Docker daemon can be used at an address; None if one answers.

    The `docker` library, whose import would take longer than all the rest, is used only for addresses that need it.

    Args:
        address: Address, as DOCKER_HOST spells it.
        timeout: Timeout in seconds.
    """
    where = urlsplit(address)
    plain_tcp = where.scheme in ("tcp", "http") and not os.environ.get("DOCKER_TLS_VERIFY")
    try:
        if where.scheme == "unix":
            status = _ping(_Unix(where.path, timeout))
        elif plain_tcp:
            status = _ping(http.client.HTTPConnection(where.hostname or "", where.port or 2375, timeout=timeout))
        else:
            return _try_library(address, timeout)
    except PermissionError:
        return f"this user may not talk to the Docker daemon at {address}"
    except (OSError, http.client.HTTPException) as error:
        return f"no Docker daemon answers at {address}: {getattr(error, 'strerror', None) or error}"
    return None if status == 200 else f"what answers at {address} is not a Docker daemon (status {status})"


def _ping(connection: http.client.HTTPConnection) -> int:
    """Return the HTTP status of the daemon's ping."""
    try:
        connection.request("GET", "/_ping")
        return connection.getresponse().status
    finally:
        connection.close()


def _try_library(address: str, timeout: float) -> str | None:
    """Return the reason why the `docker` library reaches no daemon; None if one answers."""
    import docker

    try:
        client = docker.from_env(timeout=int(timeout))
        client.ping()
        client.close()
    except Exception as error:
        return f"no Docker daemon answers at {address}: {str(error).strip().splitlines()[0]}"
    return None


class _Unix(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
