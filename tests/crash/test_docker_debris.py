"""What dying processes leave of Docker sandboxes, and that whoever comes next mends and removes it. No engine here."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import docker
import pytest
import pytest_asyncio
from support.docker_churn import churn, spec_of, stop_in_a_capture, turn
from support.embedded import chance_of_this_run

from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.docker.captures import FORK, PART, SNAPSHOT, hash_stack
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.driven.driven_sandbox import DrivenSandbox
from benchflow.testing.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.long]

TICK = "(while :; do echo x >>/root/lines; sleep 0.01; done) >/dev/null 2>&1 &"


@pytest.fixture(scope="module")
def children() -> ForkServerContext:
    """Starts processes that have imported all they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.docker_churn"])
    return context


@pytest.fixture
def stack() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def name(stack: str) -> str:
    return f"benchflow-test-{stack[:12]}"


@pytest_asyncio.fixture
async def sandbox(state_root: Path, stack: str, name: str, base_image: str) -> AsyncIterator[DrivenSandbox]:
    provider = DrivenProvider(DockerDriver())
    yield await provider.start(spec_of(name, stack, base_image), host_id="host", queue="queue")
    for owned in await provider.owned(stack):
        await provider.remove(owned.name)
    await provider.close()


@pytest.fixture
def daemon() -> Iterator[Any]:
    client = docker.APIClient(version="auto")
    yield client
    client.close()


def left(daemon: Any, stack: str) -> list[str]:
    """Whatever the daemon has of a stack, by whatever it can be known."""
    label = {"label": f"benchflow.stack={stack}"}
    images = [tag for row in daemon.images() for tag in row["RepoTags"] or ()]
    return [
        *(str(row["Names"]) for row in daemon.containers(all=True, filters=label)),
        *(str(row["Name"]) for row in daemon.volumes(filters=label)["Volumes"] or ()),
        *(str(row["Id"]) for row in daemon.images(filters=label)),
        *(
            tag
            for tag in images
            if tag.startswith(tuple(f"{kind}:{hash_stack(stack)}-" for kind in (SNAPSHOT, FORK, PART)))
        ),
    ]


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.soak)])
async def test_kills_at_any_moment_leave_nothing(
    sandbox: DrivenSandbox, stack: str, name: str, children: ForkServerContext, daemon: Any, kills: int
) -> None:
    chance = chance_of_this_run()
    await sandbox.write_file("/kept", "x")
    for _ in range(kills):
        child = children.Process(target=churn, args=(_environment(), sandbox.ref), daemon=True)
        child.start()
        # Not a wait for anything: the moments are what is random.
        await asyncio.sleep(chance.uniform(0.1, 2.5))
        assert child.exitcode is None, "the child ended by itself"
        child.kill()
        child.join()
        fresh = DrivenProvider(DockerDriver())
        again = await fresh.attach(sandbox.ref)
        async with asyncio.timeout(120):
            assert (await again.exec(["cat", "/kept"])).stdout == "x"
        await fresh.close()
    fresh = DrivenProvider(DockerDriver())
    await turn(fresh, sandbox.ref)
    await _removed(fresh, daemon, stack)


async def _removed(provider: DrivenProvider, daemon: Any, stack: str) -> None:
    """Reap as workers do, from time to time, until nothing is left."""

    async def nothing() -> bool:
        for owned in await provider.owned(stack):
            await provider.remove(owned.name)
        await provider.sweep(stack)
        return not left(daemon, stack)

    try:
        # What the daemon was asked for by those that died may come to its end between two looks.
        await until(nothing, seconds=120)
    except AssertionError:
        pytest.fail(f"left behind: {left(daemon, stack)}")
    await provider.close()


@pytest.mark.parametrize("found_by", ["attach", "owned", "start", "remove"])
async def test_a_sandbox_left_paused_goes_on(
    sandbox: DrivenSandbox,
    stack: str,
    name: str,
    children: ForkServerContext,
    daemon: Any,
    base_image: str,
    found_by: str,
) -> None:
    await sandbox.exec(["sh", "-c", TICK])
    hearing, saying = children.Pipe()
    child = children.Process(target=stop_in_a_capture, args=(_environment(), sandbox.ref, saying), daemon=True)
    child.start()
    container = await asyncio.to_thread(hearing.recv)
    fresh = DrivenProvider(DockerDriver())
    # It is not taken for forgotten while somebody is at work.
    await fresh.owned(stack)
    assert _is_paused(daemon, container)
    child.kill()
    child.join()
    assert _is_paused(daemon, container)
    if found_by == "attach":
        await fresh.attach(sandbox.ref)
    elif found_by == "owned":
        await fresh.owned(stack)
    elif found_by == "start":
        await fresh.start(spec_of(name, stack, base_image), host_id="host", queue="queue")
    else:
        await fresh.remove(name)
    if found_by != "remove":
        assert not _is_paused(daemon, container)
        before = len(await sandbox.read_bytes("/root/lines"))

        async def more() -> bool:
            return len(await sandbox.read_bytes("/root/lines")) > before

        await until(more)
    await _removed(fresh, daemon, stack)


def _is_paused(daemon: Any, container: str) -> bool:
    return bool(daemon.inspect_container(container)["State"]["Paused"])


def _environment() -> dict[str, str]:
    return {"BENCHFLOW_STATE_DIR": os.environ["BENCHFLOW_STATE_DIR"]}
