"""What another user of this host tries against a stack. A program: root starts it, and it becomes that user.

    python other_user.py UID REQUEST

REQUEST is a JSON object: `ports` to list workflows on, `sockets` to connect to, `files` and `directories` to read,
`pids` of processes whose network namespace to enter, `pages` to get. On stdout is what succeeded, by kind.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from temporalio.client import Client

NOBODY = 65534


def tries(**request: Iterable[Any]) -> dict[str, list[Any]]:
    """Return what a user with no rights succeeds in."""
    command = [
        sys.executable,
        __file__,
        str(NOBODY),
        json.dumps({kind: [*map(_plain, what)] for kind, what in request.items()}),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, (ran.returncode, ran.stderr)
    found: dict[str, list[Any]] = json.loads(ran.stdout)
    return found


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


async def _list_workflows(port: int) -> None:
    client = await Client.connect(f"127.0.0.1:{port}", namespace="benchflow")
    [execution async for execution in client.list_workflows()]


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def _get(page: str) -> None:
    host, _, path = page.partition("/")
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request("GET", f"/{path}")
    if connection.getresponse().status >= 400:
        raise PermissionError(page)


_ATTEMPTS = {
    "ports": lambda port: asyncio.run(_list_workflows(port)),
    "sockets": _connect,
    "files": lambda path: Path(path).read_bytes(),
    "directories": os.listdir,
    "pids": lambda pid: os.open(f"/proc/{pid}/ns/net", os.O_RDONLY),
    "pages": _get,
}


def main() -> None:
    """Become the user, try, and print what succeeded."""
    user, request = int(sys.argv[1]), json.loads(sys.argv[2])
    # The program and its packages may lie where this user cannot read: all is imported by now, but for a codec.
    "localhost".encode("idna")
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    done: dict[str, list[Any]] = {}
    for kind, targets in request.items():
        for target in targets:
            try:
                _ATTEMPTS[kind](target)
            except (OSError, RuntimeError, http.client.HTTPException):
                continue
            done.setdefault(kind, []).append(target)
    print(json.dumps(done), flush=True)
    # The client's threads may still be at work, which an interpreter that ends does not wait for.
    os._exit(0)


if __name__ == "__main__":
    main()
