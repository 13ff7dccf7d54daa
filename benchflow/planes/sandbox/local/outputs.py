"""What commands in a local sandbox have printed, in files outside of it."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from benchflow.contracts.accelerators import ProcessOutput
from benchflow.planes.sandbox.local.helper.kernel import punch_hole
from benchflow.planes.sandbox.outcome import LEFT_OUT, OUTPUT_CAP, OUTPUT_ON_DISK

BLANK = b"   \n"
"""As long as an exit code is at most."""

_PAGE = 4096


class Outputs(ABC):
    """Standard output and error output of a command."""

    @abstractmethod
    def _opened(self) -> contextlib.AbstractContextManager[tuple[int, int]]:
        """Open both, to be read and changed."""

    def content(self) -> ProcessOutput:
        """Return all of both, without their middle where they are too long."""
        with self._opened() as (out, err):
            stdout, cut_out = _content(out)
            stderr, cut_err = _content(err)
        return ProcessOutput(stdout=stdout, stderr=stderr, truncated=cut_out or cut_err)

    def tail(self, limit: int) -> str:
        """Return the last bytes of standard output."""
        with self._opened() as (out, _):
            start = max(0, os.fstat(out).st_size - limit)
            return os.pread(out, limit, start).decode(errors="replace")

    def trim(self) -> None:
        """Give back the middle of what has grown too large; what is written goes on at its end."""
        with self._opened() as outputs:
            for output in outputs:
                _trim(output)


class NamedOutputs(Outputs):
    """The outputs of a command that other processes of the engine may ask for: files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[int, int]]:
        with (self._directory / "out").open("r+b") as out, (self._directory / "err").open("r+b") as err:
            yield out.fileno(), err.fileno()


class UnnamedOutputs(Outputs):
    """The outputs of a command that nobody else asks for: files without names, gone with this object.

    Its exit code comes through a pipe, which is faster than to wait for the process that writes it.
    """

    def __init__(self, directory: Path) -> None:
        self._open: list[int] = []
        directory.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            self._open.append(os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600))
        self._open.extend(os.pipe2(os.O_CLOEXEC))
        self.given = (self._open[0], self._open[1], self._open[3])
        """Where the command prints, and where its exit code is to be written."""
        self.end = self._open[2]
        os.set_blocking(self.end, False)
        self.code: bytes | None = None
        """What was written of its end: nothing, if the process that waited for the command has died. None before."""

    def __del__(self) -> None:
        # Most end here: a thread that was not waited for may still read, and after a close the numbers be others'.
        self.close()

    def close(self) -> None:
        """Let go of all. Nothing may read any more."""
        while self._open:
            os.close(self._open.pop())

    def leave_to_writer(self) -> None:
        """Close the pipe's end for writing here: it ends with the process that waits for the command."""
        os.close(self._open.pop())

    def is_over(self) -> bool:
        """Return whether the command has ended."""
        if self.code is None:
            with contextlib.suppress(BlockingIOError):
                self.code = os.read(self.end, len(BLANK))
        return self.code is not None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[int, int]]:
        yield self._open[0], self._open[1]


def _content(fd: int) -> tuple[str, bool]:
    size = os.fstat(fd).st_size
    if size <= OUTPUT_CAP:
        return os.pread(fd, size, 0).decode(errors="replace"), False
    half = OUTPUT_CAP // 2
    head, tail = os.pread(fd, half, 0), os.pread(fd, half, size - half)
    return head.decode(errors="replace") + LEFT_OUT + tail.decode(errors="replace"), True


def _trim(fd: int) -> None:
    if os.fstat(fd).st_blocks * 512 <= OUTPUT_ON_DISK:
        return
    size = os.fstat(fd).st_size
    first = -(-OUTPUT_CAP // 2 // _PAGE) * _PAGE
    last = (size - OUTPUT_CAP // 2) // _PAGE * _PAGE
    # A file system that cannot do it keeps the whole.
    with contextlib.suppress(OSError):
        punch_hole(fd, first, last - first)
