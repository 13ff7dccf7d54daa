"""Which processes of a sandbox belong to the world, and which an agent has left.

A process belongs to the world if it ran before an agent acted, which pid and start time tell, or is its fork: a
daemon's worker runs the daemon's own program. Anything else that a service has started may be what an agent had it
start. The records are the host's: an agent that is root could edit a record inside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from benchflow.contracts.process_table import FOREIGN_CODE, RunningProcess
from benchflow.planes.sandbox.driven.records import Records
from benchflow.planes.sandbox.driven.table import closure

RESTARTS = 3
"""How often a service starts another program again before that is left alone."""

_INTERPRETERS = (b"python", b"perl", b"ruby", b"node", b"php", b"java", b"sh", b"bash", b"dash", b"ash", b"busybox")
"""Beginnings of the names of programs that run what their arguments say."""

Table = dict[int, RunningProcess]


class World:
    """The processes that belong to the world of one sandbox."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._ended: dict[tuple[int, int, str], set[tuple[int, int]]] = {}

    def record(self, processes: Iterable[RunningProcess], *, besides: bool = False) -> None:
        """Record processes as the world's. besides: in addition to those that are recorded."""
        rows = {tuple(row) for row in self._records.baseline} if besides else set()
        for process in processes:
            code = () if process.code is None else (process.code,)
            rows.add((*process.identity, _plain(process), *code))
        self._records.baseline = sorted(rows)

    def altered(self, table: Table) -> set[int]:
        """Return the processes that execute code which neither their files have, nor any that was recorded."""
        rows = [row for row in self._records.baseline if not isinstance(row, str)]
        codes = {None, "", *(row[3] for row in rows if len(row) > 3)} - {FOREIGN_CODE}
        return {pid for pid, process in table.items() if process.code not in codes}

    def services(self, table: Table, roots: Iterable[int] = (), hosts: Collection[int] = ()) -> set[int]:
        """Return the processes that belong to the world.

        Args:
            table: All processes.
            roots: Processes that are the world's whether they were recorded or not.
            hosts: Those that take in orphans: being their child tells nothing.
        """
        recorded = self._records.baseline
        rows = [row for row in recorded if not isinstance(row, str)]
        known = {(row[0], row[1]) for row in rows}
        # An earlier version has recorded no arguments.
        programs = {row[2] for row in rows if len(row) > 2 and row[2]}
        found = {process.pid for process in table.values() if process.identity in known}
        found |= {pid for pid in roots if pid in table}
        # An earlier version has recorded commands, and knew what an entrypoint has started by itself.
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
                    _plain(process) in programs
                    or (process.parent in found and _is_fork(process, table[process.parent]))
                )
            }
            if not more:
                return found
            found |= more

    def left_alone(self, table: Table, strangers: set[int], services: set[int]) -> set[int]:
        """Return those of the strangers that services have started too often again to be killed once more.

        Whoever is not among them counts as killed.
        """
        known, alone = self._records.restarted, set()
        for pid in strangers:
            process = table[pid]
            if process.parent not in services:
                continue
            parent = table[process.parent]
            key = (*parent.identity, _plain(process))
            again = self._ended.setdefault(key, set())
            again.add(process.identity)
            if key in known or len(again) > RESTARTS:
                known |= {key}
                alone |= closure(table, [pid], services)
        if known != self._records.restarted:
            self._records.restarted = known
        return alone & strangers


def _plain(process: RunningProcess) -> str:
    """Return the arguments of a process without spaces, since not everybody can read what separates them."""
    return b"".join(process.argv.split()).decode("latin-1")


def _is_fork(process: RunningProcess, parent: RunningProcess) -> bool:
    """Return whether a process seems to run what its parent does: the same file, and what that was told to do."""
    if process.runs_same_file is None:
        return (process.name, _plain(process)) == (parent.name, _plain(parent))
    return process.runs_same_file and (_plain(process) == _plain(parent) or not parent.name.startswith(_INTERPRETERS))
