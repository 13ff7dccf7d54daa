"""What processes of a sandbox execute, as the kernel tells this host of it, with no program of the sandbox taking part.

Code that is put into a running program from outside (`ptrace`, `/proc/PID/mem`) changes pages that the program shares
with its file. The kernel gives the process a copy of such a page, and says so in `/proc/PID/pagemap`. Code that a
program makes for itself (of Java, node, a regular expression) lies in memory without a file: it tells nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchflow.contracts.process_table import FOREIGN_CODE
from benchflow.planes.sandbox.idle_program import program

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PIECE = 64 * 1024
"""Pages that are asked for at once: a process may map a file of any size."""

_MAX_PAGES = 1024 * 1024
_MAX_CHANGED = 4096
"""Pages of code, and of changed code, beyond which a process is not looked through."""

_MANY = "many"
"""The digest of what has more pages."""

_OWN = {0b010, 0b100, 0b110}
"""Highest bits of an entry of `pagemap` (Linux 3.5): the page is present, or swapped, and not a file's."""

_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ (\d+) *(.*)")
_OF_A_PROGRAM = ("[anon", "[heap]")
"""Beginnings of the names in brackets that are not the kernel's own: of memory that a program has asked for."""

_INIT = "docker-init"
_STANDING_SEC = 2.0
"""How long a process may stand still, as for a copy of its sandbox."""

_ATTEMPTS = 3
"""Looks at a process that changes its mappings meanwhile."""


@dataclass(frozen=True)
class _Mapping:
    """A line of `/proc/PID/maps`."""

    start: int
    end: int
    rights: str
    offset: int
    has_file: bool
    name: str

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def is_given(self) -> bool:
        """Return whether the kernel gives it to every program, like `[vdso]` and `[stack]`."""
        return self.name.startswith("[") and not self.name.startswith(_OF_A_PROGRAM)

    @property
    def is_executable(self) -> bool:
        return self.rights[2] == "x" and (not self.is_given or self.name == "[stack]")


def read_codes(pids: Iterable[int], judge: Callable[[int], str | None] | None = None) -> dict[int, str]:
    """Return what processes execute, as `SeesCode.code` does, by their numbers on this host.

    judge: what to ask about a process first; None of it means that the process is like any other.
    """
    found = {}
    for pid in pids:
        code = judge(pid) if judge is not None else None
        code = changed_code(pid) if code is None else code
        if code is not None:
            found[pid] = code
    return found


def changed_code(pid: int) -> str | None:
    """Return a digest of the code that differs in memory from its file: empty if none does, None if it can't be read.

    It says nothing of where the code lies, which differs each time a program is started. A page that was changed and is
    as in the file again, as a debugger leaves it, counts as unchanged.
    """
    for _ in range(_ATTEMPTS):
        try:
            for place in _places(pid):
                if mappings := list(_mappings(place)):
                    return _digest(place, mappings)
            return ""
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            return None
        except OSError:
            # It has let go of a mapping in between.
            continue
    return None


def idle_code(pid: int, machine: str) -> str | None:
    """Return what a process executes that is to be the program that waits for ever: empty if it does that alone.

    None if it can't be looked into.

    All that it can do is known: it has the program's pages and none else to execute, waits where the program does, with
    no thread, handler, file or request to the kernel of its own, and nobody traces it.
    """
    place = Path("/proc") / str(pid)
    deadline = time.monotonic() + _STANDING_SEC
    while True:
        try:
            # Of one that runs, or stands still, the kernel does not say where it is.
            call = (place / "syscall").read_text().split()
            if call[0] != "running":
                return "" if _idles(place, call, program(machine, is_hidden=False)) else FOREIGN_CODE
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            return None
        if time.monotonic() > deadline:
            return FOREIGN_CODE
        time.sleep(0.01)


def init_code(pid: int) -> str | None:
    """Return what a process executes that is to be the daemon's init program: None if that is its file's.

    Such a program is static, has no thread and makes no code. The daemon mounts it alone, which nobody inside can.
    """
    place = Path("/proc") / str(pid)
    try:
        executed = {mapping.name for mapping in _mappings(place) if mapping.is_executable}
        mounts = {line.split()[4] for line in (place / "mountinfo").read_text().splitlines()}
        is_init = (path := (place / "exe").readlink()).name == _INIT and str(path) in mounts
        is_alone = len(list((place / "task").iterdir())) == 1
    except OSError:
        return None
    return None if is_init and is_alone and executed == {str(path)} else FOREIGN_CODE


def _places(pid: int) -> Iterator[Path]:
    """Yield the directories of a process, and of its other threads: the first one has no memory after its end."""
    yield Path("/proc") / str(pid)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        yield Path("/proc") / thread.name


def _mappings(place: Path) -> Iterator[_Mapping]:
    for line in (place / "maps").read_text(errors="surrogateescape").splitlines():
        if (found := _LINE.fullmatch(line)) is not None:
            start, end, rights, offset, inode, name = found.groups()
            yield _Mapping(int(start, 16), int(end, 16), rights, int(offset, 16), inode != "0", name)


def _digest(place: Path, mappings: list[_Mapping]) -> str:
    digest, is_any = hashlib.sha256(), False
    left, changed = _MAX_PAGES, 0
    with (place / "mem").open("rb", 0) as memory, (place / "pagemap").open("rb", 0) as table:
        for mapping in mappings:
            if not mapping.is_executable or not mapping.has_file or mapping.rights[1] == "w":
                continue
            left -= mapping.size // _PAGE
            if left < 0:
                return _MANY
            if not (own := _own_pages(mapping, table.fileno())):
                continue
            changed += len(own)
            if changed > _MAX_CHANGED:
                return _MANY
            for offset, content in _changed_pages(place, mapping, own, memory.fileno()):
                is_any = True
                digest.update(offset.to_bytes(8, "big") + content)
    return digest.hexdigest()[:16] if is_any else ""


def _own_pages(mapping: _Mapping, table: int) -> list[int]:
    """Return where in a mapping the pages are that the process has for itself. table: a handle of its `pagemap`."""
    found: list[int] = []
    first, end = mapping.start // _PAGE, mapping.end // _PAGE
    for piece in range(first, end, _PIECE):
        entries = array("Q", os.pread(table, min(_PIECE, end - piece) * 8, piece * 8))
        found += [number * _PAGE for number, entry in enumerate(entries, piece - first) if entry >> 61 in _OWN]
    return found


def _changed_pages(place: Path, mapping: _Mapping, own: list[int], memory: int) -> list[tuple[int, bytes]]:
    """Return those of the pages of a mapping that differ from its file: offset in the file, and content."""
    path = place / "map_files" / f"{mapping.start:x}-{mapping.end:x}"
    if not path.is_file():
        return []
    # Not a name: the kernel opens the file that is mapped, wherever it is by now.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if os.pread(file, 4, 0) != b"\x7fELF":
            # Programs of other kinds are moved as they are loaded, by changing their code.
            return []
        pages = [(mapping.offset + at, os.pread(memory, _PAGE, mapping.start + at)) for at in own]
        return [(at, page) for at, page in pages if os.pread(file, _PAGE, at).ljust(_PAGE, b"\0") != page]
    finally:
        os.close(file)


def _idles(place: Path, call: list[str], content: bytes) -> bool:
    """Return whether a process is in the one state that the program that waits for ever can be in.

    Args:
        place: Its directory.
        call: What it waits in: number, six arguments, stack pointer and program counter.
        content: The program.
    """
    mappings = [mapping for mapping in _mappings(place) if not mapping.is_given]
    status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines() if ":\t" in line)
    if len(mappings) != 1 or len(call) != 9 or any(int(argument, 16) for argument in call[1:5]):
        return False
    [mapping] = mappings
    if not 0 <= mapping.size - len(content) < _PAGE:
        return False
    with (place / "mem").open("rb", 0) as memory:
        held = os.pread(memory.fileno(), mapping.size, mapping.start)
    return (
        held == content.ljust(len(held), b"\0")
        and mapping.start < int(call[8], 16) <= mapping.start + len(content)
        and (status["Threads"], status["TracerPid"]) == ("1", "0")
        and int(status["SigCgt"], 16) == 0
        and {entry.name for entry in (place / "fd").iterdir()} <= {"0", "1", "2"}
    )
