"""What the processes of a container execute, as the daemon's host sees it.

Of the first process more is known than of any other: most are the engine's own program, which waits for ever, or the
daemon's init program.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from benchflow.planes.sandbox.docker.launch import IDLE
from benchflow.planes.sandbox.host_code import idle_code, init_code, read_codes

_RUNTIMES = ("runc", "crun", "youki", "nvidia")
"""Parts of the names of runtimes whose first process is one of this host's. Of others, as of virtual machines, the
daemon names another process.
"""


def codes(container: dict[str, Any], pids: Iterable[int]) -> dict[int, str]:
    """Return what processes of a container execute, as `SeesCode.code` does, by their numbers on this host.

    container: As the daemon describes it.
    """
    first, is_idle = container["State"]["Pid"], container["Config"]["Entrypoint"] == [IDLE]

    host = container["HostConfig"]
    is_known = any(name in (host.get("Runtime") or "") for name in _RUNTIMES)

    def judge(pid: int) -> str | None:
        if pid != first or not is_known:
            return None
        if is_idle:
            return idle_code(pid, os.uname().machine)
        return init_code(pid) if host.get("Init") else None

    return read_codes(pids, judge)
