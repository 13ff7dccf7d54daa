"""Finds the TCP ports of a sandbox on which a process listens, and the process. Run inside the sandbox, as root."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from benchflow.planes.environment.helper.shared import run

LISTENS = "0A"


def find_ports(request: dict[str, Any]) -> dict[str, Any]:
    """Return those of the request's ports that are listened on, with the listener's command and pid, if known."""
    sockets: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(table) as file:
            for line in file.readlines()[1:]:
                words = line.split()
                port = int(words[1].rpartition(":")[2], 16)
                if words[3] == LISTENS and port in request["ports"]:
                    sockets[f"socket:[{words[9]}]"] = port
    found = dict.fromkeys(map(str, sockets.values()), "")
    for pid in filter(str.isdigit, os.listdir("/proc")) if sockets else ():
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    port = sockets.get(os.readlink(f"/proc/{pid}/fd/{fd}"), 0)
                    if port:
                        with open(f"/proc/{pid}/cmdline", errors="replace") as file:
                            command = file.read().replace(chr(0), " ").strip()[:120]
                        found[str(port)] = f"{command} (pid {pid})"
    return {"ports": found}


if __name__ == "__main__":
    run(find_ports)
