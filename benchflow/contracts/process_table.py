"""A process as the table of a sandbox's processes has it."""

from __future__ import annotations

from dataclasses import dataclass

FOREIGN_CODE = "foreign"
"""The code of a process that is known to execute something else than it would by itself."""


@dataclass(frozen=True)
class RunningProcess:
    """A row of the table."""

    pid: int
    parent: int
    """0 for what has entered the sandbox from outside, 1 for what has lost its parent."""

    session: int

    start: int
    """Clock ticks since boot, which tells two users of one pid apart."""

    state: str
    name: bytes
    user: str

    marked: bool | None
    """Whether its environment has the marker that was asked for; None if that can't be read."""

    entered: bool
    """Whether it, or what it descends from, was started by a command, and not by the image's entrypoint."""

    argv: bytes = b""
    """Arguments, with spaces between them where they can be told apart."""

    runs_same_file: bool | None = None
    """Whether it executes the same file as its parent; None if that can't be read."""

    group: str = ""
    """The command that it descends from, of drivers that know."""

    code: str | None = None
    """Digest of the code that differs in memory from its file: empty if none does; None if nobody has looked."""

    is_altered: bool = False
    """Whether that code was changed since the process was recorded as the world's."""

    @property
    def command(self) -> str:
        """Return its arguments as people read them, at most 200 characters."""
        return self.argv.decode(errors="replace").strip()[:200] or f"[{self.name.decode(errors='replace')}]"

    @property
    def identity(self) -> tuple[int, int]:
        """Return what no other process has as long as the machine runs."""
        return self.pid, self.start
