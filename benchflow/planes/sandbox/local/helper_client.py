"""The worker's client of the helper process, which it starts on first use and restarts if it has died."""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchflow.errors import DiskFullError, SandboxError, SandboxLostError
from benchflow.planes.sandbox.local.helper.helper_loop import RESPONSE_END

_PACKAGE = Path(__file__).parents[3]

# The packages above the helper are empty modules, not imported: what they import would stay in the memory of its forks.
_BOOTSTRAP = f"""
import sys, types
place = {str(_PACKAGE)!r}
name = "benchflow"
for part in (None, "planes", "sandbox", "local"):
    if part:
        name, place = f"{{name}}.{{part}}", f"{{place}}/{{part}}"
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [place]
from benchflow.planes.sandbox.local.helper.helper_loop import main
main(int(sys.argv[1]))
"""


class HelperDiedError(SandboxError):
    """The helper, or its fork that did the work, ended without a response; the operation may have been carried out.

    It is like a crash of the worker at that moment: whatever may be retried after such a crash may be retried now.
    """

    retryable = True


class Helper:
    """A client with a helper process of its own, started on first use. It serves all event loops of this process.

    Args:
        home: Directory of the sandboxes, passed on only so that a list of processes shows whose helper it is.
    """

    def __init__(self, home: Path) -> None:
        """Make it."""
        self._home = home
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    async def call(self, operation: str, request: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """Have the helper carry out an operation, and return its response.

        Args:
            operation: Name of the operation, one of those in `helper.server`.
            request: Parameters of the operation, in JSON types.
            fds: File descriptors that the helper receives copies of. The caller's stay open.

        Raises:
            SandboxLostError: The sandbox no longer runs.
            SandboxError: The sandbox has no such user.
            HelperDiedError: There was no response.
            DiskFullError: No space is left.
            OSError: The kernel refused something else.
            SandboxError: Any other error in the helper.
        """
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        answer: asyncio.Future[bytes] = loop.create_future()
        said = bytearray()

        def read() -> None:
            with contextlib.suppress(BlockingIOError):
                while not said.endswith(RESPONSE_END) and (piece := os.read(reading, 65536)):
                    said.extend(piece)
                loop.remove_reader(reading)
                if not answer.done():
                    answer.set_result(bytes(said))

        try:
            try:
                os.set_blocking(writing, True)
                memory = make_memory_file(json.dumps({"do": operation, **request}).encode())
                try:
                    await self._send([memory, writing, *fds])
                finally:
                    os.close(memory)
            finally:
                os.close(writing)
            loop.add_reader(reading, read)
            return _parse_response(await answer)
        finally:
            loop.remove_reader(reading)
            os.close(reading)

    async def _send(self, fds: list[int]) -> None:
        """Send descriptors to the helper, starting it if it doesn't run, and retrying while its queue is full."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        while True:
            channel = self._channel
            if channel is None:
                channel = await asyncio.to_thread(self._start)
            try:
                channel.sendmsg([b"."], rights)
                return
            except BlockingIOError:
                # The socket's queue is full, since the helper forks once for each request.
                await asyncio.sleep(0.005)
            except (BrokenPipeError, ConnectionResetError, ConnectionRefusedError):
                self._forget(channel)

    def _start(self) -> socket.socket:
        """Start the helper unless another thread has, and return the socket to it."""
        with self._guard:
            if self._channel is not None:
                return self._channel
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, str(theirs.fileno()), str(self._home)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    cwd="/",
                    # No variable of this process, which may hold secrets, may come near a sandbox.
                    env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                    start_new_session=True,
                )
            ours.setblocking(False)
            self._channel = ours
            return ours

    def _forget(self, channel: socket.socket) -> None:
        """End the helper behind a broken socket, unless another thread has replaced it."""
        with self._guard:
            if self._channel is channel:
                self._drop()

    def close(self) -> None:
        """Kill the helper. Commands in sandboxes run on, and a later call starts another helper."""
        with self._guard:
            self._drop()

    def _drop(self) -> None:
        """Kill the helper and close its socket. The caller holds the guard."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


def make_memory_file(content: bytes = b"") -> int:
    """Create a file in memory with this content, and return its descriptor, at offset 0. The caller closes it."""
    memory = os.memfd_create("benchflow", os.MFD_CLOEXEC)
    with open(memory, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(memory, 0, os.SEEK_SET)
    return memory


def _parse_response(said: bytes) -> dict[str, Any]:
    """Parse a response of the helper, and raise the error in it, as `Helper.call`."""
    if not said:
        raise HelperDiedError("the process that was to enter the sandbox died")
    answer: dict[str, Any] = json.loads(said)
    if "gone" in answer:
        raise SandboxLostError("the sandbox no longer runs")
    if "unknown_user" in answer:
        raise SandboxError(
            f"there is no user {answer['unknown_user']!r} in the sandbox",
            key="user",
            remedy="name a user that exists on this machine, or add it in the Dockerfile",
        )
    if "error" in answer:
        if answer.get("errno") in (28, 122):
            raise DiskFullError(
                f"no space is left for sandboxes: {answer['error']}",
                remedy="free space where the state directory is",
            )
        if answer.get("errno") is not None:
            raise OSError(answer["errno"], answer["error"])
        raise SandboxError(answer["error"], log_tail=answer.get("trace"))
    return answer
