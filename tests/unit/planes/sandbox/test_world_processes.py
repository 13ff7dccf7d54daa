"""Which processes of a sandbox are the world's: by pid and start time, never by who has started them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchflow.contracts.process_table import FOREIGN_CODE, RunningProcess
from benchflow.planes.sandbox.docker.host_processes import read_processes
from benchflow.planes.sandbox.driven.sandbox_records import SandboxRecords
from benchflow.planes.sandbox.driven.world_processes import RESTARTS, WorldProcesses


def process(
    pid: int,
    parent: int,
    argv: str,
    *,
    start: int = 0,
    same: bool | None = False,
    entered: bool = True,
    name: str = "it",
) -> RunningProcess:
    return RunningProcess(
        pid=pid,
        parent=parent,
        session=pid,
        start=start or pid,
        state="S",
        name=name.encode(),
        user="0:0",
        marked=None,
        entered=entered,
        argv=argv.encode(),
        runs_same_file=same,
    )


def table(*processes: RunningProcess) -> dict[int, RunningProcess]:
    return {one.pid: one for one in processes}


def test_what_was_recorded_and_its_forks_are_the_worlds(state: Path) -> None:
    world, server = WorldProcesses(SandboxRecords("handle")), process(10, 0, "postgres -D /data", name="postgres")
    helper = process(11, 10, "logger --all")
    world.record([server, helper])
    found = table(
        server,
        # A worker that has changed its title, another program, a helper that was started again, and forks of forks.
        process(20, 10, "postgres: worker", same=True, name="postgres"),
        process(21, 10, "sh -c evil"),
        process(22, 10, "logger --all"),
        process(23, 20, "postgres: more", same=True, name="postgres"),
        process(24, 21, "sh -c evil", same=True, name="sh"),
        # The same number, of another process.
        process(11, 1, "logger --all", start=99),
        process(25, 1, "postgres -D /data", same=False),
    )
    assert world.services(found, hosts={1}) == {10, 20, 22, 23}


def test_a_fork_of_an_interpreter_runs_the_same_arguments(state: Path) -> None:
    world, server = WorldProcesses(SandboxRecords("handle")), process(10, 0, "python3 serve.py", name="python3")
    world.record([server])
    found = table(
        server,
        process(20, 10, "python3 serve.py", same=True, name="python3"),
        process(21, 10, "python3 evil.py", same=True, name="python3"),
    )
    assert world.services(found) == {10, 20}


def test_an_orphan_counts_only_if_no_command_has_started_it(state: Path) -> None:
    world = WorldProcesses(SandboxRecords("handle"))
    world.record([process(10, 1, "nginx")])
    found = table(process(1, 0, "init"), process(20, 1, "nginx"), process(21, 1, "nginx", entered=False))
    assert world.services(found, hosts={1}) == {21}


def test_what_a_service_starts_again_and_again_is_left_alone_by_every_later_look(state: Path) -> None:
    world, server = WorldProcesses(SandboxRecords("handle")), process(10, 0, "sh loop")
    world.record([server])
    for number in range(RESTARTS):
        found = table(server, process(20 + number, 10, "sleep 1"))
        assert world.left_alone(found, {20 + number}, {10}) == set()
    found = table(server, process(30, 10, "sleep 1"), process(31, 30, "child"), process(32, 10, "other"))
    assert world.left_alone(found, {30, 31, 32}, {10}) == {30, 31}
    assert WorldProcesses(SandboxRecords("handle")).left_alone(found, {30, 31, 32}, {10}) == {30, 31}


def test_a_container_whose_processes_are_not_of_this_host_is_not_seen() -> None:
    assert read_processes("0" * 64, 2**22 + 1) is None


def test_code_that_was_not_recorded_alters_a_process(state: Path) -> None:
    world, server, other = WorldProcesses(SandboxRecords("handle")), process(10, 0, "server"), process(11, 0, "other")
    world.record([replace(server, code="probe"), replace(other, code="")])
    forked = replace(process(20, 10, "server", same=True), code="probe")
    assert world.altered(table(replace(server, code="probe"), other, forked)) == set()
    assert world.altered(table(replace(server, code=""), replace(other, code="put"))) == {11}
    # An earlier version has recorded no code, and where nobody looks there is none.
    SandboxRecords("handle").baseline = [(10, 10, "server")]
    assert world.altered(table(server, replace(other, code=""), replace(forked, code="put"))) == {20}


def test_what_is_known_to_execute_something_else_was_altered_also_before_it_was_recorded(state: Path) -> None:
    world, first = WorldProcesses(SandboxRecords("handle")), replace(process(1, 0, "idle"), code=FOREIGN_CODE)
    world.record([first])
    assert world.altered(table(first)) == {1}
