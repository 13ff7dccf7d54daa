"""The command line in a process of its own, whose output is read while it runs: from a pipe, or from a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchflow.testing.waiting import until

BENCH = [sys.executable, "-m", "benchflow.cli"]


@contextmanager
def reading(*arguments: str, terminal: bool = False) -> Iterator[Reader]:
    """Run `bench` with these arguments. It is killed in the end, wherever it is."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen([*BENCH, *arguments], stdout=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    try:
        yield Reader(process, ours)
    finally:
        process.kill()
        process.communicate()
        os.close(ours)


class Reader:
    """What a process says. text: so far."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process, self._fd, self.text = process, fd, ""

    def until(self, wanted: str) -> None:
        def is_said() -> bool:
            while wanted not in self.text and select.select([self._fd], [], [], 0)[0]:
                assert self._read(), f"it ended without {wanted!r}: {self.text!r}"
            return wanted in self.text

        asyncio.run(until(is_said))

    def rest(self) -> int:
        """Read to the end. Returns the exit status."""
        while self._read():
            pass
        return self.process.wait(300)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        self.text += data.decode(errors="replace")
        return bool(data)
