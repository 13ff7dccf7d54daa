"""Requirements of local sandboxes that can be checked by looking at the machine; each refusal has a remedy."""

from __future__ import annotations

import os
import sys

from benchflow.errors import SandboxUnavailableError
from benchflow.planes.sandbox.local.helper.system_calls import MACHINES

DOCKER = "use --sandbox docker"
"""Remedy that always helps."""

_OF_ONE_PIECE = ("/usr", "/etc", "/var", "/bin", "/sbin", "/lib", "/lib64", "/usr/lib", "/usr/bin", "/var/lib")
"""Directories that must lie on the filesystem of `/`: an overlay does not show what is mounted below its layers."""


def require_platform(platform: str = sys.platform, user: int | None = None) -> None:
    """Raise `SandboxUnavailableError` unless this is Linux, as root, on a supported kind of machine.

    Args:
        platform: Platform, as `sys.platform`.
        user: Effective uid; None for that of this process.
    """
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
    """Raise `SandboxUnavailableError` for a machine whose programs are spread over several filesystems.

    Args:
        mountinfo: Mount table, in the format of /proc/self/mountinfo.
    """
    points = {line.split()[4] for line in mountinfo.splitlines() if line}
    for path in _OF_ONE_PIECE:
        if path in points:
            raise SandboxUnavailableError(
                f"{path} is a file system of its own, and would be empty in a local sandbox",
                remedy=f"{DOCKER}, or run on a machine (or in a virtual machine) whose {path} is part of /",
            )
