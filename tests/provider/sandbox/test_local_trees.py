"""Many local sandboxes at once and after one another: ports, forks of forks, worlds under way, other file systems."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_sandboxes import OverTheHost

from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.local import fingerprint
from benchflow.planes.sandbox.local.machine import Machine
from benchflow.testing.sandbox_conformance.network_tests import PORT, fetched
from benchflow.testing.sandbox_conformance.sandbox_fixtures import Start, nap
from benchflow.testing.sandbox_conformance.snapshot_tests import begin, is_whole, logged, names, progress
from benchflow.testing.waiting import until

pytestmark = pytest.mark.local

SERVE = """
import socket, sys
page = sys.argv[1].encode()
with socket.create_server(("0.0.0.0", int(sys.argv[2]))) as server:
    while True:
        there, _ = server.accept()
        with there:
            there.recv(1000)
            there.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + page)
"""

MANY = 20
TOGETHER = 4


def volumes() -> list[str]:
    """Every volume of the store, whatever it is for."""
    store = Machine().store
    try:
        return [f"{kind}/{name}" for kind in ("images", "masters", "sandboxes") for name in store.names(kind)]
    finally:
        store.release()


async def layers(sandbox: Sandbox) -> list[str]:
    """The directories that the sandbox's root is laid over."""
    root = (await sandbox.exec(["head", "-n", "1", "/proc/self/mountinfo"])).stdout.split()
    (lower,) = [option for option in root[-1].split(",") if option.startswith("lowerdir=")]
    return lower.removeprefix("lowerdir=").split(":")


def unmount(point: Path) -> None:
    """Unmount what the kernel lets go of in its own time when the last sandbox has ended."""
    asyncio.run(until(lambda: subprocess.run(["umount", str(point)], capture_output=True).returncode == 0))


class TestPorts(OverTheHost):
    @pytest.mark.long
    async def test_twenty_sandboxes_serve_at_the_same_port_at_once(self, start: Start) -> None:
        sandboxes = await asyncio.gather(*(start(network_mode="public") for _ in range(MANY)))
        serve = 'python3 -S -c "$@" >/dev/null 2>&1 &'
        await asyncio.gather(
            *(
                sandbox.exec(["sh", "-c", serve, "sh", SERVE, f"page {n}", str(PORT)])
                for n, sandbox in enumerate(sandboxes)
            )
        )
        addresses = [await sandbox.expose_port(PORT) for sandbox in sandboxes]
        assert len(set(addresses)) == MANY
        pages = await asyncio.gather(*(fetched(address) for address in addresses))
        assert pages == [f"page {n}".encode() for n in range(MANY)]

    async def test_a_child_serves_at_its_parents_port_at_an_address_of_its_own(
        self, start: Start, provider: SandboxProvider
    ) -> None:
        parent = await start(network_mode="public")
        children = [await provider.attach(ref) for ref in await parent.fork(names(2))]
        serve = 'python3 -S -c "$@" >/dev/null 2>&1 &'
        for sandbox in (parent, *children):
            await sandbox.exec(["sh", "-c", serve, "sh", SERVE, sandbox.ref.name, str(PORT)])
            assert await fetched(await sandbox.expose_port(PORT)) == sandbox.ref.name.encode()


class TestForks(OverTheHost):
    @pytest.mark.parametrize("generations", [5, pytest.param(100, marks=pytest.mark.long)])
    async def test_the_last_generation_lies_over_no_more_than_the_first(
        self, start: Start, provider: SandboxProvider, generations: int
    ) -> None:
        sandbox = await start()
        first = await layers(sandbox)
        before = volumes()
        for generation in range(generations):
            write = f"echo {generation} >>/lines; rm -rf /tree; mkdir /tree; echo {generation} >/tree/{generation}"
            assert (await sandbox.exec(["sh", "-c", write])).return_code == 0
            (ref,) = await sandbox.fork(names(1))
            await provider.remove(sandbox.ref.name)
            sandbox = await provider.attach(ref)
        assert (await sandbox.read_bytes("/lines")).split() == [b"%d" % n for n in range(generations)]
        assert (await sandbox.exec(["ls", "/tree"])).stdout == f"{generations - 1}\n"
        assert await layers(sandbox) == first
        assert len(volumes()) == len(before)

    @pytest.mark.long
    @pytest.mark.parametrize("forks", [12, 100])
    async def test_a_database_a_log_and_a_mapped_file_are_of_one_moment_in_every_fork(
        self, start: Start, provider: SandboxProvider, forks: int
    ) -> None:
        world = await begin(await start())
        last = 0
        for _ in range(forks // TOGETHER):
            before = await logged(world)
            refs = await world.fork(names(TOGETHER))
            children = [await provider.attach(ref) for ref in refs]
            states = await asyncio.gather(*(is_whole(child) for child in children))
            assert all(state == states[0] for state in states)
            assert states[0]["log"] >= before >= last
            last = before
            await asyncio.gather(*(provider.remove(ref.name) for ref in refs))
        assert await progress(world)


class TestAChangedHost(OverTheHost):
    async def test_what_was_captured_before_a_program_changed_is_refused_and_nothing_is_given_up(
        self, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # One more place of programs that only this process looks at: by a new one in theirs, all stacks of this machine
        # would refuse what they have.
        place = tmp_path / "bin"
        place.mkdir()
        monkeypatch.setattr(fingerprint, "LISTED", (*fingerprint.LISTED, str(place.relative_to("/"))))
        sandbox = await start()
        await sandbox.write_file("/kept", "then")
        image = await sandbox.snapshot(f"kept-{nap()}")
        await sandbox.write_file("/kept", "now")
        program = place / "program"
        program.write_text("#!/bin/sh\n")
        said = await asyncio.gather(sandbox.restore(image), start(image=image), return_exceptions=True)
        program.unlink()
        for error in said:
            assert isinstance(error, SandboxError) and "programs have changed" in error.message and error.remedy
        assert await sandbox.read_bytes("/kept") == b"now"
        await sandbox.restore(image)
        assert await sandbox.read_bytes("/kept") == b"then"
        assert await (await start(image=image)).read_bytes("/kept") == b"then"


KINDS = {"xfs": "reflink", "ext4": "copy"}


@pytest.mark.long
@pytest.mark.parametrize("file_system", KINDS, scope="class")
class TestOtherFileSystems(OverTheHost):
    @pytest.fixture(scope="class")
    @classmethod
    def state_directory(cls, file_system: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        """A state directory whose store is on a file system made for it."""
        directory = tmp_path_factory.mktemp(f"state-{file_system}")
        image, point = directory / "image", directory / "given"
        with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
            with image.open("wb") as file:
                file.truncate(400 << 20)
            quiet = {"stdout": subprocess.DEVNULL, "check": True}
            subprocess.run([f"mkfs.{file_system}", "-q", str(image)], **quiet)  # type: ignore[call-overload]
            point.mkdir()
            subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)
            stack.callback(unmount, point)
            patch.setenv("BENCHFLOW_STATE_DIR", str(directory / "state"))
            patch.setenv("BENCHFLOW_LOCAL_STORE", str(point))
            yield directory / "state"

    async def test_a_world_under_way_is_kept_gone_back_to_and_forked_whole(
        self, start: Start, provider: SandboxProvider, file_system: str
    ) -> None:
        world = await begin(await start())
        store = Machine().store
        assert store.kind == KINDS[file_system]
        store.release()
        image = await world.snapshot(f"kept-{nap()}")
        refs = await world.fork(names(2))
        assert await progress(world)
        for child in [await provider.attach(ref) for ref in refs]:
            await is_whole(child)
        copy = await start(image=image)
        kept = await is_whole(copy)
        await world.restore(image)
        assert (await is_whole(world)) == kept

    async def test_what_copying_could_lose_is_kept(self, start: Start, provider: SandboxProvider) -> None:
        sandbox = await start()
        make = (
            "mkdir /d && cd /d && echo x >one && ln one other && chown 61000:61000 one && chmod 6750 one && mkfifo pipe"
            " && ln -s one link && truncate -s 100M sparse && touch -d 2001-02-03 one && rm -rf /etc/issue /etc/apt"
            " && mkdir /etc/apt && python3 -c \"import os; os.setxattr('one', 'user.note', b'kept')\""
        )
        assert (await sandbox.exec(["sh", "-c", make])).stderr == ""
        show = (
            "cd /d && stat -c '%n %F %u:%g %a %h %s %Y' * && du -k sparse && ls -A /etc/apt && ls /etc"
            " && python3 -c \"import os; print(os.getxattr('other', 'user.note'))\""
        )
        wanted = (await sandbox.exec(["sh", "-c", show])).stdout
        (ref,) = await sandbox.fork(names(1))
        child = await provider.attach(ref)
        (grandchild,) = await child.fork(names(1))
        for each in (child, await provider.attach(grandchild)):
            assert (await each.exec(["sh", "-c", show])).stdout == wanted
        assert "b'kept'" in wanted and "issue" not in wanted.split()
