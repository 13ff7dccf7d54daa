"""Commands in a container: what only Docker's own ways of failing can do to them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.outages import fill
from support.relay import Relay

from benchflow.errors import DaemonUnavailableError, SandboxError, SandboxLostError, SandboxSpaceError
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.docker import docker_daemon as engines
from benchflow.planes.sandbox.docker.container_records import container_records
from benchflow.planes.sandbox.driven.command_executions import CommandRequest
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.driven.wrapped import COMMANDS, MARKER, CommandFiles
from benchflow.planes.sandbox.outcome import OUTPUT_ON_DISK
from benchflow.testing.sandbox_conformance import other_processes
from benchflow.testing.sandbox_conformance.sandbox_fixtures import asleep, nap, napping
from benchflow.testing.waiting import until

pytestmark = pytest.mark.docker

PROVIDER = "benchflow.planes.sandbox.docker:DockerDriver"

# Each run of the command appends a line to /count: the side effect that must happen once.
COUNTED = ["sh", "-c", "echo ran >>/count; sleep 0.3; echo out; echo err >&2; exit 7"]


async def count(sandbox) -> int:
    try:
        return (await sandbox.read_bytes("/count")).count(b"ran\n")
    except FileNotFoundError:
        return 0


async def test_the_root_shell_is_replaced_when_it_dies(sandbox):
    own = (await sandbox.control("echo $$")).stdout.strip()
    await sandbox.exec(["kill", "-9", own])
    assert (await sandbox.control("echo again")).stdout == "again\n"


async def test_a_container_that_dies_under_a_command_is_lost(sandbox, daemon):
    length = nap()
    task = asyncio.create_task(sandbox.exec(["sleep", length]))
    await asleep(sandbox, length)
    daemon.containers.get(sandbox.ref.handle).kill()
    with pytest.raises(SandboxLostError):
        await task
    with pytest.raises(SandboxLostError):
        await sandbox.exec(["true"])
    with pytest.raises(SandboxLostError):
        await sandbox.read_bytes("/etc/passwd")


async def test_what_could_not_be_ended_for_want_of_an_answer_is_ended_before_the_next_command(sandbox, monkeypatch):
    """Whoever tries the same again does so beside nothing."""
    monkeypatch.setattr(engines, "ANSWER_SEC", 0.2)
    length = nap()
    async with Relay.to("/var/run/docker.sock") as relay:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{relay.port}")
        provider = DrivenProvider(DockerDriver())
        same = await provider.attach(sandbox.ref)
        task = asyncio.create_task(same.exec(["sleep", length], timeout=2.0))
        await asleep(sandbox, length)
        relay.cut()
        with pytest.raises(DaemonUnavailableError):
            await task
        relay.mend()
        assert (await same.exec(["true"])).return_code == 0
        assert await napping(sandbox, length) == []
        await provider.close()


async def test_what_was_recorded_but_not_started_is_started(sandbox, monkeypatch):
    async def die(container, exec_id):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sandbox._driver._engine, "open_exec", die)
        with pytest.raises(KeyboardInterrupt):
            await sandbox._connection.executions.begin("work", CommandRequest(tuple(COUNTED)))
    assert not await sandbox.was_started("work")
    assert (await sandbox.exec_once("work", COUNTED)).return_code == 7
    assert await count(sandbox) == 1


@pytest.mark.parametrize("user", [pytest.param(None, marks=pytest.mark.long), "nobody"])
async def test_an_execution_that_the_daemon_forgot_is_known_by_its_files(provider, sandbox, user):
    await sandbox.write_file("/count", "", mode=0o666)
    caller = other_processes.call(PROVIDER, sandbox.ref, "exec_once", "work", COUNTED, user=user, cwd="/")
    await until(lambda: count(sandbox))
    await caller.kill()
    record = next(container_records(sandbox.ref.handle).glob("work-*.exec"))
    forgotten = json.loads(record.read_text()) | {"exec_id": "0" * 64}
    record.write_text(json.dumps(forgotten))
    result = await sandbox.exec_once("work", COUNTED, user=user, cwd="/")
    assert (result.return_code, result.stdout) == (7, "out\n")
    # With the sandbox, its records go.
    await provider.remove(sandbox.ref.name)
    assert not container_records(sandbox.ref.handle).exists()


@pytest.fixture
async def rooms(sandbox, daemon):
    """The directory of the commands' rooms, seen from the host, on a small disk of its own."""
    await sandbox.exec(["true"])
    pid = daemon.containers.get(sandbox.ref.handle).attrs["State"]["Pid"]
    mount = ("mount", "-t", "tmpfs", "-o", "size=64k,mode=0711", "benchflow-test", COMMANDS)
    process = await asyncio.create_subprocess_exec("nsenter", f"--target={pid}", "--mount", *mount)
    assert await process.wait() == 0
    return Path(f"/proc/{pid}/root{COMMANDS}")


async def end_where_the_daemon_forgets_it(sandbox, before) -> None:
    """Have a command that counts end when `before` was called and nobody waits, and be known by its files alone."""
    command = ["sh", "-c", "echo ran >>/count; until [ -e /go ]; do sleep 0.05; done; echo over >/over; exit 7"]
    waiting = asyncio.create_task(sandbox.exec_once("work", command))
    await until(lambda: count(sandbox))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    before()
    await sandbox.write_file("/go", "")

    async def is_over() -> bool:
        listed = await sandbox.control(f"test -e /over && ! grep -lz {MARKER}= /proc/[0-9]*/environ")
        return listed.return_code == 0

    await until(is_over)
    record = next(container_records(sandbox.ref.handle).glob("work-*.exec"))
    record.write_text(json.dumps(json.loads(record.read_text()) | {"exec_id": "0" * 64}))


async def test_the_exit_status_of_a_command_fits_on_a_disk_that_was_filled_meanwhile(sandbox, rooms):
    await end_where_the_daemon_forgets_it(sandbox, lambda: fill(rooms / "filler"))
    assert (await sandbox.exec_once("work", COUNTED)).return_code == 7
    assert await count(sandbox) == 1


async def test_a_command_whose_exit_status_was_made_away_with_is_not_run_again(sandbox, rooms):
    await end_where_the_daemon_forgets_it(sandbox, lambda: None)
    (status,) = rooms.glob("work-*/exit")
    status.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(SandboxError, match="end was not seen"):
            await sandbox.exec_once("work", COUNTED)
    assert await count(sandbox) == 1


async def test_a_command_whose_exit_status_would_not_fit_is_run_when_there_is_space(sandbox, rooms):
    fill(rooms / "filler")
    with pytest.raises(SandboxSpaceError):
        await sandbox.exec_once("work", COUNTED)
    (rooms / "filler").unlink()
    assert (await sandbox.exec_once("work", COUNTED)).return_code == 7
    assert await count(sandbox) == 1


async def test_output_beyond_the_limit_on_disk_loses_its_middle(sandbox):
    files, room = CommandFiles(sandbox._connection.scripts, cap=200, on_disk=1000), f"{COMMANDS}/noisy"
    made = f"mkdir -p {room} && cd {room} && echo first >out && seq 20000 >>out && : >err"
    assert (await sandbox.control(made)).stderr == ""
    await files.trim("noisy")
    said = await sandbox.control(f"stat -c %s {room}/out; echo last >>{room}/out")
    assert int(said.stdout) <= 1000
    result = await files.output("noisy")
    assert result.truncated
    assert result.stdout.startswith("first\n") and result.stdout.endswith("\n20000\nlast\n")
    assert len(result.stdout) < 600


@pytest.mark.long
async def test_output_that_grows_too_large_loses_its_middle_while_its_command_runs(sandbox):
    noisy = (
        f"echo first; yes | head -c {OUTPUT_ON_DISK}; touch /written; until [ -e /go ]; do sleep 0.05; done; echo last"
    )
    task = asyncio.create_task(sandbox.exec_once("noise", ["sh", "-c", noisy]))

    async def is_trimmed() -> bool:
        look = "test -e /written && find /run/benchflow -name out -size -20M | grep -q ."
        return (await sandbox.control(look)).return_code == 0

    await until(is_trimmed)
    await sandbox.write_file("/go", "")
    result = await task
    assert result.truncated
    assert result.stdout.startswith("first\n") and result.stdout.endswith("\nlast\n")


@pytest.mark.long
async def test_a_timeout_kills_those_that_are_forked_meanwhile_and_leave_everything(sandbox):
    length = nap()
    fork = f"while :; do env -i /usr/bin/setsid sleep {length} & sleep 0.005; done"
    result = await sandbox.exec(["sh", "-c", f"({fork}) & ({fork}) & {fork}"], timeout=1.0)
    assert result.timed_out
    assert await napping(sandbox, length) == []
