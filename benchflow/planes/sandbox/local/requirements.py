"""What local sandboxes need of a machine, as far as looking at it can tell; each refusal says what to do instead."""

from __future__ import annotations

import os
import sys

from benchflow.errors import SandboxUnavailableError
from benchflow.planes.sandbox.local.helper.system_calls import MACHINES

DOCKER = "use --sandbox docker"

_OF_ONE_PIECE = ("/usr", "/etc", "/var", "/bin", "/sbin", "/lib", "/lib64", "/usr/lib", "/usr/bin", "/var/lib")
"""Directories that must lie on the file system of `/`: an overlay shows nothing of what is mounted below it."""


def require_platform(platform: str = sys.platform, user: int | None = None) -> None:
    """Linux, as root, with what the kernel must have."""
    if platform != "linux":
        raise SandboxUnavailableError("local sandboxes need Linux", remedy=DOCKER)
    if os.uname().machine not in MACHINES:
        raise SandboxUnavailableError(f"local sandboxes are not made for {os.uname().machine} machines", remedy=DOCKER)
    if (os.geteuid() if user is None else user) != 0:
        raise SandboxUnavailableError(
            "local sandboxes need root: only root may lay a copy-on-write view over this machine's files",
            remedy=f"run as root (sudo), or {DOCKER}",
        )


def require_one_root(mountinfo: str) -> None:
    """Refuse a machine whose programs are spread over file systems. mountinfo: as in proc(5)."""
    points = {line.split()[4] for line in mountinfo.splitlines() if line}
    for path in _OF_ONE_PIECE:
        if path in points:
            raise SandboxUnavailableError(
                f"{path} is a file system of its own, and would be empty in a local sandbox",
                remedy=f"{DOCKER}, or run on a machine (or in a virtual machine) whose {path} is part of /",
            )
