"""What `auto` means: Docker when its daemon answers, else this machine itself, and why is said."""

from __future__ import annotations

import os
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from benchflow.errors import SandboxUnavailableError
from benchflow.planes.sandbox.sandbox_choice import choose_sandbox, find_docker_problem


class Daemon(socketserver.ThreadingUnixStreamServer):
    """Something that answers on a socket as a Docker daemon does, or as something else does."""

    daemon_threads = True
    status = 200

    def get_request(self):
        request, _ = super().get_request()
        return request, ("client", 0)


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(self.server.status if self.path == "/_ping" else 404)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with Daemon(str(tmp_path / "docker.sock"), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
        yield server
        server.shutdown()


@pytest.fixture
def no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")


def test_docker_is_chosen_when_a_daemon_answers(daemon: Daemon) -> None:
    # It shares its interpreter, and a busy machine, with who asks it.
    chosen = choose_sandbox(timeout=300)
    assert chosen.sandbox == "docker"
    assert chosen.reason == f"a Docker daemon answers at {os.environ['DOCKER_HOST']}"


@pytest.mark.local
def test_this_machine_is_chosen_when_none_does(no_daemon: None) -> None:
    chosen = choose_sandbox()
    assert chosen.sandbox == "local"
    assert "no Docker daemon answers" in chosen.reason and "nobody.sock" in chosen.reason


def test_without_root_and_without_docker_there_is_an_error_with_both_remedies(
    no_daemon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SandboxUnavailableError, match=r"no Docker daemon answers.*need root") as caught:
        choose_sandbox()
    assert "Docker" in str(caught.value.remedy) and "root" in str(caught.value.remedy)


def test_what_is_no_docker_daemon_is_said_to_be_none(daemon: Daemon) -> None:
    daemon.status = 503
    assert "not a Docker daemon (status 503)" in str(find_docker_problem(os.environ["DOCKER_HOST"], timeout=300))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "unix:///no/such/socket"])
def test_an_address_where_nobody_listens_is_named(address: str) -> None:
    assert f"no Docker daemon answers at {address}" in str(find_docker_problem(address))
