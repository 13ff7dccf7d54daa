"""What the daemon's errors mean: those of a daemon in trouble pass, and are never a command's."""

from __future__ import annotations

import errno

import pytest
import requests
from docker import errors as docker_errors

from benchflow.errors import (
    BenchFlowError,
    DaemonUnavailableError,
    DiskFullError,
    SandboxBusyError,
    SandboxError,
    SandboxLostError,
    SandboxSpaceError,
)
from benchflow.planes.sandbox.docker.translation import find_passing_error, translate

AWAY = [
    'connection error: desc = "transport: Error while dialing dial unix /run/containerd/containerd.sock: connect: '
    'connection refused": unavailable',
    "transport is closing: unavailable",
    "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
    "error creating task: ttrpc: closed: unknown",
    "cannot start: the daemon is shutting down",
]


@pytest.mark.parametrize("said", AWAY)
def test_a_containerd_that_is_away_is_an_outage_however_it_is_told(said: str) -> None:
    assert type(find_passing_error(said)) is DaemonUnavailableError
    response = requests.Response()
    response.status_code = 500
    assert type(translate(docker_errors.APIError("failed", response, said))) is DaemonUnavailableError


def test_a_daemon_that_does_not_answer_is_named_where_the_user_has_named_it(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = requests.ConnectionError("Connection refused")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert str(translate(refused)).startswith("no Docker daemon answers: Connection refused")
    monkeypatch.setenv("DOCKER_HOST", "tcp://builder:2375")
    assert str(translate(refused)).startswith("no Docker daemon answers at tcp://builder:2375: Connection refused")


@pytest.mark.parametrize("said", ["write /var/lib/docker/it: no space left on device", "Disk quota exceeded"])
def test_a_full_disk_of_the_daemon_is_an_outage(said: str) -> None:
    response = requests.Response()
    response.status_code = 500
    for error in (find_passing_error(said), translate(docker_errors.APIError("failed", response, said))):
        assert type(error) is SandboxSpaceError and error.is_outage and error.retryable


@pytest.mark.parametrize(
    "said",
    [
        'OCI runtime exec failed: exec failed: exec: "nothing": executable file not found in $PATH: unknown',
        "unable to find user nobody-knows: no matching entries in passwd file",
        'Get "https://registry.example/v2/": dial tcp: connect: connection refused',
        "",
    ],
)
def test_what_is_said_of_a_command_or_a_registry_is_no_outage_of_the_daemon(said: str) -> None:
    assert find_passing_error(said) is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DiskFullError),
        (OSError(errno.EMFILE, "Too many open files"), SandboxBusyError),
        (OSError(errno.EBADF, "Bad file descriptor"), SandboxError),
    ],
)
def test_trouble_of_this_host_passes(error: OSError, kind: type[BenchFlowError]) -> None:
    assert type(translate(error)) is kind


def test_a_container_that_does_not_run_is_lost() -> None:
    response = requests.Response()
    response.status_code = 409
    error = docker_errors.APIError("failed", response, "container 1 is not running")
    assert type(translate(error)) is SandboxLostError
