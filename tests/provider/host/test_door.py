"""The door of the Web UI against those who have no token: as a process, and with time running faster."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from benchflow import door
from benchflow.paths import StatePaths
from benchflow.stack import make_ui_token
from benchflow.testing.waiting import until

HEAD = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nUI"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as found:
        yield found


@pytest.fixture
async def opened(listener: socket.socket, tmp_path: Path) -> AsyncIterator[int]:
    """The port of a door in this process, with the token `key` and a Web UI that answers `UI`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(HEAD.encode())
        writer.close()

    ui = tmp_path / "ui.sock"
    async with await asyncio.start_unix_server(answer, ui):
        serving = asyncio.create_task(door.Door(listener, str(ui), "key", "run").serve())
        yield listener.getsockname()[1]
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


class Browser:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def connect(self) -> Browser:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def get(self, path: str = "/", **headers: str) -> tuple[int, dict[str, str]]:
        """Get a page: status and headers."""
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            *(f"{name}: {headers[name]}" for name in headers),
        ]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())
        first, *fields = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        found = dict(field.split(": ", 1) for field in fields if field)
        await self.reader.readexactly(int(found.get("Content-Length", 0)))
        return int(first.split()[1]), found

    async def is_ended(self) -> bool:
        """Wait until the other side ends the connection."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), 60) == b""
        return True


async def log_in(port: int) -> tuple[Browser, str]:
    """Return a connection of the owner's, and their cookie."""
    browser = await Browser(port).connect()
    status, headers = await browser.get("/?token=key")
    assert status == 303
    return browser, headers["Set-Cookie"].partition(";")[0]


async def test_one_connection_too_many_ends_the_oldest_that_has_shown_nothing(
    opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MAX_STRANGERS", 2)
    owner, cookie = await log_in(opened)
    strangers = [await Browser(opened).connect() for _ in range(5)]
    assert [await stranger.is_ended() for stranger in strangers[:3]] == [True] * 3
    assert (await owner.get(Cookie=cookie))[0] == 200
    # The last two are still served, as anybody is.
    assert [(await stranger.get())[0] for stranger in strangers[3:]] == [401, 401]
    assert [await stranger.is_ended() for stranger in strangers[3:]] == [True, True]


async def test_who_shows_nothing_is_ended_in_time_however_slowly_he_sends(
    opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "STRANGER_SEC", 0.2)
    owner, cookie = await log_in(opened)
    silent, slow = [await Browser(opened).connect() for _ in range(2)]
    slow.writer.write(b"GET / HTTP/1.1\r\nX: ")
    assert [await silent.is_ended(), await slow.is_ended()] == [True, True]
    assert (await owner.get(Cookie=cookie))[0] == 200


async def test_without_free_descriptors_it_goes_on_when_there_are_some(listener: socket.socket, tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    token = make_ui_token(paths)
    port = listener.getsockname()[1]
    environment = os.environ | {"BENCHFLOW_STATE_DIR": str(tmp_path)}
    # Fewer than it takes connections of strangers.
    command = ["prlimit", "--nofile=40:40", sys.executable, "-m", "benchflow.door", str(listener.fileno()), "run"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, pass_fds=[listener.fileno()])
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(120):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)).sendall(b"GET")
            await until(lambda: len([*Path(f"/proc/{process.pid}/fd").iterdir()]) == 40)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", f"/?token={token}")
        assert connection.getresponse().status == 303
        connection.close()
        assert process.returncode is None
        assert {path.name: path.read_text() for path in paths.logs.iterdir()} == {"door.log": ""}
    finally:
        process.kill()
        await process.wait()
