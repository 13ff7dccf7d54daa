"""A Docker daemon beside the machine's own, as another host would have it: with images and containers of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import docker
from support.counted_task import BASE_IMAGE
from support.debian_root import debian_root

from benchflow.testing.waiting import until

# A copy of a mount holds what is mounted: stacks of other tests could not let go of their stores.
_ALONE = """
awk '$5 ~ "/local/" {print $5}' /proc/self/mountinfo | sort -r | while read -r point; do umount -l "$point"; done
echo ready
exec sleep infinity
"""


class SecondDaemon:
    """A daemon that a test may kill, freeze and start again.

    Args:
        root: Directory of all that it keeps, which is short: sockets have short paths.
        keeps_containers: Whether containers run on while it is away ("live restore").
        disk_bytes: Size of a disk of its own for its data; 0 for none.
        system: Root directory of the Debian system whose programs it is; this machine's by default.
        has_containerd_store: Whether it keeps its images in containerd's store, which is 29's default, and 23's option.
    """

    def __init__(
        self,
        root: Path,
        *,
        keeps_containers: bool = False,
        disk_bytes: int = 0,
        system: Path | None = None,
        has_containerd_store: bool = False,
    ) -> None:
        self.data = root / "data"
        if disk_bytes:
            self.data.mkdir()
            options = f"size={disk_bytes},mode=0710"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "benchflow-test", str(self.data)], check=True)
        self.address = f"unix://{root}/sock"
        self._root = root
        self._settings = {
            "live-restore": keeps_containers,
            "features": {"containerd-snapshotter": True} if has_containerd_store else {},
        }
        # Its libraries are there as well. The rest of a Debian system is links to it, and configuration.
        self._mount = "" if system is None else f"mount --bind {shlex.quote(str(system / 'usr'))} /usr\n"
        self._namespaces: asyncio.subprocess.Process | None = None
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        """Start it, and return when it answers."""
        root = self._root
        (root / "daemon.json").write_text(json.dumps(self._settings))
        if self._namespaces is None:
            # Its bridge and rules are not the other's, its mounts go with it, and outlive it until then.
            self._namespaces = await asyncio.create_subprocess_exec(
                *("unshare", "--net", "--mount", "sh", "-ec", f"{self._mount}{_ALONE}"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
            assert self._namespaces.stdout is not None
            assert await self._namespaces.stdout.readline() == b"ready\n"
        with (root / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("nsenter", f"--target={self._namespaces.pid}", "--net", "--mount"),
                *("dockerd", f"--host={self.address}", f"--data-root={root}/data"),
                *(f"--exec-root={root}/run", f"--pidfile={root}/pid", "--bridge=none", "--iptables=false"),
                f"--config-file={root}/daemon.json",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        with contextlib.closing(await _connect(self.address, self._process, root / "log")):
            pass

    async def load(self, image: str) -> None:
        """Give it an image of the machine's own daemon."""
        with (
            contextlib.closing(docker.from_env()) as mine,
            contextlib.closing(docker.DockerClient(self.address, timeout=120)) as other,
        ):
            await asyncio.to_thread(lambda: other.images.load(mine.images.get(image).save(named=True)))

    async def kill(self) -> None:
        """Kill it, with its containerd. Its containers run on until it starts again."""
        containerd = self.containerd
        self._process.kill()
        await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(containerd, signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{containerd}").exists())

    async def stop(self) -> None:
        """Tell it to end. It ends its containers before, unless it keeps them."""
        self._process.terminate()
        await asyncio.wait_for(self._process.wait(), 60)

    def freeze(self) -> None:
        """Stop it, so that it takes connections and answers nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on after `freeze`."""
        self._process.send_signal(signal.SIGCONT)

    @property
    def containerd(self) -> int:
        """Return the pid of its containerd, which it starts again."""
        return int((self._root / "run/containerd/containerd.pid").read_text())

    async def end(self) -> None:
        """End it with all that it has left, in whichever state it is."""
        if self._process.returncode is None:
            self.thaw()
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), 60)
        finally:
            await _end_all(self._root)
            if self._namespaces is not None:
                self._namespaces.kill()
                await self._namespaces.wait()
            if self.data.is_mount():
                unmounting = await asyncio.create_subprocess_exec("umount", "-l", str(self.data))
                assert await unmounting.wait() == 0
            shutil.rmtree(self._root)


@contextlib.asynccontextmanager
async def fragile_daemon(**options: Any) -> AsyncIterator[SecondDaemon]:
    """Yield a daemon that knows nothing but the base image. Afterwards nothing is left of it.

    Args:
        options: Of `SecondDaemon`.
    """
    root = Path(tempfile.mkdtemp(prefix="bf-docker-", dir="/tmp"))
    daemon = SecondDaemon(root, **options)
    try:
        await daemon.start()
        await daemon.load(BASE_IMAGE)
        yield daemon
    finally:
        await daemon.end()


@contextlib.asynccontextmanager
async def second_daemon() -> AsyncIterator[str]:
    """Yield the address of a daemon that knows nothing but the base image. Afterwards nothing is left of it."""
    async with fragile_daemon() as daemon:
        yield daemon.address


@contextlib.asynccontextmanager
async def containerd_store_daemon() -> AsyncIterator[SecondDaemon]:
    """Yield a daemon of Debian trixie's (Docker 26) that keeps its images in containerd's store, as 29 does by default.

    Skips the test where its programs can't be had.
    """
    system = await asyncio.to_thread(debian_root, "trixie", "docker.io")
    async with fragile_daemon(system=system, has_containerd_store=True) as daemon:
        yield daemon


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
    """End what the daemon has left of a test that failed: processes that hold its directory, and its containers'."""
    containers = [it.name for it in (root / "data" / "containers").glob("*")]

    def ended() -> bool:
        left = [int(it.name) for it in Path("/proc").glob("[0-9]*") if _is_of(it, root, containers)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    await until(ended, every=0.1)


def _is_of(process: Path, root: Path, containers: list[str]) -> bool:
    # A container's own process outlives whoever has started it, and has nothing of the directory in its words.
    with contextlib.suppress(OSError):
        in_container = any(name in (process / "cgroup").read_text() for name in containers)
        return in_container or os.fsencode(root) in (process / "cmdline").read_bytes()
    return False
