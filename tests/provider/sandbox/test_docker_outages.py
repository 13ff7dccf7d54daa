"""A Docker daemon in trouble: what its containers do meanwhile is neither lost, nor done twice, nor taken for over.

The daemons are beside the machine's own, and are killed, frozen and started again in the middle of commands.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.outages import fill
from support.second_daemon import SecondDaemon, fragile_daemon

from benchflow.contracts.driver import StartedSandbox
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import SandboxExecResult, SandboxSpec
from benchflow.errors import DaemonUnavailableError, SandboxError, SandboxLostError, SandboxSpaceError
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.docker import docker_daemon as engines
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.driven.driven_sandbox import DrivenSandbox
from benchflow.testing.waiting import until

NAME = "benchflow-test-outages"

COUNTED = ["sh", "-c", "echo begun >>/counted; until [ -e /enough ]; do sleep 0.05; done; echo ended; exit 3"]
"""Ends when it is let go; what began twice shows in a file."""


async def test_a_daemon_that_takes_connections_and_answers_nothing_ends_no_script(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "ANSWER_SEC", 0.1)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
    provider = DrivenProvider(DockerDriver())
    with socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(str(tmp_path / "sock"))
        frozen.listen()
        sandbox = provider.adopt(spec_of("any"), StartedSandbox(handle=NAME))
        with pytest.raises(DaemonUnavailableError):
            await asyncio.wait_for(sandbox.control("true", timeout=0.1), 30)
    await provider.close()


# --- real ones -----------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def daemon(
    request: pytest.FixtureRequest, state: Path, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SecondDaemon]:
    """A daemon, which is this test's only one. The parameter: whether it keeps its containers."""
    async with fragile_daemon(keeps_containers=request.param) as made:
        monkeypatch.setenv("DOCKER_HOST", made.address)
        yield made


@pytest_asyncio.fixture
async def sandbox(daemon: SecondDaemon, base_image: str) -> AsyncIterator[DrivenSandbox]:
    provider = DrivenProvider(DockerDriver())
    yield await provider.start(spec_of(base_image), host_id="host", queue="queue")
    await provider.close()


def spec_of(image: str) -> SandboxSpec:
    return SandboxSpec(
        name=NAME,
        image=ImageRef(reference=image),
        labels={"benchflow.stack": "outages"},
        network_mode="no-network",
    )


async def tried(sandbox: DrivenSandbox, **options: Any) -> SandboxExecResult:
    """Run the counted command once, and again whenever an error says that it may pass, as activities are."""
    while True:
        provider = DrivenProvider(DockerDriver())
        try:
            return await (await provider.attach(sandbox.ref)).exec_once("counted", COUNTED, **options)
        except SandboxError as error:
            if not error.is_outage:
                raise
        finally:
            await provider.close()
        await asyncio.sleep(0.2)


async def begun(sandbox: DrivenSandbox) -> None:
    async def is_there() -> bool:
        return (await sandbox.control("test -e /counted")).return_code == 0

    await until(is_there)


async def let_go(sandbox: DrivenSandbox) -> None:
    """Let the counted command end."""
    assert (await sandbox.control("touch /enough")).return_code == 0


async def require_once(sandbox: DrivenSandbox, result: SandboxExecResult) -> None:
    """Assert that the command ended by itself, and began once."""
    assert (result.return_code, result.stdout, result.timed_out) == (3, "ended\n", False)
    assert await sandbox.read_bytes("/counted") == b"begun\n"


async def killed(daemon: SecondDaemon) -> None:
    await daemon.kill()
    await daemon.start()


async def stopped(daemon: SecondDaemon) -> None:
    await daemon.stop()
    await daemon.start()


RESTARTS = [pytest.param(killed, id="killed"), pytest.param(stopped, id="stopped")]


@pytest.mark.docker
@pytest.mark.long
@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("daemon", [True], indirect=True)
async def test_a_command_outlives_the_daemon_that_its_container_outlives(
    daemon: SecondDaemon, sandbox: DrivenSandbox, restart: Any
) -> None:
    work = asyncio.create_task(tried(sandbox, timeout=120))
    await begun(sandbox)
    await restart(daemon)
    assert not work.done()
    await let_go(sandbox)
    await require_once(sandbox, await asyncio.wait_for(work, 60))


@pytest.mark.docker
@pytest.mark.long
@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("daemon", [False], indirect=True)
async def test_what_ends_with_its_daemon_is_lost_and_has_no_exit_status(
    daemon: SecondDaemon, sandbox: DrivenSandbox, restart: Any
) -> None:
    once = asyncio.create_task(tried(sandbox, timeout=120))
    other = asyncio.create_task(sandbox.exec(COUNTED, timeout=120))
    await begun(sandbox)
    await restart(daemon)
    with pytest.raises(SandboxLostError):
        await asyncio.wait_for(once, 60)
    with pytest.raises((SandboxLostError, DaemonUnavailableError)):
        await asyncio.wait_for(other, 60)


@pytest.mark.docker
@pytest.mark.long
@pytest.mark.parametrize("daemon", [False], indirect=True)
async def test_the_time_of_a_command_that_ended_while_its_daemon_was_frozen_is_not_over(
    daemon: SecondDaemon, sandbox: DrivenSandbox
) -> None:
    provider = DrivenProvider(DockerDriver())
    same = await provider.attach(sandbox.ref)
    work = asyncio.create_task(same.exec_once("counted", COUNTED, timeout=2))
    await begun(sandbox)
    await let_go(sandbox)
    daemon.freeze()
    with pytest.raises(DaemonUnavailableError):
        await asyncio.wait_for(work, 60)
    with pytest.raises(DaemonUnavailableError):
        await sandbox.control("true", timeout=1)
    daemon.thaw()
    await provider.close()
    await require_once(sandbox, await tried(sandbox, timeout=2))


@pytest.mark.docker
@pytest.mark.long
@pytest.mark.parametrize("daemon", [False], indirect=True)
async def test_what_containerd_does_not_start_is_started_when_it_is_back(
    daemon: SecondDaemon, sandbox: DrivenSandbox
) -> None:
    """The daemon says why on the stream of the command, where else nothing but a wrong command is told."""
    await sandbox.exec(["true"])
    os.kill(daemon.containerd, signal.SIGKILL)
    with pytest.raises(DaemonUnavailableError):
        await sandbox.exec_once("counted", COUNTED, timeout=60)
    with pytest.raises(DaemonUnavailableError):
        await sandbox.exec(COUNTED, timeout=60)
    work = asyncio.create_task(tried(sandbox, timeout=60))
    await begun(sandbox)
    await let_go(sandbox)
    await require_once(sandbox, await asyncio.wait_for(work, 60))


@pytest.mark.docker
@pytest.mark.long
async def test_a_full_disk_of_the_daemon_costs_neither_a_capture_nor_a_command(
    state: Path, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fragile_daemon(disk_bytes=600 << 20) as daemon:
        monkeypatch.setenv("DOCKER_HOST", daemon.address)
        provider = DrivenProvider(DockerDriver())
        sandbox = await provider.start(spec_of(base_image), host_id="host", queue="queue")
        await sandbox.exec(["sh", "-c", "head -c 4000000 /dev/urandom >/changed"])
        filler = daemon.data / "filler"
        fill(filler)
        with pytest.raises(SandboxSpaceError):
            await sandbox.exec_once("counted", COUNTED)
        with pytest.raises(SandboxSpaceError):
            await sandbox.snapshot("full")
        filler.unlink()
        assert (await sandbox.snapshot("full")).built
        work = asyncio.create_task(sandbox.exec_once("counted", COUNTED))
        await begun(sandbox)
        await let_go(sandbox)
        await require_once(sandbox, await asyncio.wait_for(work, 60))
        await provider.close()
