"""Classification of a sandbox's processes: those that belong to the world, and those that an agent has left.

A process belongs to the world if it ran before an agent acted, which pid and start time tell, or is its fork: a
daemon's worker runs the daemon's own program. Anything else that a service has started may have been requested by an
agent. The records are on the host: an agent that is root could edit a record in the sandbox.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from benchflow.contracts.process_table import FOREIGN_CODE, RunningProcess
from benchflow.planes.sandbox.driven.sandbox_records import SandboxRecords
from benchflow.planes.sandbox.driven.table import find_descendants

RESTARTS = 3
"""Number of times that a program which a service restarts is killed before it is left alone."""

_INTERPRETERS = (b"python", b"perl", b"ruby", b"node", b"php", b"java", b"sh", b"bash", b"dash", b"ash", b"busybox")
"""Prefixes of the names of programs that execute what their arguments name."""

Table = dict[int, RunningProcess]
"""Processes by pid."""


class WorldProcesses:
    """The recorded processes of one sandbox's world, and the rules by which further ones belong to it."""

    def __init__(self, records: SandboxRecords) -> None:
        """Make it of the sandbox's records."""
        self._records = records
        # Processes that were to be killed so far, by service and program.
        self._ended: dict[tuple[int, int, str], set[tuple[int, int]]] = {}

    def record(self, processes: Iterable[RunningProcess], *, besides: bool = False) -> None:
        """Record processes as the world's.

        Args:
            processes: The processes, with their code if the driver can read it.
            besides: Whether they are added to the recorded ones, and do not replace them.
        """
        rows = {tuple(row) for row in self._records.baseline} if besides else set()
        for process in processes:
            code = () if process.code is None else (process.code,)
            rows.add((*process.identity, _strip_arguments(process), *code))
        self._records.baseline = sorted(rows)

    def altered(self, table: Table) -> set[int]:
        """Return the pids of processes whose code in memory is neither that of their files nor any recorded code."""
        rows = [row for row in self._records.baseline if not isinstance(row, str)]
        codes = {None, "", *(row[3] for row in rows if len(row) > 3)} - {FOREIGN_CODE}
        return {pid for pid, process in table.items() if process.code not in codes}

    def services(self, table: Table, roots: Iterable[int] = (), hosts: Collection[int] = ()) -> set[int]:
        """Return the pids of the processes that belong to the world.

        Args:
            table: All processes.
            roots: Processes that belong to the world whether they were recorded or not.
            hosts: Processes that adopt orphans, so that their children need not have been started by them.
        """
        recorded = self._records.baseline
        rows = [row for row in recorded if not isinstance(row, str)]
        known = {(row[0], row[1]) for row in rows}
        # Records of an earlier version have no arguments.
        programs = {row[2] for row in rows if len(row) > 2 and row[2]}
        found = {process.pid for process in table.values() if process.identity in known}
        found |= {pid for pid in roots if pid in table}
        # Records of an earlier version name commands, and imply all that an entrypoint has started.
        if groups := [row for row in recorded if isinstance(row, str)]:
            found |= {process.pid for process in table.values() if process.group in groups or not process.entered}
        while True:
            groups = [table[pid].group for pid in found if table[pid].group]
            more = {
                process.pid
                for process in table.values()
                if process.pid not in found
                and (process.parent in found - set(hosts) or process.group in groups or not process.entered)
                and (
                    _strip_arguments(process) in programs
                    or (process.parent in found and _is_fork(process, table[process.parent]))
                )
            }
            if not more:
                return found
            found |= more

    def left_alone(self, table: Table, strangers: set[int], services: set[int]) -> set[int]:
        """Return the strangers that are not to be killed, since services have restarted them after `RESTARTS` kills.

        The caller kills all others: they are counted as killed.

        Args:
            table: All processes.
            strangers: Pids of processes that do not belong to the world.
            services: Pids of processes that do.
        """
        known, alone = self._records.restarted, set()
        for pid in strangers:
            process = table[pid]
            if process.parent not in services:
                continue
            parent = table[process.parent]
            key = (*parent.identity, _strip_arguments(process))
            again = self._ended.setdefault(key, set())
            again.add(process.identity)
            if key in known or len(again) > RESTARTS:
                known |= {key}
                alone |= find_descendants(table, [pid], services)
        if known != self._records.restarted:
            self._records.restarted = known
        return alone & strangers


def _strip_arguments(process: RunningProcess) -> str:
    """Return the arguments of a process without white space: not every reader can tell what separates them."""
    return b"".join(process.argv.split()).decode("latin-1")


def _is_fork(process: RunningProcess, parent: RunningProcess) -> bool:
    """Return whether a process seems to be a fork of its parent.

    It executes the same file and, unless that is no interpreter, has the same arguments.
    """
    if process.runs_same_file is None:
        return (process.name, _strip_arguments(process)) == (parent.name, _strip_arguments(parent))
    return process.runs_same_file and (
        _strip_arguments(process) == _strip_arguments(parent) or not parent.name.startswith(_INTERPRETERS)
    )
