"""The embedded stack's server when its ports are taken at the last moment, when it freezes, or its disk is full."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.options import set_options
from support.running import job_config
from support.task_writer import write_task

from benchflow import stack, supervisor, temporal_server
from benchflow.contracts.operator_options import WorkflowOptions
from benchflow.errors import StackError
from benchflow.jobs import plan_job, submit
from benchflow.paths import StatePaths
from benchflow.stack import StackRecord, WorkerWanted
from benchflow.supervisor import Supervisor
from benchflow.temporal import connect, make_stack_target
from benchflow.temporal_server import NamespaceRefusedError, Server
from benchflow.testing.waiting import until

Start = Callable[[StatePaths, StackRecord], Awaitable[Server]]

start_server: Start = temporal_server.start_server


@pytest.fixture
def taken() -> Iterator[Callable[[int], None]]:
    """Take ports of loopback until the test ends."""
    with contextlib.ExitStack() as open_sockets:

        def take(port: int) -> None:
            listener = open_sockets.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen()

        yield take


@asynccontextmanager
async def supervised(paths: StatePaths, monkeypatch: pytest.MonkeyPatch, start: Start) -> AsyncIterator[Supervisor]:
    """Run a supervisor in this process; start: what it starts its servers with."""
    monkeypatch.setattr(supervisor, "start_server", start)
    made = Supervisor(paths)
    running = asyncio.create_task(made.run())
    try:
        await until(lambda: made.record.state == "running" or running.done())
        if running.done():
            await running
        yield made
    finally:
        made.stopping.set()
        with contextlib.suppress(StackError):
            await running


async def has_worker(made: Supervisor, paths: StatePaths, other_than: stack.StackProcess | None = None) -> bool:
    """Tell whether a worker asks the supervisor's server for work."""
    worker = made.record.worker
    return worker not in (None, other_than) and any(paths.running.glob(f"{worker.pid}-*/ready"))


async def test_a_server_whose_ports_are_taken_as_it_starts_and_as_it_is_started_again_gets_others(
    state_root: Path, taken: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, ports = StatePaths(state_root), []

    async def start(paths: StatePaths, record: StackRecord) -> Server:
        if record.socket is not None:
            raise NamespaceRefusedError("this kernel gives none")
        ports.append(record.port)
        if len(ports) == 1:
            taken(record.ui_port)
        if len(ports) in (2, 4):
            taken(record.port)
        return await start_server(paths, record)

    async with supervised(paths, monkeypatch, start) as made:
        first = made.record
        assert first.port == ports[-1] and len({*ports}) == 2
        await connect(make_stack_target(first))
        await until(lambda: has_worker(made, paths))
        worker = made.record.worker
        assert first.server is not None
        os.kill(first.server.pid, signal.SIGKILL)
        # Not the worker that asks at the port where another process listens now.
        await until(lambda: has_worker(made, paths, other_than=worker))
        assert len({*ports}) == 3 and made.record.port == ports[-1]
        await connect(make_stack_target(made.record))


async def test_a_newer_worker_that_cannot_start_leaves_the_older_one_at_work(
    state_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = StatePaths(state_root)
    async with supervised(paths, monkeypatch, start_server) as made:
        older = await until(lambda: made.record.worker)
        broken = WorkerWanted(python="/bin/false", digest="newer", pythonpath="")
        paths.worker_wanted.write_text(broken.model_dump_json())
        made.wanted_changed.set()
        await until(lambda: made.record.restarts.get("worker", 0) >= 2)
        assert older.alive and (made.record.worker, made.record.wanted == broken) == (older, False)


async def test_a_port_that_was_asked_for_and_is_taken_as_the_server_starts_is_an_error(
    state_root: Path, taken: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = stack.find_free_port()
    monkeypatch.setenv(stack.PORT_VARIABLE, str(port))

    async def start(paths: StatePaths, record: StackRecord) -> Server:
        taken(record.port)
        return await start_server(paths, record)

    with pytest.raises(StackError, match=f"port {port} is taken") as caught:
        async with supervised(StatePaths(state_root), monkeypatch, start):
            pass
    assert caught.value.key == stack.PORT_VARIABLE


async def test_a_database_that_its_server_was_killed_in_the_middle_of_making_is_made_anew(
    state_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = StatePaths(state_root)
    # The first table that it makes; it ends with "no such table: namespaces" when it is started on that.
    with contextlib.closing(sqlite3.connect(paths.database)) as unfinished:
        unfinished.execute("CREATE TABLE schema_version (version_partition INT)")
    async with supervised(paths, monkeypatch, start_server) as made:
        await connect(make_stack_target(made.record))


async def test_a_server_that_freezes_while_it_starts_is_replaced(
    state_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporal_server, "START_TIMEOUT_SEC", 6.0)
    started: list[int] = []

    async def start(paths: StatePaths, record: StackRecord) -> Server:
        made = await start_server(paths, record)
        started.append(made.server.pid)
        if len(started) == 1:
            os.kill(made.server.pid, signal.SIGSTOP)
        return made

    async with supervised(StatePaths(state_root), monkeypatch, start) as made:
        assert len(started) == 2 and made.record.server == stack.StackProcess.of(started[1])
        assert not stack.StackProcess(pid=started[0]).alive


@pytest.fixture
def small_disk(state_root: Path) -> Iterator[Path]:
    """Lay the state directory on a filesystem of its own."""
    if os.geteuid():
        pytest.skip("only root can mount a filesystem")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m,mode=700", "tmpfs", str(state_root)], check=True)
    yield state_root
    subprocess.run(["umount", "--lazy", str(state_root)], check=True)


def children(pid: int) -> set[str]:
    """Return the pids of a process's children."""
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


async def test_a_stack_whose_disk_is_full_comes_back_when_there_is_space(small_disk: Path) -> None:
    paths = StatePaths(small_disk)
    record = await asyncio.to_thread(stack.ensure_stack, paths)
    try:
        client = await connect(make_stack_target(record))
        before = await client.start_workflow("Unknown", id="before", task_queue="none")
        fill = small_disk / "fill"
        with contextlib.suppress(OSError), fill.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        assert record.server is not None and record.worker is not None
        for process in (record.server, record.worker):
            os.kill(process.pid, signal.SIGKILL)
        # Nothing that is started in their place can be recorded, or work.
        before_it, since = children(record.supervisor.pid), set[str]()
        await until(lambda: since.update(children(record.supervisor.pid) - before_it) or len(since) >= 4)
        assert stack.find_running(paths) == record
        fill.unlink()

        def both_are_back() -> StackRecord | None:
            found = stack.find_running(paths)
            is_new = found is not None and record.worker != found.worker and record.server != found.server
            return found if is_new and any(paths.running.glob(f"{found.worker.pid}-*/ready")) else None

        again = await until(both_are_back)
        assert again.supervisor == record.supervisor
        client = await connect(make_stack_target(again))
        assert (await client.get_workflow_handle("before").describe()).run_id == before.first_execution_run_id
        await client.start_workflow("Unknown", id="after", task_queue="none")
    finally:
        await asyncio.to_thread(stack.stop_stack, paths)


async def test_what_dies_while_the_supervisor_is_frozen_is_back_when_it_wakes(
    state_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the server had given away as it died, and nobody got, is given again when its heartbeats stay out.
    set_options(monkeypatch, WorkflowOptions(heartbeat_timeout_sec=10))
    paths = StatePaths(state_root)
    config = job_config([write_task(tmp_path)], tmp_path / "jobs", sandbox="noop", repeats=24, concurrency=2)
    job = await submit(plan_job(config))
    record = stack.find_running(paths)
    assert record is not None and record.server is not None
    try:
        await until(lambda: job.directory.results.exists())
        os.kill(record.supervisor.pid, signal.SIGSTOP)
        os.kill(record.server.pid, signal.SIGKILL)
        await until(lambda: not record.server.alive)
        finishing = asyncio.create_task(job.wait())
        # Longer than a server that is started again takes. Its worker goes on asking meanwhile.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(finishing), 5)
        os.kill(record.supervisor.pid, signal.SIGCONT)
        await finishing
        assert [(result.status, result.attempt) for result in job.results()] == [("passed", 1)] * 24
        again = stack.find_running(paths)
        assert again is not None and again.restarts == {"server": 1}
        assert (again.supervisor, again.worker) == (record.supervisor, record.worker)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.supervisor.pid, signal.SIGCONT)
        await asyncio.to_thread(stack.stop_stack, paths)


@pytest.mark.parametrize("frozen", ["the server", "the way to it"])
@pytest.mark.long
async def test_who_submits_while_the_server_is_frozen_waits_and_says_so_once(
    state_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    frozen: str,
) -> None:
    monkeypatch.setattr("benchflow.temporal.CONNECT_SEC", 1.0)
    monkeypatch.setattr("benchflow.jobs.engine_connection.RESTART_SEC", 1.0)
    monkeypatch.setattr("benchflow.jobs.engine_connection.WARN_AFTER_SEC", 0.0)
    record = await asyncio.to_thread(stack.ensure_stack)
    process = record.server if frozen == "the server" else record.enclosure or record.server
    assert process is not None
    config = job_config([write_task(tmp_path)], tmp_path / "jobs", sandbox="noop")
    try:
        os.kill(process.pid, signal.SIGSTOP)
        submitting = asyncio.create_task(submit(plan_job(config)))
        with caplog.at_level(logging.WARNING, "benchflow.jobs"):
            await until(lambda: caplog.records)
        assert not submitting.done()
        os.kill(process.pid, signal.SIGCONT)
        job = await submitting
        await job.wait()
        assert [result.status for result in job.results()] == ["passed"]
        assert ["does not answer" in text or "answers" in text for text in caplog.messages] == [True]
    finally:
        os.kill(process.pid, signal.SIGCONT)
        await asyncio.to_thread(stack.stop_stack, StatePaths(state_root))
