"""A process of a sandbox, as a row of its process table."""

from __future__ import annotations

from dataclasses import dataclass

FOREIGN_CODE = "foreign"
"""Value of `RunningProcess.code` for a process that provably executes other code than its program's own."""


@dataclass(frozen=True)
class RunningProcess:
    """A running process of a sandbox, from `/proc` of the sandbox or of its host."""

    pid: int
    """Process id: inside the sandbox or, from a driver with `KeepsProcesses`, on the host. Negative for a process that
    was gone before it could be read."""

    parent: int
    """Pid of the parent: 0 if that is outside of the sandbox, 1 for an orphan."""

    session: int
    """Session id: the pid of the process that started its session."""

    start: int
    """Start time in clock ticks since boot, which tells apart two processes that had the same pid."""

    state: str
    """State letter as in `/proc/PID/stat`, such as `R`, `S` or `T`. `Z` for one that has ended; `?` for one that could
    not be read."""

    name: bytes
    """Name of the program as the kernel has it: at most 15 bytes, not necessarily text."""

    user: str
    """Real user and group id, as `uid:gid`; empty in a table that was read on the host."""

    marked: bool | None
    """Whether its environment has the marker that was looked for, by which a command's descendants are known. None if
    its environment could not be read, or was not, as on the host."""

    entered: bool
    """Whether it descends from a command that the engine started, and not from the image's entrypoint."""

    argv: bytes = b""
    """Arguments, with spaces between them where the reader can separate them."""

    runs_same_file: bool | None = None
    """Whether it executes the same file as its parent, as a fork does; None if that could not be read."""

    group: str = ""
    """Id of the driver's process (`driver.Process.id`) that it descends from; empty from drivers that do not know."""

    code: str | None = None
    """Digest of the code that differs in memory from its file. Empty if none does; `FOREIGN_CODE`; None if it was not,
    or could not be, compared."""

    is_altered: bool = False
    """Whether its code is neither that of its file nor any that was recorded with the world's processes: another
    process has changed it since. Set by `Sandbox.strangers`."""

    @property
    def command(self) -> str:
        """Return the arguments, for people: at most 200 characters; the name in brackets if there are none."""
        return self.argv.decode(errors="replace").strip()[:200] or f"[{self.name.decode(errors='replace')}]"

    @property
    def identity(self) -> tuple[int, int]:
        """Return pid and start time, which no other process has before the next boot."""
        return self.pid, self.start
