"""What commands in a local sandbox leave on this host, also where its disk fills up."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.outages import fill
from support.verified_sandboxes import InLocal

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import DiskFullError, SandboxError
from benchflow.testing.sandbox_conformance.exactly_once_tests import Once


@pytest.mark.local
class TestOnASmallDisk(InLocal):
    @pytest.fixture
    def records(self, own: Sandbox, state_directory: Path) -> Iterator[Path]:
        """The directory of what is kept of the sandbox's commands, on a small disk of its own."""
        records = state_directory / "exec" / own.ref.handle
        outputs = next(state_directory.glob(f"local/**/sandboxes/{own.ref.name}/spec.json")).parent / "exec"
        for directory in (records, outputs):
            directory.mkdir(parents=True, exist_ok=True)
        options = "size=64k,mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "benchflow-test", str(records)], check=True)
        (records / "outputs").mkdir()
        subprocess.run(["mount", "--bind", str(records / "outputs"), str(outputs)], check=True)
        yield records
        subprocess.run(["umount", "-l", str(outputs), str(records)], check=True)

    async def test_the_end_of_a_command_is_seen_although_the_disk_was_filled_meanwhile(
        self, own: Sandbox, records: Path
    ) -> None:
        once = Once(own, "/root")
        go = f"{once.file}.go"
        command = once.of(f"until [ -e {go} ]; do sleep 0.05; done; exit 7")
        waiting = asyncio.create_task(own.exec_once(once.key, command))
        await once.runs()
        fill(records / "filler")
        await own.write_file(go, "")
        with pytest.raises(DiskFullError):
            await waiting
        (records / "filler").unlink()
        assert (await own.exec_once(once.key, command)).return_code == 7
        assert await once.count() == 1

    async def test_a_command_whose_exit_status_would_not_fit_is_run_when_there_is_space(
        self, own: Sandbox, records: Path
    ) -> None:
        once = Once(own, "/root")
        fill(records / "filler")
        with pytest.raises(DiskFullError):
            await own.exec_once(once.key, once.command)
        (records / "filler").unlink()
        assert (await own.exec_once(once.key, once.command)).return_code == 7
        assert await once.count() == 1


@pytest.mark.local
class TestWhatIsLeft(InLocal):
    async def test_a_command_without_a_key_leaves_nothing_open_and_no_file_however_it_ends(
        self, own: Sandbox, state_directory: Path
    ) -> None:
        assert (await own.exec(["echo", "hello"])).stdout == "hello\n"
        assert (await own.exec(["sleep", "60"], timeout=0.2)).timed_out
        with pytest.raises(SandboxError):
            await own.exec(["true"], user="nobody-of-this-name")
        cancelled = asyncio.create_task(own.exec(["sh", "-c", "touch /root/runs; sleep 60"]))
        while (await own.exec(["test", "-e", "/root/runs"])).return_code != 0:
            await asyncio.sleep(0.02)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        while _open_under(state_directory, own.ref.name):
            await asyncio.sleep(0.02)
        rooms = next(state_directory.glob(f"local/**/sandboxes/{own.ref.name}/spec.json")).parent / "exec"
        assert not rooms.exists() or not list(rooms.iterdir())


def _open_under(directory: Path, part: str) -> list[str]:
    """Return the files that this process has open in a sandbox's records."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = str(fd.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(str(directory)) and part in target:
            found.append(target)
    return found
