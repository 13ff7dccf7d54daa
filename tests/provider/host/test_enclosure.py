"""The enclosure: a program in a network namespace of its own, and the relay that leads its owner there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import benchflow.enclosure
from benchflow.paths import MAX_SOCKET_ADDRESS_BYTES, make_socket_address
from benchflow.process_identity import is_alive
from benchflow.testing.waiting import until

PORT, UI_PORT = 7233, 8233
SERVER = """
import socketserver, sys, threading

class Echo(socketserver.BaseRequestHandler):
    # Answers when all has come: a client that has ended its half must still hear the answer.
    def handle(self):
        said = bytearray()
        while piece := self.request.recv(65536):
            said += piece
            if said == b"hello":
                self.request.sendall(b"hello")
                said.clear()
        self.request.sendall(said[::-1])

class Server(socketserver.ThreadingTCPServer):
    request_queue_size = 256
    daemon_threads = True

threading.Thread(target=Server(("127.0.0.1", 8233), Echo).serve_forever).start()
Server(("127.0.0.1", 7233), Echo).serve_forever()
"""


@dataclass
class Enclosed:
    """An enclosure with a server in it. process: the enclosure; server: pid of the server."""

    process: subprocess.Popen[bytes]
    directory: Path
    server: int

    def connect(self, name: str = "server.sock") -> socket.socket:
        """Connect to one of its sockets."""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(60)
        client.connect(make_socket_address(self.directory / name))
        return client

    def ask(self, request: str = f"CONNECT 127.0.0.1:{PORT} HTTP/1.1") -> tuple[socket.socket, bytes]:
        """Connect to the server with a request; the answer's first line."""
        client = self.connect()
        client.sendall(f"{request}\r\nHost: x\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head and (piece := client.recv(1)):
            head += piece
        return client, head.partition(b"\r\n")[0]

    async def answers(self) -> None:
        """Wait until the server listens."""

        def is_up() -> bool:
            client, status = self.ask()
            client.close()
            return status == b"HTTP/1.1 200 OK"

        await until(is_up)


def command(directory: Path, *server: str) -> list[str]:
    """Return the command line of an enclosure of this process."""
    program = [sys.executable, "-I", "-S", benchflow.enclosure.__file__, str(os.getpid()), str(directory)]
    return [*program, "server.sock", str(PORT), "ui.sock", str(UI_PORT), *server]


@pytest.fixture
def enclose() -> Iterator[Callable[[Path], Enclosed]]:
    """Start enclosures in directories, which end with the test."""
    with contextlib.ExitStack() as stack:

        def start(directory: Path) -> Enclosed:
            directory.mkdir(parents=True, exist_ok=True)
            server = [sys.executable, "-I", "-c", SERVER]
            process = subprocess.Popen(command(directory, *server), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            with process.stdout:
                return Enclosed(process, directory, json.loads(process.stdout.readline())["server"])

        yield start


async def test_what_it_encloses_is_reached_through_its_sockets_alone(
    enclose: Callable[[Path], Enclosed], tmp_path: Path
) -> None:
    enclosed = enclose(tmp_path)
    await enclosed.answers()
    assert Path(f"/proc/{enclosed.server}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    for name in ("server.sock", "ui.sock"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    client, status = enclosed.ask()
    with client:
        assert status == b"HTTP/1.1 200 OK"
        client.sendall(b"hello")
        assert client.recv(5) == b"hello"
    with enclosed.connect("ui.sock") as client:
        client.sendall(b"hello")
        assert client.recv(5) == b"hello"


@pytest.mark.parametrize(
    "request_line",
    [
        f"CONNECT 127.0.0.1:{UI_PORT} HTTP/1.1",
        "CONNECT 127.0.0.1:22 HTTP/1.1",
        f"CONNECT localhost:{PORT} HTTP/1.1",
        f"GET http://127.0.0.1:{PORT}/ HTTP/1.1",
        "CONNECT",
    ],
)
async def test_the_relay_leads_to_the_server_and_nowhere_else(
    enclose: Callable[[Path], Enclosed], tmp_path: Path, request_line: str
) -> None:
    enclosed = enclose(tmp_path)
    await enclosed.answers()
    client, status = enclosed.ask(request_line)
    with client:
        assert status == b"HTTP/1.1 403 Forbidden"
        assert client.recv(1024) == b""


async def test_many_clients_send_megabytes_both_ways_and_end_their_half_first(
    enclose: Callable[[Path], Enclosed], tmp_path: Path
) -> None:
    enclosed = enclose(tmp_path)
    await enclosed.answers()

    def exchange(number: int) -> bool:
        # Far more than the sockets between hold, so that each side must wait for the other.
        sent = hashlib.shake_256(str(number).encode()).digest(2 << 20)
        client, _ = enclosed.ask()
        with client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            received = bytearray()
            while piece := client.recv(1 << 16):
                received += piece
        return received[::-1] == sent

    # All of them at once, beside sixty that say nothing.
    silent = [enclosed.ask()[0] for _ in range(60)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(exchange, range(24)))
    for client in silent:
        client.sendall(b"hello")
        assert client.recv(5) == b"hello"
        client.close()


async def test_a_client_that_reads_nothing_is_waited_for_and_not_buffered_for(
    enclose: Callable[[Path], Enclosed], tmp_path: Path
) -> None:
    enclosed = enclose(tmp_path)
    await enclosed.answers()
    client, _ = enclosed.ask()
    with client:
        client.sendall(bytes(64 << 20))
        client.shutdown(socket.SHUT_WR)

        def memory() -> int:
            return int(Path(f"/proc/{enclosed.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        assert client.recv(1) == b"\0"
        assert memory() < 64 << 20


async def test_it_ends_with_its_server_and_its_server_with_it(
    enclose: Callable[[Path], Enclosed], tmp_path: Path
) -> None:
    first = enclose(tmp_path / "first")
    await first.answers()
    client, _ = first.ask()
    os.kill(first.server, signal.SIGKILL)
    assert first.process.wait(60) == -signal.SIGKILL
    # Whoever was connected is told at once.
    assert client.recv(1) == b""
    client.close()
    second = enclose(tmp_path / "second")
    second.process.kill()
    await until(lambda: not is_alive(second.server, None))


async def test_its_directory_may_be_deeper_than_the_address_of_a_socket_is_long(
    enclose: Callable[[Path], Enclosed], tmp_path: Path
) -> None:
    deep = tmp_path.joinpath(*["directory"] * 15)
    assert len(str(deep)) > MAX_SOCKET_ADDRESS_BYTES
    enclosed = enclose(deep)
    await enclosed.answers()
    # One that takes its place is found at the same address.
    address = make_socket_address(deep / "server.sock")
    enclosed.process.kill()
    enclosed.process.wait()
    await enclose(deep).answers()
    assert make_socket_address(deep / "server.sock") == address


def test_where_the_kernel_gives_no_namespace_it_says_so_and_starts_nothing(tmp_path: Path) -> None:
    without = 'echo 0 >/proc/sys/user/max_net_namespaces && exec "$@"'
    ran = subprocess.run(
        [
            "unshare",
            "--user",
            "--map-root-user",
            "sh",
            "-c",
            without,
            "sh",
            *command(tmp_path, "/bin/touch", "started"),
        ],
        capture_output=True,
        cwd=tmp_path,
        check=True,
    )
    assert json.loads(ran.stdout) == {"refused": "unshare: No space left on device"}
    assert [*tmp_path.iterdir()] == []
