"""Run the Temporal server in a network namespace of its own, and relay its owner's connections into it.

The dev server has no authentication, and every user of a host can reach its loopback addresses. In a namespace of its
own the server is reached only through the two sockets of this process: one takes HTTP CONNECT to the server's address,
which Temporal's clients speak, and one leads to the Web UI. A pathname socket works across network namespaces, for
whoever may search its directory and write to it.

The supervisor runs this file as a program, without this package, so that it starts in a few milliseconds:

    enclosure.py SUPERVISOR_PID DIRECTORY SERVER_SOCKET SERVER_PORT UI_SOCKET UI_PORT COMMAND...

The first line on stdout is a JSON object: `{"server": PID}`, or `{"refused": REASON}` if the kernel refuses a
namespace, before anything has been started. stderr is the server's log. The process ends with the server's status, and
the server is killed when the process ends.
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
"""Errors by which a kernel refuses this user a namespace; ENOSPC: a limit of namespaces, which may be 0. Any other
error, such as one for lack of memory, is a failure to start, and no reason to listen where every user can connect.
"""

_HEAD_LIMIT = 8192
_CHUNK = 256 * 1024
_BACKLOG = 512

_libc = ctypes.CDLL(None, use_errno=True)


def _unshare(flags: int) -> None:
    if _libc.unshare(flags) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def enter_namespace() -> None:
    """Move this process into a network namespace of its own. Raise `OSError` if the kernel refuses one."""
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        uid, gid = os.geteuid(), os.getegid()
        _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        # An unprivileged process may write gid_map only after `deny` in setgroups (user_namespaces(7)).
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
    """Have the kernel kill this process when its parent ends; exit now if the parent has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def start_server(command: list[str]) -> int:
    """Start the server, which the kernel kills when this process ends, and return its pid."""
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
    """Return a listening socket at `name`, in place of an earlier process's, that only its owner can connect to.

    Args:
        directory: Descriptor of its directory, whose path may be longer than the 108 bytes of a socket's address.
        name: Name of the socket in the directory.
    """
    listener = socket.socket(socket.AF_UNIX)
    new = f".{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=directory)
    listener.bind(f"/proc/self/fd/{directory}/{new}")
    listener.listen(_BACKLOG)
    os.chmod(new, 0o600, dir_fd=directory)
    # Renamed only now: a client that finds the socket must be able to connect.
    os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
    return listener


def accept_forever(listener: socket.socket, port: int, *, asks: bool) -> None:
    """Relay each connection to a port of the namespace, in threads of its own.

    Args:
        listener: The listening socket.
        port: Port in the namespace.
        asks: Whether connections begin with a CONNECT request.
    """
    while True:
        try:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, port, asks), daemon=True).start()
        except (OSError, RuntimeError):
            # Out of descriptors or threads, until a connection ends.
            time.sleep(0.05)


def _serve(client: socket.socket, port: int, asks: bool) -> None:
    """Relay one connection until both directions are closed."""
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
    """Read a CONNECT request for the server, and return the bytes after it; None if it was refused."""
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
    """Copy one direction until EOF, and shut down the other side's writing; on an error shut down both connections."""
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
    """Run the server until it ends, and exit with its status."""
    supervisor, place, server_name, server_port, ui_name, ui_port, *command = sys.argv[1:]
    os.umask(0o077)
    try:
        enter_namespace()
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        print(json.dumps({"refused": error.strerror or str(error)}), flush=True)
        return
    # Only now: the kernel clears the parent-death signal when credentials change, as by a new user namespace.
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
