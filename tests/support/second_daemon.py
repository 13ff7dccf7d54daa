"""A Docker daemon beside the machine's own, as another host would have it: with images and containers of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import docker
from support.counted_task import BASE_IMAGE

from benchflow.testing.waiting import until

# A copy of a mount holds what is mounted: stacks of other tests could not let go of their stores.
_ALONE = """
awk '$5 ~ "/local/" {print $5}' /proc/self/mountinfo | sort -r | while read -r point; do umount -l "$point"; done
exec "$@"
"""


@contextlib.asynccontextmanager
async def second_daemon() -> AsyncIterator[str]:
    """The address of a daemon that knows nothing but the base image. Afterwards nothing is left of it."""
    # Sockets have short paths.
    root = Path(tempfile.mkdtemp(prefix="bf-docker-", dir="/tmp"))
    address = f"unix://{root}/sock"
    with (root / "log").open("wb") as log:
        # In namespaces of its own: its bridge and rules are not the other's, and its mounts go with it.
        process = await asyncio.create_subprocess_exec(
            *("unshare", "--net", "--mount", "sh", "-ec", _ALONE, "sh"),
            *("dockerd", f"--host={address}", f"--data-root={root}/data"),
            *(f"--exec-root={root}/run", f"--pidfile={root}/pid", "--bridge=none", "--iptables=false"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        other = await _connect(address, process, root / "log")
        with contextlib.closing(docker.from_env()) as mine, contextlib.closing(other):
            await asyncio.to_thread(lambda: other.images.load(mine.images.get(BASE_IMAGE).save(named=True)))
        yield address
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 60)
        finally:
            await _end_all(root)
            shutil.rmtree(root)


async def _connect(address: str, process: asyncio.subprocess.Process, log: Path) -> docker.DockerClient:
    def connected() -> docker.DockerClient | None:
        try:
            client = docker.DockerClient(address, timeout=120)
            client.ping()
            return client
        except (docker.errors.DockerException, OSError):
            assert process.returncode is None, log.read_text()[-3000:]
            return None

    client = await until(connected, every=0.1)
    assert client is not None
    return client


async def _end_all(root: Path) -> None:
    """End what the daemon has left of a test that failed: processes that hold its directory."""

    def ended() -> bool:
        left = [int(it.name) for it in Path("/proc").glob("[0-9]*") if _is_of(it, root)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    await until(ended, every=0.1)


def _is_of(process: Path, root: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.fsencode(root) in (process / "cmdline").read_bytes()
    return False
