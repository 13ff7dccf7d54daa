"""The processes of a container: who they are, which belong to whom, and how to end them all.

The table is read from /proc by the shell's own builtins, since an image may have no `ps`, and judged here. A
command's processes are found by a marker in their environment, which survives a double fork and a new
session, and by descent and session, which survive a changed environment.

What an image's entrypoint has started is told from all else by a limit: every other way into the container lowers one
that no kernel has kept for twenty years (of the resident set), and who has lowered it, or inherited that, cannot raise
it again. Neither a double fork nor a new session nor a cleared environment hides that.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchflow.errors import DaemonUnavailableError, SandboxError
from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.records import entering
from benchflow.planes.sandbox.docker.shell import MARK_AGENT, RootShell
from benchflow.planes.sandbox.docker.stream import STDOUT
from benchflow.planes.sandbox.docker.translation import NotFound
from benchflow.planes.sandbox.records import write_record
from benchflow.planes.sandbox.timeouts import AwakeDeadline

MARKER = "BENCHFLOW_EXEC"

ENTRYPOINT_LABEL = "benchflow.entrypoint"
"""Of a container that runs its image's entrypoint: how."""

FORMS = ("first", "below")

PROGRAMS = "/dev/benchflow"
"""The volume of the program below. `/dev` is the one directory that no image decides: it is mounted over in every
container, so that root inside can neither remove nor rename it. Elsewhere an image may have a link like
`/sbin -> /proc/self/cwd`, which leads the runtime to one place as it mounts and to another as it executes.
"""

IDLE = f"{PROGRAMS}/idle"
"""The program of a main process that does nothing."""

INITS = (b"docker-init", b"tini", b"tini-static", b"catatonit", b"dumb-init")
"""What the daemon's init may be called; it is one of these only where we asked for it."""

ROUNDS = 200
"""Looks at the table that find new ones, before giving up on processes that multiply faster than they are killed."""

DYING_SEC = 60.0
"""How long what was killed may take to go: a process that waits for the disk does so first."""

_LONGEST_PAUSE = 0.5

# NUL-separated, four a process: stat line (its name may hold anything but NUL), uid:gid, marked (1, 0, or ? for
# unreadable), hard limit of the resident set.
_LIST = """
for p in /proc/[0-9]*; do
  {{ while IFS= read -r l || [ -n "$l" ]; do printf '%s\\n' "$l"; done <$p/stat; }} 2>/dev/null
  u=; g=; {{ while read -r k v l; do
    case $k in Uid:) u=$v;; Gid:) g=$v; break;; esac; done <$p/status; }} 2>/dev/null
  h=; {{ while read -r a b c s l r; do [ "$b" = resident ] && h=$l; done <$p/limits; }} 2>/dev/null
  m={unmarked}
  {look}
  printf '\\0%s:%s\\0%s\\0%s\\0' "$u" "$g" "$m" "$h"
done
"""
_LOOK = """{ m=0; while IFS= read -r e || [ -n "$e" ]; do
    case $e in *%s*) m=1;; esac; done <$p/environ; } 2>/dev/null || m='?'"""


@dataclass(frozen=True)
class Process:
    """A row of the table. start: clock ticks since boot, which tells two users of one pid apart. entered: by a command,
    and not started by the entrypoint.
    """

    pid: int
    parent: int
    session: int
    start: int
    state: str
    name: bytes
    user: str
    marked: bool | None
    entered: bool

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.start


def list_script(marker: str | None = None) -> str:
    """The script whose output `parse` reads. marker: text to look for in each environment."""
    return _LIST.format(unmarked="'?'" if marker else "0", look=_LOOK % marker if marker else "")


def parse(listing: bytes) -> dict[int, Process]:
    """The table by pid. Processes that ended while it was written are left out."""
    table = {}
    fields = listing.split(b"\0")
    for stat, user, mark, limit in zip(fields[0::4], fields[1::4], fields[2::4], fields[3::4], strict=False):
        # The name is in parentheses and may hold any byte; nothing after it holds one.
        head, _, tail = stat.strip().rpartition(b") ")
        pid, _, name = head.partition(b" (")
        rest = tail.split()
        if not pid.isdigit() or len(rest) < 20 or user == b":":
            continue
        marked = None if mark == b"?" else mark == b"1"
        entered = limit != b"unlimited"
        try:
            parent, session, started = (int(rest[place]) for place in (1, 3, 19))
            found = Process(int(pid), parent, session, started, rest[0].decode(), name, user.decode(), marked, entered)
        except ValueError as error:
            # Left out it would not be ended: the kernel writes no such line, so programs of the sandbox were changed.
            raise SandboxError(
                f"a line of the sandbox's list of processes is none: {stat[:80]!r}",
                remedy="look at the sandbox's shell and tools",
            ) from error
        table[found.pid] = found
    return table


def closure(table: dict[int, Process], seeds: Iterable[int], spared: set[int]) -> set[int]:
    """The seeds, all that descend from them and all in a session that one of them began."""
    found = set(seeds) - spared
    while True:
        sessions = {table[pid].session for pid in found} & found
        more = {
            process.pid
            for process in table.values()
            if process.pid not in spared and (process.parent in found or process.session in sessions)
        }
        if more <= found:
            return found
        found |= more


class Hunt:
    """Rounds of looking for processes and killing them. whom: for a complaint; met: all that were found so far."""

    def __init__(self, whom: str, *, rounds: int, dying_sec: float) -> None:
        self.met: set[tuple[int, int]] = set()
        self._whom = whom
        self._most_rounds, self._dying_sec = rounds, dying_sec
        self._rounds = self._idle = 0
        self._giving_up = AwakeDeadline(dying_sec)

    async def meet(self, found: set[tuple[int, int]]) -> int:
        """Note whom a round has found. Returns for how many rounds nobody was new; after the second, each pauses first.

        Raises `SandboxError` when new ones come again and again, or the others do not go.
        """
        if not found <= self.met:
            self.met |= found
            self._rounds += 1
            self._idle, self._giving_up = 0, AwakeDeadline(self._dying_sec)
            if self._rounds == self._most_rounds:
                raise self._error("multiplies faster than it can be killed")
            return 0
        self._idle += 1
        if self._giving_up.is_over():
            left = " ".join(str(pid) for pid, _ in sorted(found)[:10])
            raise self._error(f"does not end (pids: {left})")
        if self._idle > 1:
            await asyncio.sleep(min(0.001 * 2**self._idle, _LONGEST_PAUSE))
        return self._idle

    def _error(self, what: str) -> SandboxError:
        return SandboxError(f"{self._whom} {what}", remedy="run this rollout again in a fresh sandbox")


class Processes:
    """The processes of one container. rounds, dying_sec: how long it is tried to kill them."""

    def __init__(
        self,
        engine: Engine,
        shell: RootShell,
        container: str,
        record: Path,
        *,
        rounds: int = ROUNDS,
        dying_sec: float = DYING_SEC,
    ) -> None:
        self._hunt = functools.partial(Hunt, rounds=rounds, dying_sec=dying_sec)
        self._engine = engine
        self._shell = shell
        self._container = container
        self._record = record
        self._form: str | None = None
        self._shells: set[tuple[int, int]] = set()

    async def mark_baseline(self) -> None:
        """Remember what runs. The record is on the host: an agent that is root could edit one inside."""
        shell, table = await self._table()
        mine = closure(table, [shell], set())
        world = [process.identity for process in table.values() if process.pid not in mine]
        write_record(self._record, {"baseline": world})

    async def add_to_baseline(self, nonce: str) -> None:
        """Remember what the execution with this marker started, too.

        Root inside can read a marker and put it on a process of its own, but cannot give that a parent outside of the
        container, as an execution's first process has.
        """
        _, table = await self._table(f"{MARKER}={nonce}")
        seeds = [pid for pid, process in table.items() if process.marked and not process.parent]
        world = {table[pid].identity for pid in closure(table, seeds, await self._main(table))}
        write_record(self._record, {"baseline": sorted(self._baseline() | world)})

    async def add_entrypoint(self) -> None:
        """Remember what the image's ENTRYPOINT has started, too, where the main process is what it was given."""
        world: set[tuple[int, int]] = set()
        container = await self._engine.about(self._container, lambda client: client.inspect_container(self._container))
        if container["Config"]["Entrypoint"] not in (None, [], [IDLE]):
            _, table = await self._table()
            world = {process.identity for process in table.values() if not process.entered}
        write_record(self._record, {"baseline": sorted(self._baseline() | world)})

    async def kill_unknown(self, keep_services: bool) -> int:
        """Kill all but PID 1, the main process and, if asked, the baseline and the entrypoint's; the number killed.

        What a service of the baseline has started since is that service's business and stays.
        """
        baseline = self._baseline() if keep_services else set()
        world = keep_services and await self._entrypoint() in FORMS
        hunt, first = self._hunt("what runs in the sandbox"), ""
        while True:
            shell, table = await self._table(first=first)
            main = await self._main(table)
            spared = closure(table, [shell], set()) | main
            spared |= {process.pid for process in table.values() if process.identity in baseline}
            services = {p for p in spared if table[p].identity in baseline} | main
            spared |= {process.pid for process in table.values() if world and not process.entered}
            spared |= closure(table, services - {1}, set())
            victims = {pid for pid, process in table.items() if pid not in spared and process.state != "Z"}
            if not victims:
                # A shell of this engine's own takes a moment to end after it was closed; nobody has left it.
                return len(hunt.met - self._shells)
            idle = await hunt.meet({table[pid].identity for pid in victims})
            first = "" if idle else _signal("KILL", victims)

    async def kill_marked(self, nonce: str) -> None:
        """Kill everything that the execution with this marker started.

        All is stopped before any of it is killed: a stopped process has no more children, and those that it has are
        known as its own by it alone, where they have left its session and changed their environment.
        """
        marker = f"{MARKER}={nonce}"
        hunt, first = self._hunt("what a command has started"), ""
        while True:
            shell, table = await self._table(marker, first)
            spared = closure(table, [shell], set()) | await self._main(table)
            # Root without CAP_SYS_PTRACE may not read the environment of another user's process; one of the same
            # user and group can.
            known = spared | {process.pid for process in table.values() if process.identity in hunt.met}
            for user in {p.user for p in table.values() if p.marked is None and p.pid not in known}:
                theirs = await self._table_as(user, marker)
                table |= {pid: row for pid, row in theirs.items() if row.marked is not None}
            seeds = [pid for pid, process in table.items() if process.marked or process.identity in hunt.met]
            victims = {pid for pid in closure(table, seeds, spared) if table[pid].state != "Z"}
            if not victims:
                return
            try:
                idle = await hunt.meet({table[pid].identity for pid in victims})
            except SandboxError:
                # They are stopped: none is to be left so.
                await self._shell.run(_signal("KILL", victims))
                raise
            first = "" if idle > 1 else _signal("KILL" if idle else "STOP", victims)

    async def kill_world(self) -> None:
        """Kill all that no command but the entrypoint's has started, where that is not the first process."""
        hunt, first = self._hunt("what the image's entrypoint has started"), ""
        while True:
            shell, table = await self._table(first=first)
            main = await self._main(table)
            spared = closure(table, [shell], set()) | main | closure(table, main - {1}, set())
            world = {pid for pid, process in table.items() if not process.entered and process.state != "Z"} - spared
            if not world:
                return
            idle = await hunt.meet({table[pid].identity for pid in world})
            first = "" if idle else _signal("KILL", world)

    async def any_marked(self, nonce: str, user: str) -> bool:
        """Whether a process of this execution runs. user: whose it is, to look as."""
        marker = f"{MARKER}={nonce}"
        _, table = await self._table(marker)
        if user != "0":
            table |= await self._table_as(user, marker)
        return any(process.marked and process.state != "Z" for process in table.values())

    async def _main(self, table: dict[int, Process]) -> set[int]:
        return {1} if await self._entrypoint() == "first" else main_processes(table)

    async def _entrypoint(self) -> str:
        """How the container runs its image's entrypoint, which it was made with."""
        if self._form is None:
            found = await self._engine.about(self._container, lambda client: client.inspect_container(self._container))
            self._form = (found["Config"]["Labels"] or {}).get(ENTRYPOINT_LABEL, "none")
        return self._form

    async def _table(self, marker: str | None = None, first: str = "") -> tuple[int, dict[int, Process]]:
        """The shell that looks, and what it sees. first: what it does just before."""
        answer = await self._shell.run(f"{first}\nprintf '%s\\0' $$\n{list_script(marker)}")
        own, _, listing = answer.out.partition(b"\0")
        shell, table = int(own), parse(listing)
        if shell in table:
            self._shells.add(table[shell].identity)
        return shell, table

    async def _table_as(self, user: str, marker: str) -> dict[int, Process]:
        script = f"{MARK_AGENT}{list_script(marker)}"
        async with entering(self._container):
            made = await self._engine.about(
                self._container,
                lambda client: client.exec_create(self._container, ["/bin/sh", "-c", script], user=user),
            )
            stream = await self._engine.open_exec(self._container, made["Id"])
            listing = bytearray()
            try:
                while (piece := await stream.read()) is not None:
                    listing += piece[1] if piece[0] == STDOUT else b""
            finally:
                stream.close()
            try:
                # It raises where the list was cut off because the daemon died.
                await self._engine.call(lambda client: client.exec_inspect(made["Id"]))
            except NotFound as error:
                raise DaemonUnavailableError("the Docker daemon was started again during a command") from error
        return parse(bytes(listing))

    def _baseline(self) -> set[tuple[int, int]]:
        if not self._record.exists():
            return set()
        rows = json.loads(self._record.read_text())["baseline"]
        return {(pid, start) for pid, start in rows}


def _signal(name: str, pids: Iterable[int]) -> str:
    return f"kill -{name} {' '.join(map(str, sorted(pids)))} 2>/dev/null"


def main_processes(table: dict[int, Process]) -> set[int]:
    """Return PID 1 and the main process below it: when either ends, the container ends.

    Where the daemon has no init, PID 1 is the main process itself.
    """
    children = sorted(process.pid for process in table.values() if process.parent == 1)
    if not children or 1 not in table:
        return {1}
    if table[1].name in INITS:
        return {1, children[0]}
    return {1}
