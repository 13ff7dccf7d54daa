"""Whole rollouts over trouble of their Docker daemon: none is scored by it, and none ends by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.counted_task import BASE_IMAGE
from support.in_process_worker import InProcessWorker
from support.second_daemon import SecondDaemon, fragile_daemon

from benchflow.contracts.sandbox import SandboxRef
from benchflow.planes import sandbox
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.testing.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.long]


@pytest.fixture
async def daemon(
    worker: InProcessWorker, base_image: str, request: pytest.FixtureRequest
) -> AsyncIterator[SecondDaemon]:
    """The daemon of the worker. The parameter: whether it keeps its containers."""
    async with fragile_daemon(keeps_containers=request.param) as made:
        worker.patch.setenv("DOCKER_HOST", made.address)
        provider = DrivenProvider(DockerDriver())
        worker.patch.setitem(sandbox._made, "docker", provider)
        yield made
        await provider.close()


def held_task(worker: InProcessWorker) -> Path:
    """A task whose solution counts its beginnings, and ends when it is let go."""
    task = worker.task()
    (task / "task.toml").write_text(f'[environment]\ndocker_image = "{BASE_IMAGE}"\nallow_internet = false\n')
    (task / "solution/solve.sh").write_text(
        "#!/bin/sh\necho begun >>/root/begun\nuntil [ -e /enough ]; do sleep 0.1; done\n"
    )
    (task / "tests/test.sh").write_text("#!/bin/sh\nwc -l </root/begun >/logs/verifier/reward.txt\n")
    return task


async def in_solution(worker: InProcessWorker, but: str = "") -> str:
    """Return the sandbox, another one than `but`, whose solution has begun."""

    async def found() -> str | None:
        for owned in await DrivenProvider(DockerDriver()).owned(worker.context.stack):
            if owned.handle != but and await _run(owned.name, owned.handle, "test -e /root/begun"):
                return owned.handle
        return None

    return await until(found)


async def _run(name: str, handle: str, script: str) -> bool:
    ref = SandboxRef(provider="docker", name=name, handle=handle, host_id="", queue="", workdir="/")
    provider = DrivenProvider(DockerDriver())
    try:
        return (await (await provider.attach(ref)).control(script)).return_code == 0
    finally:
        await provider.close()


async def let_go(worker: InProcessWorker) -> None:
    (owned,) = await DrivenProvider(DockerDriver()).owned(worker.context.stack)
    assert await _run(owned.name, owned.handle, "touch /enough")


@pytest.mark.parametrize("daemon", [False], indirect=True)
async def test_a_turn_that_ended_with_its_daemon_is_not_scored_but_done_anew(
    worker: InProcessWorker, daemon: SecondDaemon
) -> None:
    job = await worker.submit(held_task(worker), sandbox="docker")
    first = await in_solution(worker)
    await daemon.kill()
    await daemon.start()
    await in_solution(worker, but=first)
    await let_go(worker)
    (result,) = await worker.results(job)
    assert (result.status, result.reward, result.attempt, result.error) == ("passed", 1.0, 2, None)
    (lost,) = job.directory.root.glob("**/attempts/1/result.json")
    assert '"sandbox_lost"' in lost.read_text() and '"rewards": null' in lost.read_text()
    assert worker.context.slots.taken() == []


@pytest.mark.parametrize("daemon", [True], indirect=True)
async def test_a_turn_outlives_the_daemon_that_its_container_outlives(
    worker: InProcessWorker, daemon: SecondDaemon
) -> None:
    job = await worker.submit(held_task(worker), sandbox="docker")
    await in_solution(worker)
    await daemon.kill()
    await daemon.start()
    await let_go(worker)
    (result,) = await worker.results(job)
    assert (result.status, result.reward, result.attempt, result.error) == ("passed", 1.0, 1, None)
