"""The helper's loop: one datagram, one fork, one response.

A datagram carries only file descriptors: the request (a file in memory, JSON), the pipe for the response, then those
that the operation takes. The fork does the work and responds. The loop itself only forks, so that nothing can hold it
up and little can break it. It ends when the worker's end of the socket is closed.
"""

from __future__ import annotations

import array
import gc
import json
import os
import signal
import socket
import sys
import traceback
from typing import Any

from benchflow.planes.sandbox.local.helper import enter, helper_files, kernel, sandbox_launch

RESPONSE_END = b"\n"
"""End of the helper's response, which is one line of JSON.

The end of the pipe can't be used: the process that becomes a command has a copy of the pipe until it has closed all
descriptors that aren't the command's, and is in the sandbox's pid namespace before that. Root inside can stop it there
(SIGSTOP), and would hold up the reader of the pipe.
"""

_MAX_FDS = 16


def main(fd: int) -> None:
    """Serve requests from the socket `fd` until its other end is closed."""
    kernel.hide_memory()
    kernel.adopt_orphans()
    _listen_to_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # A garbage collection in a fork would copy all memory that the forks share, and no fork lives long enough to need
    # it.
    gc.disable()
    gc.freeze()
    channel = socket.socket(fileno=fd)
    while True:
        fds = _receive(channel)
        if fds is None:
            return
        try:
            born = os.fork()
        except OSError as error:
            _respond(fds[1], {"error": f"fork: {error.strerror}", "errno": error.errno})
            born = -1
        if born == 0:
            channel.close()
            _serve(fds)
        for each in fds:
            os.close(each)


def _listen_to_signals() -> None:
    """Reset ignored signals to their defaults, except the two that Python itself ignores.

    The parent of the engine may have ignored some (`nohup` does), and a sandbox's programs must not inherit that.
    """
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _receive(channel: socket.socket) -> list[int] | None:
    """Receive a datagram, and return its descriptors; None at the end of the socket."""
    fds = array.array("i")
    data, ancillary, _, _ = channel.recvmsg(16, socket.CMSG_SPACE(_MAX_FDS * fds.itemsize))
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return list(fds) if data else None


def _serve(fds: list[int]) -> None:
    """Carry out the request in `fds`, respond, and exit. Never returns."""
    request_fd, reply_fd, *own = fds
    try:
        with open(request_fd, "rb") as file:
            file.seek(0)
            request = json.loads(file.read())
        _respond(reply_fd, _carry_out(request, own, reply_fd))
    except sandbox_launch.LaunchDiedError:
        # No response: the worker treats it as if this process had been killed, too.
        os._exit(1)
    except enter.ProcessGoneError:
        _respond(reply_fd, {"gone": True})
    except enter.NoSuchUserError as error:
        _respond(reply_fd, {"unknown_user": str(error)})
    except OSError as error:
        _respond(reply_fd, {"error": str(error), "errno": error.errno})
    except BaseException as error:
        _respond(reply_fd, {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})
    os._exit(0)


def _carry_out(request: dict[str, Any], fds: list[int], reply_fd: int) -> dict[str, Any] | None:
    """Carry out a request and return the response. A `run` responds by itself and exits at the command's end."""
    match request.pop("do"):
        case "start":
            return sandbox_launch.start(request)
        case "run":

            def reply(content: dict[str, Any]) -> None:
                _respond(reply_fd, content)
                os.close(reply_fd)

            enter.run(request, fds, reply)
            os._exit(0)
        case "read":
            return helper_files.read(request, fds)
        case "write":
            return helper_files.write(request, fds)
        case "unpack":
            return helper_files.unpack(request, fds)
        case "pack":
            return helper_files.pack(request, fds)
        case unknown:
            raise ValueError(f"unknown operation {unknown!r}")


def _respond(fd: int, content: dict[str, Any] | None) -> None:
    """Write a response. Ignore that the worker is gone."""
    try:
        os.write(fd, json.dumps(content).encode() + RESPONSE_END)
    except OSError as error:
        # The worker is gone.
        print(f"helper: nobody hears: {error}", file=sys.stderr)
