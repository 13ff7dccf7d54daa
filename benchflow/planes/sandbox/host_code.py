"""The code that processes of a sandbox execute, read by this host from the kernel, without programs of the sandbox.

Code that is injected into a running program from outside (`ptrace`, `/proc/PID/mem`) changes pages that the program
shares with its file. The kernel gives the process a copy of such a page, and shows that in `/proc/PID/pagemap`. Code
that a program generates for itself (Java, node, regular expressions) is in memory without a file and is not examined.
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
from benchflow.planes.sandbox.idle_program import build_program

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PIECE = 64 * 1024
"""Number of pages that are read at once from `pagemap`: a process may map a file of any size."""

_MAX_PAGES = 1024 * 1024
_MAX_CHANGED = 4096
"""Maximum numbers of pages of code, and of changed code; a process with more is not compared."""

_MANY = "many"
"""The digest of a process with more pages."""

_OWN = {0b010, 0b100, 0b110}
"""Highest bits of an entry of `pagemap` (Linux 3.5): the page is present, or swapped, and not a file's."""

_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ (\d+) *(.*)")
_PROGRAM_MEMORY = ("[anon", "[heap]")
"""Prefixes of names in brackets that are not the kernel's own mappings: memory that a program has requested."""

_INIT = "docker-init"
_PAUSE_TIMEOUT_SEC = 2.0
"""Timeout in seconds for a process that is paused, as during a capture of its sandbox."""

_ATTEMPTS = 3
"""Number of attempts for a process that changes its mappings meanwhile."""


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
        """Return the number of bytes."""
        return self.end - self.start

    @property
    def is_given(self) -> bool:
        """Return whether the kernel maps it into every program, like `[vdso]` and `[stack]`."""
        return self.name.startswith("[") and not self.name.startswith(_PROGRAM_MEMORY)

    @property
    def is_executable(self) -> bool:
        """Return whether it is executable, and not one of the kernel's own mappings except the stack."""
        return self.rights[2] == "x" and (not self.is_given or self.name == "[stack]")


def read_codes(pids: Iterable[int], judge: Callable[[int], str | None] | None = None) -> dict[int, str]:
    """Return, for each process, a digest of its code in memory that differs from the program's file.

    See `SeesCode.code` for the values. Processes that can't be inspected are left out.

    Args:
        pids: Pids on this host.
        judge: Callback that returns the value for a pid that it knows more about; None to compare it with its file.
    """
    found = {}
    for pid in pids:
        code = judge(pid) if judge is not None else None
        code = digest_changed_code(pid) if code is None else code
        if code is not None:
            found[pid] = code
    return found


def digest_changed_code(pid: int) -> str | None:
    """Return a digest of the code that differs in memory from its file: empty if none does, None if it can't be read.

    It does not depend on the addresses of the code, which differ each time a program is started. A page that was
    changed and is as in the file again, as after a debugger, counts as unchanged.

    Args:
        pid: Pid on this host.
    """
    for _ in range(_ATTEMPTS):
        try:
            for place in _list_thread_directories(pid):
                if mappings := list(_read_mappings(place)):
                    return _digest_changed_pages(place, mappings)
            return ""
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            return None
        except OSError:
            # A mapping was removed meanwhile.
            continue
    return None


def judge_idle_program(pid: int, machine: str) -> str | None:
    """Return the value of `SeesCode.code` for a process that should be the idle program.

    Empty if it is in the one state that the idle program can be in: it has the program's pages and no others to
    execute, waits where the program does, has no further thread, handler, file or system call, and is not traced.
    `FOREIGN_CODE` if it is not; None if it can't be inspected.

    Args:
        pid: Pid on this host.
        machine: Machine of the program, as the kernel names it.
    """
    place = Path("/proc") / str(pid)
    deadline = time.monotonic() + _PAUSE_TIMEOUT_SEC
    while True:
        try:
            # The kernel reports no system call for a process that runs, or is frozen.
            call = (place / "syscall").read_text().split()
            if call[0] != "running":
                return "" if _is_idle(place, call, build_program(machine, is_hidden=False)) else FOREIGN_CODE
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            return None
        if time.monotonic() > deadline:
            return FOREIGN_CODE
        time.sleep(0.01)


def judge_init_program(pid: int) -> str | None:
    """Return the value of `SeesCode.code` for a process that should be the daemon's init program.

    `FOREIGN_CODE` if it is another program, has a second thread, or has other code to execute: init is static, has one
    thread and generates no code. The daemon alone mounts it, which no process inside can. None if its file is to be
    compared, and if it can't be inspected.

    Args:
        pid: Pid on this host.
    """
    place = Path("/proc") / str(pid)
    try:
        executed = {mapping.name for mapping in _read_mappings(place) if mapping.is_executable}
        mounts = {line.split()[4] for line in (place / "mountinfo").read_text().splitlines()}
        is_init = (path := (place / "exe").readlink()).name == _INIT and str(path) in mounts
        is_alone = len(list((place / "task").iterdir())) == 1
    except OSError:
        return None
    return None if is_init and is_alone and executed == {str(path)} else FOREIGN_CODE


def _list_thread_directories(pid: int) -> Iterator[Path]:
    """Yield the `/proc` directories of a process and its other threads: an ended first thread has no memory left."""
    yield Path("/proc") / str(pid)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        yield Path("/proc") / thread.name


def _read_mappings(place: Path) -> Iterator[_Mapping]:
    """Yield the mappings of a process."""
    for line in (place / "maps").read_text(errors="surrogateescape").splitlines():
        if (found := _LINE.fullmatch(line)) is not None:
            start, end, rights, offset, inode, name = found.groups()
            yield _Mapping(int(start, 16), int(end, 16), rights, int(offset, 16), inode != "0", name)


def _digest_changed_pages(place: Path, mappings: list[_Mapping]) -> str:
    """Return a digest of the changed pages of code: empty if there are none, `_MANY` if there are too many pages."""
    digest, is_any = hashlib.sha256(), False
    left, changed = _MAX_PAGES, 0
    with (place / "mem").open("rb", 0) as memory, (place / "pagemap").open("rb", 0) as table:
        for mapping in mappings:
            if not mapping.is_executable or not mapping.has_file or mapping.rights[1] == "w":
                continue
            left -= mapping.size // _PAGE
            if left < 0:
                return _MANY
            if not (own := _find_own_pages(mapping, table.fileno())):
                continue
            changed += len(own)
            if changed > _MAX_CHANGED:
                return _MANY
            for offset, content in _read_changed_pages(place, mapping, own, memory.fileno()):
                is_any = True
                digest.update(offset.to_bytes(8, "big") + content)
    return digest.hexdigest()[:16] if is_any else ""


def _find_own_pages(mapping: _Mapping, table: int) -> list[int]:
    """Return the offsets in a mapping of pages that are the process's own, from the open `pagemap`, `table`."""
    found: list[int] = []
    first, end = mapping.start // _PAGE, mapping.end // _PAGE
    for piece in range(first, end, _PIECE):
        entries = array("Q", os.pread(table, min(_PIECE, end - piece) * 8, piece * 8))
        found += [number * _PAGE for number, entry in enumerate(entries, piece - first) if entry >> 61 in _OWN]
    return found


def _read_changed_pages(place: Path, mapping: _Mapping, own: list[int], memory: int) -> list[tuple[int, bytes]]:
    """Return (offset in the file, content) of those own pages of a mapping that differ from its file."""
    path = place / "map_files" / f"{mapping.start:x}-{mapping.end:x}"
    if not path.is_file():
        return []
    # Not by its name: through this link the kernel opens the mapped file itself, even if it was moved or removed.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if os.pread(file, 4, 0) != b"\x7fELF":
            # Programs in other formats are relocated when they are loaded, by changing their code.
            return []
        pages = [(mapping.offset + at, os.pread(memory, _PAGE, mapping.start + at)) for at in own]
        return [(at, page) for at, page in pages if os.pread(file, _PAGE, at).ljust(_PAGE, b"\0") != page]
    finally:
        os.close(file)


def _is_idle(place: Path, call: list[str], content: bytes) -> bool:
    """Return whether a process is in the one state that the idle program can be in.

    Args:
        place: Its `/proc` directory.
        call: Fields of its `syscall` file: number, six arguments, stack pointer and program counter.
        content: The program's file.
    """
    mappings = [mapping for mapping in _read_mappings(place) if not mapping.is_given]
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
