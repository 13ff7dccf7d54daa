"""Commands in a container: what only Docker's own ways of failing can do to them."""

from __future__ import annotations

import asyncio
import json

import pytest

from benchflow.errors import SandboxLostError
from benchflow.planes.sandbox.docker.records import container_records
from benchflow.testing.sandbox_conformance import others
from benchflow.testing.sandbox_conformance.fixtures import asleep, nap
from benchflow.testing.waiting import until

pytestmark = pytest.mark.docker

PROVIDER = "benchflow.planes.sandbox.docker:DockerProvider"

# Each run of the command appends a line to /count: the side effect that must happen once.
COUNTED = ["sh", "-c", "echo ran >>/count; sleep 1.5; echo out; echo err >&2; exit 7"]


async def count(sandbox) -> int:
    try:
        return (await sandbox.read_file("/count")).count(b"ran\n")
    except FileNotFoundError:
        return 0


async def test_the_root_shell_is_replaced_when_it_dies(sandbox):
    shell = sandbox._connection.shell
    own = (await shell.run("echo $$")).out.strip().decode()
    await sandbox.exec(["kill", "-9", own])
    assert (await shell.run("echo again")).out == b"again\n"


async def test_a_command_in_a_container_that_died_says_that_it_is_lost(sandbox, daemon):
    daemon.containers.get(sandbox.ref.handle).kill()
    with pytest.raises(SandboxLostError):
        await sandbox.exec(["true"])
    with pytest.raises(SandboxLostError):
        await sandbox.read_file("/etc/passwd")


async def test_a_container_that_dies_under_a_command_is_lost(sandbox, daemon):
    length = nap()
    task = asyncio.create_task(sandbox.exec(["sleep", length]))
    await asleep(sandbox, length)
    daemon.containers.get(sandbox.ref.handle).kill()
    with pytest.raises(SandboxLostError):
        await task


async def test_what_was_recorded_but_not_started_is_started(sandbox, monkeypatch):
    async def die(exec_id):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sandbox._engine, "open_exec", die)
        with pytest.raises(KeyboardInterrupt):
            await sandbox._connection.executions._started(*started_arguments(sandbox))
    assert not await sandbox.was_started("work")
    assert (await sandbox.exec_once("work", COUNTED)).return_code == 7
    assert await count(sandbox) == 1


def started_arguments(sandbox):
    file = sandbox._connection.executions._record_of("work")
    return file, f"/run/benchflow/exec/{file.stem}", sandbox._command(COUNTED, None, None, None)


@pytest.mark.parametrize("user", [None, "nobody"])
async def test_an_execution_that_the_daemon_forgot_is_known_by_its_files(sandbox, user):
    await sandbox.write_file("/count", "", mode=0o666)
    caller = others.call(PROVIDER, sandbox.ref, "exec_once", "work", COUNTED, user=user, cwd="/")
    await until(lambda: count(sandbox))
    await caller.kill()
    record = next(container_records(sandbox.ref.handle).glob("work-*.json"))
    forgotten = json.loads(record.read_text()) | {"exec_id": "0" * 64}
    record.write_text(json.dumps(forgotten))
    result = await sandbox.exec_once("work", COUNTED, user=user, cwd="/")
    assert (result.return_code, result.stdout) == (7, "out\n")


async def test_output_beyond_the_limit_on_disk_loses_its_middle(sandbox, monkeypatch):
    from benchflow.planes.sandbox.docker import executions, output

    monkeypatch.setattr(output, "OUTPUT_ON_DISK", 1000)
    monkeypatch.setattr(output, "OUTPUT_CAP", 200)
    monkeypatch.setattr(executions, "WATCH_EVERY", 0.05)
    noisy = "echo first; i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; sleep 1; echo last"
    result = await sandbox.exec_once("noise", ["sh", "-c", noisy])
    assert result.truncated
    assert result.stdout.startswith("first\n") and result.stdout.endswith("\nlast\n")
    assert len(result.stdout) < 600


async def test_removing_a_sandbox_removes_its_records(provider, sandbox):
    await sandbox.exec_once("work", ["true"])
    assert container_records(sandbox.ref.handle).exists()
    await provider.remove(sandbox.ref.name)
    assert not container_records(sandbox.ref.handle).exists()
