"""The code that the processes of a container execute, as the daemon's host sees it.

More is known of the first process than of any other: mostly it is the engine's idle program, or the daemon's init.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from benchflow.planes.sandbox.docker.container_config import IDLE
from benchflow.planes.sandbox.host_code import judge_idle_program, judge_init_program, read_codes

_RUNTIMES = ("runc", "crun", "youki", "nvidia")
"""Parts of the names of runtimes whose containers' first process is a process of this host. Of others, such as virtual
machines, the daemon names another process."""


def read_container_codes(container: dict[str, Any], pids: Iterable[int]) -> dict[int, str]:
    """Return, for each process, a digest of its code in memory that differs from the program's file.

    See `SeesCode.code` for the values. Processes that can't be inspected are left out.

    Args:
        container: `inspect` data of the container.
        pids: Pids on this host.
    """
    first, is_idle = container["State"]["Pid"], container["Config"]["Entrypoint"] == [IDLE]

    host = container["HostConfig"]
    is_known = any(name in (host.get("Runtime") or "") for name in _RUNTIMES)

    def judge(pid: int) -> str | None:
        if pid != first or not is_known:
            return None
        if is_idle:
            return judge_idle_program(pid, os.uname().machine)
        return judge_init_program(pid) if host.get("Init") else None

    return read_codes(pids, judge)
