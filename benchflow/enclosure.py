"""Run the Temporal server in a network namespace of its own, and relay its owner's connections into it.

The dev server has no authentication, and everybody on a host reaches its loopback addresses. In a namespace of its own
the server is reached through the two sockets of this process alone: one that takes HTTP CONNECT to the server's
address, which Temporal's clients speak, and one that leads to the Web UI. A pathname socket is found from any network
namespace, and opened by whoever may search its directory and write to it.

The supervisor runs this file as a program, without this package, so that it starts in a few milliseconds:

    enclosure.py SUPERVISOR_PID DIRECTORY SERVER_SOCKET SERVER_PORT UI_SOCKET UI_PORT COMMAND...

The first line on stdout is a JSON object: `{"server": PID}`, or `{"refused": REASON}` where the kernel gives no
namespace, before anything has been started. stderr is the server's log. The process ends as the server did, and the
server ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

_LOOPBACK = "127.0.0.1"
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_REFUSALS = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.ENOSPC, errno.EUSERS}
"""Errors by which a kernel says that this user can have no namespace; ENOSPC: that it may have none at all. Another
error, such as one for want of memory, is a failure to start, not a reason to listen where everybody can connect."""

_HEAD_LIMIT = 8192
_CHUNK = 256 * 1024
_BACKLOG = 512

_libc = ctypes.CDLL(None, use_errno=True)


def _unshare(flags: int) -> None:
    if _libc.unshare(flags) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def enter_namespace() -> None:
    """Move this process into a network namespace of its own. Raises `OSError` where the kernel refuses one."""
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        uid, gid = os.geteuid(), os.getegid()
        _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        # Without the first, an unprivileged process may not write the last.
        for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(content)
    _bring_loopback_up()


def _bring_loopback_up() -> None:
    request = bytearray(40)  # struct ifreq: 16 bytes of name, then the flags
    request[:2] = b"lo"
    with socket.socket() as probe:
        fcntl.ioctl(probe, _SIOCGIFFLAGS, request)
        request[16] |= _IFF_UP
        fcntl.ioctl(probe, _SIOCSIFFLAGS, request)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, or end now if that has happened already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def start_server(command: list[str]) -> int:
    """Start the server, which ends with this process, and return its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with(parent)
            os.dup2(2, 1)
            os.execv(command[0], command)
        finally:
            os._exit(127)
    return pid


def listen(directory: int, name: str) -> socket.socket:
    """Return a socket that listens at `name`, in the place of an earlier process's, and that its owner alone can open.

    directory: an open directory. Its path may be longer than the 108 bytes of a socket's address.
    """
    listener = socket.socket(socket.AF_UNIX)
    new = f".{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=directory)
    listener.bind(f"/proc/self/fd/{directory}/{new}")
    listener.listen(_BACKLOG)
    os.chmod(new, 0o600, dir_fd=directory)
    # Whoever finds the socket must find somebody behind it.
    os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
    return listener


def accept_forever(listener: socket.socket, port: int, *, asks: bool) -> None:
    """Relay each connection to a port of the namespace. asks: connections begin with a CONNECT request."""
    while True:
        try:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, port, asks), daemon=True).start()
        except (OSError, RuntimeError):
            # Out of descriptors or threads, until a connection ends.
            time.sleep(0.05)


def _serve(client: socket.socket, port: int, asks: bool) -> None:
    with client:
        try:
            first = _take_request(client, port) if asks else b""
            if first is None:
                return
            try:
                server = socket.create_connection((_LOOPBACK, port))
            except OSError:
                client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
                return
            with server:
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if asks:
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                server.sendall(first)
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join()
        except OSError:
            # The client has gone.
            return


def _take_request(client: socket.socket, port: int) -> bytes | None:
    """Read a CONNECT request for the server, and return what follows it. None: it was refused."""
    head = b""
    while b"\r\n\r\n" not in head:
        piece = client.recv(_HEAD_LIMIT)
        head += piece
        if not piece or len(head) > _HEAD_LIMIT:
            return None
    head, _, rest = head.partition(b"\r\n\r\n")
    if head.split(b" ")[:2] != [b"CONNECT", f"{_LOOPBACK}:{port}".encode()]:
        client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        return None
    return rest


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Copy one direction until it ends, and end it on the other side; break both off when either is broken."""
    buffer = memoryview(bytearray(_CHUNK))
    try:
        while count := source.recv_into(buffer):
            sink.sendall(buffer[:count])
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Run the server until it ends."""
    supervisor, place, server_name, server_port, ui_name, ui_port, *command = sys.argv[1:]
    os.umask(0o077)
    try:
        enter_namespace()
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        print(json.dumps({"refused": error.strerror or str(error)}), flush=True)
        return
    # Only now: a change of credentials, as by a new user namespace, clears it.
    die_with(int(supervisor))
    pid = start_server(command)
    directory = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    threading.stack_size(256 * 1024)
    for name, port, asks in ((server_name, server_port, True), (ui_name, ui_port, False)):
        listener = listen(directory, name)
        arguments = (listener, int(port))
        threading.Thread(target=accept_forever, args=arguments, kwargs={"asks": asks}, daemon=True).start()
    print(json.dumps({"server": pid}), flush=True)
    os.close(1)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
