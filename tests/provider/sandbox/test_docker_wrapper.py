"""The shell script around a command in a sandbox."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import pytest

from benchflow.contracts.driver import Process
from benchflow.planes.sandbox.driven import wrapped


@pytest.mark.docker
@pytest.mark.parametrize(("script", "status"), [("exit 7", b"7"), ("kill -9 $$", b"137")])
async def test_an_exit_status_needs_no_more_of_the_disk_than_its_room_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, status: bytes
) -> None:
    """What gives anything back, if only for a moment, may find it taken on a disk that is full."""
    file = os.memfd_create("exit", os.MFD_ALLOW_SEALING)
    os.write(file, b"     \n")
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    (tmp_path / "exit").symlink_to(f"/proc/{os.getpid()}/fd/{file}")
    monkeypatch.setattr(wrapped, "COMMANDS", str(tmp_path.parent))
    seen = ("sh", "-c", f'cat "{tmp_path}/exit"; {script}')
    process = await asyncio.create_subprocess_exec(*wrapped.wrap_process(Process(id=tmp_path.name, argv=seen)).argv)
    assert await process.wait() == int(status)
    assert os.pread(file, 100, 0).strip() == status
    assert (tmp_path / "out").read_bytes().strip() == b"begun"
    os.close(file)
