"""The outputs of commands in a local sandbox, in files on the host."""

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
"""Placeholder in place of an exit code and newline, as long as the longest."""

_PAGE = 4096


class CommandOutputs(ABC):
    """Stdout and stderr of a command."""

    @abstractmethod
    def _opened(self) -> contextlib.AbstractContextManager[tuple[int, int]]:
        """Open both for reading and writing, and return a context with their descriptors."""

    def content(self) -> ProcessOutput:
        """Return stdout and stderr, without their middle if they are too long."""
        with self._opened() as (out, err):
            stdout, cut_out = _read_content(out)
            stderr, cut_err = _read_content(err)
        return ProcessOutput(stdout=stdout, stderr=stderr, truncated=cut_out or cut_err)

    def tail(self, limit: int) -> str:
        """Return the last `limit` bytes of stdout, as text."""
        with self._opened() as (out, _):
            start = max(0, os.fstat(out).st_size - limit)
            return os.pread(out, limit, start).decode(errors="replace")

    def trim(self) -> None:
        """Free the disk space of the middle of an output that has grown too large. The command goes on appending."""
        with self._opened() as outputs:
            for output in outputs:
                _trim(output)


class NamedOutputs(CommandOutputs):
    """The outputs of a command that other processes of the engine may ask for: the files `out` and `err`.

    Args:
        directory: Directory of the files. Methods raise `FileNotFoundError` if it has been removed.
    """

    def __init__(self, directory: Path) -> None:
        """Make it."""
        self._directory = directory

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[int, int]]:
        with (self._directory / "out").open("r+b") as out, (self._directory / "err").open("r+b") as err:
            yield out.fileno(), err.fileno()


class UnnamedOutputs(CommandOutputs):
    """The outputs of a command that only this process asks for: files without names, which vanish with this object.

    The exit code comes through a pipe, which is faster than waiting for the process that writes it.

    Args:
        directory: Directory on whose filesystem the files lie. It is created if it is missing.
    """

    def __init__(self, directory: Path) -> None:
        """Open the files and the pipe."""
        self._open: list[int] = []
        directory.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            self._open.append(os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600))
        self._open.extend(os.pipe2(os.O_CLOEXEC))
        self.given = (self._open[0], self._open[1], self._open[3])
        """Descriptors for the command: stdout, stderr, and the pipe for its exit code."""
        self.end = self._open[2]
        os.set_blocking(self.end, False)
        self.code: bytes | None = None
        """Exit code as written to the pipe; empty if the process that waited for the command has died. None before."""

    def __del__(self) -> None:
        """Close the files and the pipe."""
        # Here rather than earlier: a thread that is not awaited any more may still read, and after a close the numbers
        # of the descriptors may be reused for other files.
        self.close()

    def close(self) -> None:
        """Close the files and the pipe. Nothing may read them any more."""
        while self._open:
            os.close(self._open.pop())

    def leave_to_writer(self) -> None:
        """Close this process's write end of the pipe, so that it ends with the process that waits for the command."""
        os.close(self._open.pop())

    def is_over(self) -> bool:
        """Return whether the command has ended, and read its exit code."""
        if self.code is None:
            with contextlib.suppress(BlockingIOError):
                self.code = os.read(self.end, len(BLANK))
        return self.code is not None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[int, int]]:
        yield self._open[0], self._open[1]


def _read_content(fd: int) -> tuple[str, bool]:
    """Return a file's text, and whether its middle was left out."""
    size = os.fstat(fd).st_size
    if size <= OUTPUT_CAP:
        return os.pread(fd, size, 0).decode(errors="replace"), False
    half = OUTPUT_CAP // 2
    head, tail = os.pread(fd, half, 0), os.pread(fd, half, size - half)
    return head.decode(errors="replace") + LEFT_OUT + tail.decode(errors="replace"), True


def _trim(fd: int) -> None:
    """Punch a hole into the middle of a file that takes more than `OUTPUT_ON_DISK` bytes."""
    if os.fstat(fd).st_blocks * 512 <= OUTPUT_ON_DISK:
        return
    size = os.fstat(fd).st_size
    first = -(-OUTPUT_CAP // 2 // _PAGE) * _PAGE
    last = (size - OUTPUT_CAP // 2) // _PAGE * _PAGE
    # On a filesystem that cannot punch holes, the file stays whole.
    with contextlib.suppress(OSError):
        punch_hole(fd, first, last - first)
