"""What holds an agent's stdio, where the host is short of space or of watches: the agent waits, and loses no byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.outages import filled, tmpfs

from benchflow.planes.agent.toolbox import PUMP, Toolbox
from benchflow.testing.waiting import until

SIZE = 8 << 20
ROOM = 64 * 1024
"""Bytes that the disk has left: a piece of the agent's output is written in part."""

NUMBERS = "".join(f"{number}\n" for number in range(1, 200_001)).encode()
"""More than the disk has left and a pipe holds."""


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[Path]:
    """A directory of journals, on a disk of its own."""
    directory = tmp_path / "journals"
    with tmpfs(directory, SIZE):
        for name in ("in", "out", "err"):
            (directory / name).touch()
        yield directory


@contextmanager
def pumped(runtime: Toolbox, journals: Path, script: str, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    """Hold the stdio of a shell that runs a script; killed with it in the end. before: what starts it."""
    own = (str(journals), str(os.getuid()), str(os.getgid()), "/")
    pump = [word.replace(runtime.mount_path, str(runtime.root)) for word in runtime.find_program(PUMP)]
    argv = [*before, *pump, *own, "sh", "-c", script]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def has_agent(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether the agent of a pump runs, or has not been reaped."""
    return bool(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


def is_full(directory: Path) -> bool:
    return os.statvfs(directory).f_bavail == 0


async def exit_of(process: subprocess.Popen[bytes], journals: Path) -> dict[str, object]:
    """Return the record of the agent's end, which the pump writes and then ends."""
    assert await until(lambda: process.poll() is not None, every=0.02) and process.stdout is not None
    assert process.returncode == 0, process.stdout.read().decode()
    record: dict[str, object] = json.loads((journals / "exit").read_text())
    return record


async def test_an_agent_that_writes_to_a_full_disk_waits_and_loses_no_byte(runtime: Toolbox, journals: Path) -> None:
    script = f"cd {journals}; echo before >&2; until [ -e go ]; do sleep 0.02; done; seq 1 200000; echo log >&2; exit 3"
    with pumped(runtime, journals, script) as process:
        await until(lambda: (journals / "err").read_bytes() == b"before\n", every=0.02)
        with filled(journals, but_for=ROOM):
            (journals / "go").touch()
            await until(lambda: is_full(journals) or process.poll() is not None, every=0.02)
            # Its pipe is full, too.
            assert has_agent(process)
            assert NUMBERS.startswith((journals / "out").read_bytes())
        assert await exit_of(process, journals) == {"code": 3, "signal": None}
    assert (journals / "out").read_bytes() == NUMBERS
    assert (journals / "err").read_bytes() == b"before\nlog\n"


@pytest.mark.parametrize(
    "leaves",
    [
        pytest.param("", id="nothing"),
        pytest.param("sleep 60 &", id="a process with its output", marks=pytest.mark.long),
        pytest.param("(sleep 60 >/dev/null) 2>&1 &", id="one with its log", marks=pytest.mark.long),
    ],
)
async def test_an_agent_that_ends_on_a_full_disk_has_its_end_written_behind_its_last_output(
    runtime: Toolbox, journals: Path, leaves: str
) -> None:
    script = f"cd {journals}; until [ -e go ]; do sleep 0.02; done; seq 1 30000; echo log >&2; {leaves} exit 3"
    with pumped(runtime, journals, script) as process:
        with filled(journals, but_for=ROOM):
            (journals / "go").touch()
            await until(lambda: is_full(journals) or process.poll() is not None, every=0.02)
            await until(lambda: not has_agent(process) or process.poll() is not None, every=0.02)
            assert process.poll() is None and not (journals / "exit").exists()
        assert await exit_of(process, journals) == {"code": 3, "signal": None}
    assert (journals / "out").read_bytes() == NUMBERS[: NUMBERS.index(b"\n30000\n") + 7]


async def test_an_agent_is_told_what_is_sent_where_its_journal_cannot_be_watched(
    runtime: Toolbox, journals: Path
) -> None:
    # A user may have 128 watchers of files by default, and all agents of a host are held by one.
    unwatched = ("unshare", "--user", "--map-root-user", "sh", "-c")
    none = 'echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"'
    with pumped(runtime, journals, "read line; exit $line", *unwatched, none, "sh") as process:
        (journals / "in").write_text("7\n")
        assert await exit_of(process, journals) == {"code": 7, "signal": None}
