"""Finding and killing the processes of a sandbox, by the markers of commands and the records of the world."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace

from benchflow.contracts.accelerators import SeesCode, SeesProcesses
from benchflow.contracts.driver import SandboxDriver
from benchflow.contracts.process_table import RunningProcess
from benchflow.errors import SandboxError
from benchflow.planes.sandbox.driven.engine_scripts import EngineScripts
from benchflow.planes.sandbox.driven.sandbox_records import SandboxRecords
from benchflow.planes.sandbox.driven.table import (
    find_descendants,
    find_main_processes,
    make_list_script,
    make_stop_script,
    parse_processes,
)
from benchflow.planes.sandbox.driven.world_processes import WorldProcesses
from benchflow.planes.sandbox.driven.wrapped import MARKER
from benchflow.planes.sandbox.timeouts import AwakeDeadline

ROUNDS = 200
"""Maximum number of listings that find new processes, before it gives up: they multiply faster than they are killed."""

OUTRUN_ROUNDS = 5
"""Number of listings that find new processes, before all processes that may be killed are stopped first."""

END_TIMEOUT_SEC = 60.0
"""Seconds within which a killed process must be gone. One in disk I/O ends only once that is done."""

_MAX_PAUSE_SEC = 0.5
"""Maximum seconds between two rounds that find the same processes."""


class Hunt:
    """The rounds of listing and killing processes until none is left, with their limits."""

    def __init__(self, whom: str, *, rounds: int, dying_sec: float) -> None:
        """Begin.

        Args:
            whom: Subject of the error message, as "what runs in the sandbox".
            rounds: Maximum number of listings that find new processes.
            dying_sec: Seconds within which the processes must be gone once no new ones appear.
        """
        self.met: set[tuple[int, int]] = set()
        """Identities of all processes that were found so far."""
        self._whom = whom
        self._most_rounds, self._dying_sec = rounds, dying_sec
        self._rounds = self._idle = 0
        self._giving_up = AwakeDeadline(dying_sec)

    @property
    def is_outrun(self) -> bool:
        """Return whether `OUTRUN_ROUNDS` listings have found new processes."""
        return self._rounds >= OUTRUN_ROUNDS

    async def meet(self, found: set[tuple[int, int]]) -> int:
        """Record the processes that a round has found, and pause if they are the same for the third time or more.

        Args:
            found: Identities of the processes.

        Returns:
            Number of rounds in a row without new processes; 0 if there is a new one.

        Raises:
            SandboxError: New ones appear in too many rounds, or the same ones do not end in time.
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
            await asyncio.sleep(min(0.001 * 2**self._idle, _MAX_PAUSE_SEC))
        return self._idle

    def _error(self, what: str) -> SandboxError:
        """Return the error for processes that cannot be killed. what: predicate of its message."""
        return SandboxError(f"{self._whom} {what}", remedy="run this rollout again in a fresh sandbox")


class Hunter:
    """Lists and kills the processes of one sandbox.

    Args:
        driver: Driver of the sandbox.
        handle: The driver's handle of it.
        scripts: Runner of scripts in it.
        records: Records of it on this host.
        form: How it runs its image's entrypoint, as `SandboxSpec.entrypoint`.
        as_user: Callback that runs a script as a user, and returns its stdout.
        rounds: Maximum number of listings that find new processes.
        dying_sec: Seconds within which killed processes must be gone.
    """

    def __init__(
        self,
        driver: SandboxDriver,
        handle: str,
        scripts: EngineScripts,
        records: SandboxRecords,
        form: str,
        as_user: Callable[[str, str], Awaitable[bytes]],
        *,
        rounds: int = ROUNDS,
        dying_sec: float = END_TIMEOUT_SEC,
    ) -> None:
        """Make it."""
        self._hunt = functools.partial(Hunt, rounds=rounds, dying_sec=dying_sec)
        self._driver = driver
        self._handle = handle
        self._scripts = scripts
        self._world = WorldProcesses(records)
        self._form = form
        self._as_user = as_user
        self._shells: set[tuple[int, int]] = set()

    async def mark_baseline(self) -> None:
        """Record all running processes, but the engine's shells, as the world's.

        The record is on the host: an agent that is root could edit one in the sandbox.
        """
        shell, table, numbers = await self._look()
        table = await self._with_code(table, numbers, table)
        mine = find_descendants(table, [shell] if shell else [pid for pid in table if _is_shell(table[pid])], set())
        self._world.record(process for process in table.values() if process.pid not in mine)

    async def add_to_baseline(self, mark: str) -> None:
        """Add the processes that the command with this marker value has started to the world's.

        Root in the sandbox can read a marker and set it for a process of its own, but cannot give that process a parent
        outside of the sandbox, as a command's first process has.
        """
        _, table = await self._table(f"{MARKER}={mark}")
        seeds = [pid for pid, process in table.items() if process.marked and not process.parent]
        self._world.record((table[pid] for pid in find_descendants(table, seeds, self._main(table))), besides=True)

    async def add_entrypoint(self) -> None:
        """Add the processes that the image's entrypoint has started to the world's, if the sandbox runs it."""
        world: list[RunningProcess] = []
        if self._form in ("wraps", "first", "below"):
            _, table = await self._table()
            world = [process for process in table.values() if not process.entered]
        self._world.record(world, besides=True)

    async def kill_unknown(self, keep_services: bool) -> int:
        """Kill all processes but PID 1 and the main process, and return how many were killed.

        Args:
            keep_services: Whether the world's processes are spared, as `WorldProcesses.services` has them. A program
                that they restart after each of several kills is then left alone: to kill it is futile.

        Raises:
            SandboxError: Processes are left.
        """
        if isinstance(self._driver, SeesProcesses):
            async with self._driver.without_scripts(self._handle):
                killed = await self._kill_from_outside(self._driver, keep_services)
            if killed is not None:
                return killed
        # A root process may have changed the open files of the shell that runs scripts.
        await self._scripts.renew()
        hunt, first, is_still = self._hunt("what runs in the sandbox"), "", False
        while True:
            shell, table = await self._table(first=first)
            _, victims = self._sort(table, shell, keep_services)
            if victims:
                idle = await hunt.meet({table[pid].identity for pid in victims})
                first = "" if idle else _format_signal("KILL", victims)
            elif is_still:
                if held := [pid for pid, process in table.items() if process.state == "T"]:
                    # Services have started these, and `make_stop_script` stopped them.
                    await self._scripts.run(_format_signal("CONT", held))
                # A closed shell of the engine takes a moment to end; it does not count as left by the agent.
                return len(hunt.met - self._shells)
            else:
                first = ""
            if is_still := not victims or hunt.is_outrun:
                # A process that continually replaces itself by a fork is in no listing that is made meanwhile.
                first = f"{first}\n{make_stop_script(table.keys() - victims)}"

    async def _kill_from_outside(self, driver: SeesProcesses, keep_services: bool) -> int | None:
        """Do the same as `kill_unknown`, without programs of the sandbox.

        Return None if the driver cannot list the processes on this host.
        """
        hunt, dead, looks = self._hunt("what runs in the sandbox"), set[tuple[int, int]](), 0
        while (running := await driver.running(self._handle)) is not None:
            looks += 1
            victims, idle = await self._strike(driver, running, hunt, keep_services)
            # A process that has died since the listing may continue as a fork that is not in it.
            died = {process.identity for process in running.values() if process.state == "Z"} - dead
            dead |= died
            is_hiding = all(pid < 0 for pid in victims) if victims else bool(died) and looks > 1
            if is_hiding or (hunt.is_outrun and victims and not idle):
                # Processes that fork all the time, or replace themselves by forks, can do neither while all are frozen.
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
        """Kill the listed processes that are not to be spared.

        Returns:
            Pids of the killed processes, and the number of rounds in a row without new ones (`Hunt.meet`).
        """
        table, numbers = _index_by_pid(running)
        spared, victims = self._sort(table, 0, keep_services)
        if keep_services:
            # A process of the world is no longer one if another process has injected code into it.
            victims |= self._world.altered(await self._with_code(table, numbers, spared - self._main(table) - {1}))
        if not victims:
            return victims, 0
        self._shells |= {table[pid].identity for pid in victims if _is_shell(table[pid])}
        idle = await hunt.meet({table[pid].identity for pid in victims})
        await driver.kill_running(self._handle, [numbers[pid] for pid in victims])
        return victims, idle

    def _sort(self, table: dict[int, RunningProcess], shell: int, keep_services: bool) -> tuple[set[int], set[int]]:
        """Return the pids of the processes to spare, and of those to kill.

        Args:
            table: All processes.
            shell: Pid of the shell that listed them; 0 for none.
            keep_services: Whether the world's processes are spared.
        """
        spared = self._spared(table, shell, keep_services)
        victims = {pid for pid, process in table.items() if pid not in spared and process.state != "Z"}
        # Processes that adopt orphans have not started their children.
        services = spared - self._main(table) - {1}
        return spared, victims - (self._world.left_alone(table, victims, services) if keep_services else set())

    async def _look(self) -> tuple[int, dict[int, RunningProcess], dict[int, int]]:
        """List the processes, by the driver if it can, else by a script.

        Returns:
            Pid of the shell that listed them (0 for none), the processes by pid, and the driver's number of each pid
                (empty for a script).
        """
        if (
            isinstance(self._driver, SeesProcesses)
            and (running := await self._driver.running(self._handle)) is not None
        ):
            return 0, *_index_by_pid(running)
        return *(await self._table()), {}

    async def _with_code(
        self, table: dict[int, RunningProcess], numbers: Mapping[int, int], pids: Iterable[int]
    ) -> dict[int, RunningProcess]:
        """Return the table with digests of the code of some processes, if the driver can read it.

        Args:
            table: All processes, by pid.
            numbers: The driver's numbers, by pid.
            pids: Processes whose code is read.
        """
        if not isinstance(self._driver, SeesCode):
            return table
        asked = {numbers[pid]: pid for pid in pids if pid in numbers}
        codes = await self._driver.code(self._handle, list(asked))
        return table | {asked[number]: replace(table[asked[number]], code=code) for number, code in codes.items()}

    async def strangers(self) -> list[RunningProcess]:
        """Return the processes that belong neither to the world nor to the engine, or whose code was changed."""
        shell, table, numbers = await self._look()
        shells = find_descendants(table, [pid for pid in table if _is_shell(table[pid])], set())
        spared = self._spared(table, shell, keep_services=True) | shells
        table = await self._with_code(table, numbers, spared)
        altered = self._world.altered(table)
        return [
            replace(process, is_altered=pid in altered)
            for pid, process in sorted(table.items())
            if (pid not in spared or pid in altered) and process.state != "Z"
        ]

    def _spared(self, table: dict[int, RunningProcess], shell: int, keep_services: bool) -> set[int]:
        """Return the pids of the processes to spare: the main process, the listing shell and, if asked, the world's."""
        main = self._main(table)
        spared = find_descendants(table, [shell] if shell else [], set()) | main
        if keep_services:
            # With the form `first` the entrypoint is the main process, so that the world begins there.
            spared |= self._world.services(table, main if self._form == "first" else (), hosts=main | {1})
        return spared

    async def kill_marked(self, mark: str) -> None:
        """Kill all processes that the command with this marker value has started.

        All are stopped before any is killed: a stopped process has no more children. Descendants that have left its
        session and changed their environment are known as its own only while it exists.

        Raises:
            SandboxError: Processes are left.
        """
        marker = f"{MARKER}={mark}"
        hunt, first = self._hunt("what a command has started"), ""
        while True:
            shell, table = await self._table(marker, first)
            spared = find_descendants(table, [shell], set()) | self._main(table)
            # Root without CAP_SYS_PTRACE may not read the environment of another user's process; a process of the same
            # user and group may.
            known = spared | {process.pid for process in table.values() if process.identity in hunt.met}
            for user in {p.user for p in table.values() if p.marked is None and p.pid not in known}:
                theirs = await self._table_as(user, marker)
                table |= {pid: row for pid, row in theirs.items() if row.marked is not None}
            seeds = [pid for pid, process in table.items() if process.marked or process.identity in hunt.met]
            victims = {pid for pid in find_descendants(table, seeds, spared) if table[pid].state != "Z"}
            if not victims:
                return
            try:
                idle = await hunt.meet({table[pid].identity for pid in victims})
            except SandboxError:
                # They are stopped, and must not be left so.
                await self._scripts.run(_format_signal("KILL", victims))
                raise
            first = "" if idle > 1 else _format_signal("KILL" if idle else "STOP", victims)

    async def kill_world(self) -> None:
        """Kill the processes that descend from an entrypoint below the first process, and not from a command."""
        hunt, first = self._hunt("what the image's entrypoint has started"), ""
        while True:
            shell, table = await self._table(first=first)
            main = self._main(table)
            spared = find_descendants(table, [shell], set()) | main | find_descendants(table, main - {1}, set())
            world = {pid for pid, process in table.items() if not process.entered and process.state != "Z"} - spared
            if not world:
                return
            idle = await hunt.meet({table[pid].identity for pid in world})
            first = "" if idle else _format_signal("KILL", world)

    async def any_marked(self, mark: str, user: str) -> bool:
        """Return whether a process of the command with this marker value runs. user: as whom the command runs."""
        marker = f"{MARKER}={mark}"
        _, table = await self._table(marker)
        if user != "0":
            table |= await self._table_as(user, marker)
        return any(process.marked and process.state != "Z" for process in table.values())

    def _main(self, table: dict[int, RunningProcess]) -> set[int]:
        """Return the pids of the processes with which the sandbox ends."""
        return {1} if self._form == "first" else find_main_processes(table)

    async def _table(self, marker: str | None = None, first: str = "") -> tuple[int, dict[int, RunningProcess]]:
        """List the processes by a script.

        Args:
            marker: Text to look for in each environment; None for none.
            first: Script that the same shell runs before it lists them.

        Returns:
            Pid of the shell, and the processes by pid.
        """
        answer = await self._scripts.run(f"{first}\nprintf '%s\\0' $$\n{make_list_script(marker)}")
        own, _, listing = answer.out.partition(b"\0")
        if not own.isdigit():
            raise SandboxError(
                f"the sandbox's processes cannot be listed: {answer.complaint}",
                remedy="look at the sandbox's shell",
            )
        shell, table = int(own), parse_processes(listing)
        if shell in table:
            self._shells.add(table[shell].identity)
        return shell, table

    async def _table_as(self, user: str, marker: str) -> dict[int, RunningProcess]:
        """List the processes by a script that runs as `user`."""
        return parse_processes(await self._as_user(user, make_list_script(marker)))


def _index_by_pid(running: Mapping[int, RunningProcess]) -> tuple[dict[int, RunningProcess], dict[int, int]]:
    """Return a driver's table by pid, and its numbers by pid."""
    table = {process.pid: process for process in running.values()}
    return table, {process.pid: number for number, process in running.items()}


def _is_shell(process: RunningProcess) -> bool:
    """Return whether a process may be the engine's: a shell for scripts that was closed, or another worker's."""
    return process.parent == 0 and process.argv == b"/bin/sh"


def _format_signal(name: str, pids: Iterable[int]) -> str:
    """Return the shell command that sends a signal to processes."""
    return f"kill -{name} {' '.join(map(str, sorted(pids)))} 2>/dev/null"
