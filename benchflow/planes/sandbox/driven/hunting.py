"""Finding and killing the processes of a sandbox by their marks: a command's, an agent's, an entrypoint's."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace

from benchflow.contracts.accelerators import SeesCode, SeesProcesses
from benchflow.contracts.driver import SandboxDriver
from benchflow.contracts.process_table import RunningProcess
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.driven.records import Records
from benchflow.planes.sandbox.driven.scripts import Scripts
from benchflow.planes.sandbox.driven.table import closure, list_script, main_processes, parse, stop_script
from benchflow.planes.sandbox.driven.world import World
from benchflow.planes.sandbox.driven.wrapped import MARKER
from benchflow.planes.sandbox.timeouts import AwakeDeadline

ROUNDS = 200
"""Looks at the table that find new ones, before giving up on processes that multiply faster than they are killed."""

OUTRUN_ROUNDS = 5
"""Looks at the table that find new ones, before all that may be killed is stopped in the sandbox itself."""

DYING_SEC = 60.0
"""How long what was killed may take to go: a process that waits for the disk does so first."""

_LONGEST_PAUSE = 0.5


class Hunt:
    """Rounds of looking for processes and killing them. whom: for a complaint; met: all that were found so far."""

    def __init__(self, whom: str, *, rounds: int, dying_sec: float) -> None:
        self.met: set[tuple[int, int]] = set()
        self._whom = whom
        self._most_rounds, self._dying_sec = rounds, dying_sec
        self._rounds = self._idle = 0
        self._giving_up = AwakeDeadline(dying_sec)

    @property
    def is_outrun(self) -> bool:
        """Tell whether each look has found new ones for a while."""
        return self._rounds >= OUTRUN_ROUNDS

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


class Hunter:
    """Hunts the processes of one sandbox.

    Args:
        form: How the sandbox runs its image's entrypoint, as in its `SandboxSpec`.
        as_user: Runs a script as a user; returns what it prints.
        rounds: Looks at the table that find new ones, before it gives up.
        dying_sec: How long what was killed may take to go.
    """

    def __init__(
        self,
        driver: SandboxDriver,
        handle: str,
        scripts: Scripts,
        records: Records,
        form: str,
        as_user: Callable[[str, str], Awaitable[bytes]],
        *,
        rounds: int = ROUNDS,
        dying_sec: float = DYING_SEC,
    ) -> None:
        self._hunt = functools.partial(Hunt, rounds=rounds, dying_sec=dying_sec)
        self._driver = driver
        self._handle = handle
        self._scripts = scripts
        self._world = World(records)
        self._form = form
        self._as_user = as_user
        self._shells: set[tuple[int, int]] = set()

    async def mark_baseline(self) -> None:
        """Record what runs as the world's. On the host: an agent that is root could edit a record inside."""
        shell, table, numbers = await self._look()
        table = await self._with_code(table, numbers, table)
        mine = closure(table, [shell] if shell else [pid for pid in table if _is_shell(table[pid])], set())
        self._world.record(process for process in table.values() if process.pid not in mine)

    async def add_to_baseline(self, mark: str) -> None:
        """Record what the command with this mark started as the world's, too.

        Root inside can read a marker and put it on a process of its own, but cannot give that a parent outside of the
        sandbox, as a command's first process has.
        """
        _, table = await self._table(f"{MARKER}={mark}")
        seeds = [pid for pid, process in table.items() if process.marked and not process.parent]
        self._world.record((table[pid] for pid in closure(table, seeds, self._main(table))), besides=True)

    async def add_entrypoint(self) -> None:
        """Record what the image's ENTRYPOINT has started as the world's, too, where that runs the main process."""
        world: list[RunningProcess] = []
        if self._form in ("wraps", "first", "below"):
            _, table = await self._table()
            world = [process for process in table.values() if not process.entered]
        self._world.record(world, besides=True)

    async def kill_unknown(self, keep_services: bool) -> int:
        """Kill all but PID 1, the main process and, if asked, the baseline; the number killed.

        Of what services have started since, `World` says what is theirs. What else they start again and again is left
        alone after a few times: it would be killed for nothing.
        """
        if isinstance(self._driver, SeesProcesses):
            async with self._driver.without_scripts(self._handle):
                killed = await self._kill_from_outside(self._driver, keep_services)
            if killed is not None:
                return killed
        # A shell that runs may be one that a process of root's has changed.
        await self._scripts.renew()
        hunt, first, is_still = self._hunt("what runs in the sandbox"), "", False
        while True:
            shell, table = await self._table(first=first)
            _, victims = self._sort(table, shell, keep_services)
            if victims:
                idle = await hunt.meet({table[pid].identity for pid in victims})
                first = "" if idle else _signal("KILL", victims)
            elif is_still:
                if held := [pid for pid, process in table.items() if process.state == "T"]:
                    # What services have started meanwhile.
                    await self._scripts.run(_signal("CONT", held))
                # A shell of this engine's own takes a moment to end after it was closed; nobody has left it.
                return len(hunt.met - self._shells)
            else:
                first = ""
            if is_still := not victims or hunt.is_outrun:
                # Who goes on as another process all the time is in no list that is made meanwhile.
                first = f"{first}\n{stop_script(table.keys() - victims)}"

    async def _kill_from_outside(self, driver: SeesProcesses, keep_services: bool) -> int | None:
        """Do the same with no program of the sandbox taking part; None if that can't be done here."""
        hunt, dead, looks = self._hunt("what runs in the sandbox"), set[tuple[int, int]](), 0
        while (running := await driver.running(self._handle)) is not None:
            looks += 1
            victims, idle = await self._strike(driver, running, hunt, keep_services)
            # One that has died since the list was made may go on as another that is not in it.
            died = {process.identity for process in running.values() if process.state == "Z"} - dead
            dead |= died
            is_hiding = all(pid < 0 for pid in victims) if victims else bool(died) and looks > 1
            if is_hiding or (hunt.is_outrun and victims and not idle):
                # Who starts others all the time, or goes on as another, can do neither while all stand still.
                async with driver.standing_still(self._handle):
                    if (running := await driver.running(self._handle)) is not None:
                        victims, _ = await self._strike(driver, running, hunt, keep_services)
                died = set()
            if not victims and not died:
                return len({identity for identity in hunt.met - self._shells if identity[1]})
        return None

    async def _strike(
        self, driver: SeesProcesses, running: dict[int, RunningProcess], hunt: Hunt, keep_services: bool
    ) -> tuple[set[int], int]:
        """Kill who is to be killed of these. Returns them, and for how many rounds nobody was new."""
        table, numbers = _by_pid(running)
        spared, victims = self._sort(table, 0, keep_services)
        if keep_services:
            # A program of the world's is that no more once another one has put code into it.
            victims |= self._world.altered(await self._with_code(table, numbers, spared - self._main(table) - {1}))
        if not victims:
            return victims, 0
        self._shells |= {table[pid].identity for pid in victims if _is_shell(table[pid])}
        idle = await hunt.meet({table[pid].identity for pid in victims})
        await driver.kill_running(self._handle, [numbers[pid] for pid in victims])
        return victims, idle

    def _sort(self, table: dict[int, RunningProcess], shell: int, keep_services: bool) -> tuple[set[int], set[int]]:
        """Return who is to stay, and who is to be killed."""
        spared = self._spared(table, shell, keep_services)
        victims = {pid for pid, process in table.items() if pid not in spared and process.state != "Z"}
        # Whoever takes in orphans has not started them.
        services = spared - self._main(table) - {1}
        return spared, victims - (self._world.left_alone(table, victims, services) if keep_services else set())

    async def _look(self) -> tuple[int, dict[int, RunningProcess], dict[int, int]]:
        """Return the shell that looks (0 for none), and the table: of the driver, if that sees processes.

        Last of all, the driver's number of each pid.
        """
        if (
            isinstance(self._driver, SeesProcesses)
            and (running := await self._driver.running(self._handle)) is not None
        ):
            return 0, *_by_pid(running)
        return *(await self._table()), {}

    async def _with_code(
        self, table: dict[int, RunningProcess], numbers: Mapping[int, int], pids: Iterable[int]
    ) -> dict[int, RunningProcess]:
        """Return the table with the code of these processes, where the driver sees it. numbers: its own, by pid."""
        if not isinstance(self._driver, SeesCode):
            return table
        asked = {numbers[pid]: pid for pid in pids if pid in numbers}
        codes = await self._driver.code(self._handle, list(asked))
        return table | {asked[number]: replace(table[asked[number]], code=code) for number, code in codes.items()}

    async def strangers(self) -> list[RunningProcess]:
        """Return the processes that are neither the world's nor the engine's, or have been altered."""
        shell, table, numbers = await self._look()
        shells = closure(table, [pid for pid in table if _is_shell(table[pid])], set())
        spared = self._spared(table, shell, keep_services=True) | shells
        table = await self._with_code(table, numbers, spared)
        altered = self._world.altered(table)
        return [
            replace(process, is_altered=pid in altered)
            for pid, process in sorted(table.items())
            if (pid not in spared or pid in altered) and process.state != "Z"
        ]

    def _spared(self, table: dict[int, RunningProcess], shell: int, keep_services: bool) -> set[int]:
        main = self._main(table)
        spared = closure(table, [shell] if shell else [], set()) | main
        if keep_services:
            # The main process is the world's own where the entrypoint is that process.
            spared |= self._world.services(table, main if self._form == "first" else (), hosts=main | {1})
        return spared

    async def kill_marked(self, mark: str) -> None:
        """Kill everything that the command with this mark started.

        All is stopped before any of it is killed: a stopped process has no more children, and those that it has are
        known as its own by it alone, where they have left its session and changed their environment.
        """
        marker = f"{MARKER}={mark}"
        hunt, first = self._hunt("what a command has started"), ""
        while True:
            shell, table = await self._table(marker, first)
            spared = closure(table, [shell], set()) | self._main(table)
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
                await self._scripts.run(_signal("KILL", victims))
                raise
            first = "" if idle > 1 else _signal("KILL" if idle else "STOP", victims)

    async def kill_world(self) -> None:
        """Kill all that no command but the entrypoint's has started, where that is not the first process."""
        hunt, first = self._hunt("what the image's entrypoint has started"), ""
        while True:
            shell, table = await self._table(first=first)
            main = self._main(table)
            spared = closure(table, [shell], set()) | main | closure(table, main - {1}, set())
            world = {pid for pid, process in table.items() if not process.entered and process.state != "Z"} - spared
            if not world:
                return
            idle = await hunt.meet({table[pid].identity for pid in world})
            first = "" if idle else _signal("KILL", world)

    async def any_marked(self, mark: str, user: str) -> bool:
        """Return whether a process of this command runs. user: whose it is, to look as."""
        marker = f"{MARKER}={mark}"
        _, table = await self._table(marker)
        if user != "0":
            table |= await self._table_as(user, marker)
        return any(process.marked and process.state != "Z" for process in table.values())

    def _main(self, table: dict[int, RunningProcess]) -> set[int]:
        return {1} if self._form == "first" else main_processes(table)

    async def _table(self, marker: str | None = None, first: str = "") -> tuple[int, dict[int, RunningProcess]]:
        """The shell that looks, and what it sees. first: what it does just before."""
        answer = await self._scripts.run(f"{first}\nprintf '%s\\0' $$\n{list_script(marker)}")
        own, _, listing = answer.out.partition(b"\0")
        if not own.isdigit():
            raise SandboxError(
                f"the sandbox's processes cannot be listed: {answer.complaint}",
                remedy="look at the sandbox's shell",
            )
        shell, table = int(own), parse(listing)
        if shell in table:
            self._shells.add(table[shell].identity)
        return shell, table

    async def _table_as(self, user: str, marker: str) -> dict[int, RunningProcess]:
        return parse(await self._as_user(user, list_script(marker)))


def _by_pid(running: Mapping[int, RunningProcess]) -> tuple[dict[int, RunningProcess], dict[int, int]]:
    """Return the table by pid, and the driver's numbers by pid."""
    table = {process.pid: process for process in running.values()}
    return table, {process.pid: number for number, process in running.items()}


def _is_shell(process: RunningProcess) -> bool:
    """Return whether this may be a shell of the engine's that was closed, or another worker's."""
    return process.parent == 0 and process.argv == b"/bin/sh"


def _signal(name: str, pids: Iterable[int]) -> str:
    return f"kill -{name} {' '.join(map(str, sorted(pids)))} 2>/dev/null"
