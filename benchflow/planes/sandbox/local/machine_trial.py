"""A trial whether this machine can run a local sandbox: one is started, once per boot and set of programs."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import BenchFlowError, SandboxUnavailableError
from benchflow.paths import find_state_dir
from benchflow.planes.sandbox.local.fingerprint import compute_host_fingerprint
from benchflow.planes.sandbox.local.local_images import BARE
from benchflow.planes.sandbox.local.local_records import read_boot_id
from benchflow.planes.sandbox.local.requirements import DOCKER, require_one_root, require_platform

if TYPE_CHECKING:
    from benchflow.planes.sandbox.local.machine import Machine


async def require_machine() -> None:
    """Raise `SandboxUnavailableError` if no local sandbox can be started on this machine now.

    A sandbox is started and removed to find out, unless that succeeded since the last boot or change of programs.
    """
    require_platform()
    require_one_root(Path("/proc/self/mountinfo").read_text())
    passed = find_state_dir() / "local" / "trial"
    stamp = f"{read_boot_id()} {compute_host_fingerprint()}"
    if passed.is_file() and passed.read_text() == stamp:
        return
    from benchflow.planes.sandbox.local.machine import Machine

    # A machine of its own, closed afterwards: the caller may be a client that only submits.
    machine = Machine()
    try:
        await _try(machine)
    finally:
        machine.close()
    await asyncio.to_thread(passed.write_text, stamp)


async def _try(machine: Machine) -> None:
    """Start and remove a sandbox. Raise `SandboxUnavailableError` if that fails."""
    from benchflow.planes.sandbox.owners import make_owner_labels

    name = f"trial-{secrets.token_hex(6)}"
    image, labels = ImageRef(reference=BARE), make_owner_labels()
    try:
        await machine.start(SandboxSpec(name=name, image=image, labels=labels, network_mode="no-network"))
    except SandboxUnavailableError:
        raise
    except BenchFlowError as error:
        inside = " inside this container" if _is_in_container() else ""
        raise SandboxUnavailableError(
            f"this machine does not allow local sandboxes{inside}: {error.message}",
            remedy=f"{DOCKER}, or run on the machine itself"
            + (", or give the container --privileged" if inside else ""),
            log_tail=error.log_tail,
        ) from error
    finally:
        await machine.remove(name)
        with suppress(BenchFlowError):
            await machine.sweep()


def _is_in_container() -> bool:
    """Return whether this process seems to run in a container."""
    return any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")) or _container_cgroup()


def _container_cgroup() -> bool:
    """Return whether the cgroup of pid 1 is named like a container's."""
    try:
        return any(word in Path("/proc/1/cgroup").read_text() for word in ("docker", "kubepods", "containerd", "lxc"))
    except OSError:
        return False
