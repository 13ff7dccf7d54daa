"""Containers in states that only Docker knows, and what is asked of the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import uuid
from pathlib import Path

import docker
import pytest
from docker.errors import APIError

from benchflow.contracts.images import ImageRef
from benchflow.errors import SandboxError, SandboxLostError, SandboxStartError
from benchflow.testing.sandbox_conformance.sandbox_fixtures import PATIENCE
from benchflow.testing.waiting import until

pytestmark = pytest.mark.docker


@pytest.fixture
def name(stack):
    return f"benchflow-test-{stack[:12]}"


@pytest.fixture
def image_from(daemon, base_image):
    """Images made from a container with other settings; removed afterwards."""
    made = []

    def make(**config):
        container = daemon.api.create_container(base_image, ["true"])
        tag = f"benchflow-test-{uuid.uuid4().hex[:8]}"
        daemon.api.commit(container["Id"], repository=tag, conf=config)
        daemon.api.remove_container(container["Id"])
        made.append(tag)
        return ImageRef(reference=tag, workdir=config.get("WorkingDir"))

    yield make
    for tag in made:
        daemon.images.remove(tag, force=True)


async def test_one_that_is_stopped_by_hand_ends_at_once_is_lost_and_is_made_anew(provider, start, daemon, name):
    first = await start(name=name)
    container = daemon.containers.get(first.ref.handle)
    began = time.monotonic()
    await asyncio.to_thread(container.stop, timeout=60)
    assert time.monotonic() - began < 30
    with pytest.raises(SandboxLostError, match="no longer runs"):
        await provider.attach(first.ref)
    second = await start(name=name)
    assert second.ref.handle != first.ref.handle
    assert (await second.exec(["true"])).return_code == 0


async def test_one_that_was_made_but_never_started_is_started(start, daemon, base_image, stack, name):
    made = daemon.containers.create(
        base_image, ["sleep", "1000"], name=name, init=True, labels={"benchflow.stack": stack}
    )
    assert (await start(name=name)).ref.handle == made.id


async def test_a_paused_sandbox_goes_on(start, daemon, name):
    first = await start(name=name)
    daemon.containers.get(first.ref.handle).pause()
    assert (await (await start(name=name)).exec(["true"])).return_code == 0


async def test_a_sandbox_that_was_there_outlives_a_start_that_fails(start, daemon, name):
    """All rollouts of a persistent job start the one that they share."""
    shared = await start(name=name)
    await shared.write_file("/shared", "state of the world")
    await shared.write_file("/file", "")
    with pytest.raises(SandboxError):
        await start(name=name, workdir="/file/below")
    assert daemon.containers.get(name).id == shared.ref.handle
    again = await start(name=name)
    assert again.ref.handle == shared.ref.handle
    assert await again.read_bytes("/shared") == b"state of the world"


async def test_what_a_start_has_made_goes_when_it_fails(start, daemon, name):
    with pytest.raises(SandboxError):
        await start(name=name, workdir="/etc/passwd/below")
    with pytest.raises(docker.errors.NotFound):
        daemon.containers.get(name)


async def test_removing_takes_volumes_along(provider, start, daemon, image_from, stack):
    sandbox = await start(image=image_from(Volumes={"/data": {}}))
    volumes = {mount["Name"] for mount in daemon.api.inspect_container(sandbox.ref.handle)["Mounts"]}
    mine = {"label": f"benchflow.stack={stack}"}
    own = {volume.id for volume in daemon.volumes.list(filters=mine)}
    assert own and own <= volumes
    await provider.remove(sandbox.ref.name)
    assert not volumes & {volume.id for volume in daemon.volumes.list()}
    assert daemon.volumes.list(filters=mine) == []


async def test_what_an_image_declares_is_on_no_volume(start, daemon, image_from, stack):
    """It would be in no snapshot."""
    sandbox = await start(image=image_from(Volumes={"/data": {}}))
    mounts = daemon.api.inspect_container(sandbox.ref.handle)["Mounts"]
    own = daemon.volumes.list(filters={"label": f"benchflow.stack={stack}"})
    assert {mount["Name"] for mount in mounts} == {volume.id for volume in own}
    assert {mount["Destination"] for mount in mounts} == {"/run/benchflow", "/dev/benchflow"}


@pytest.mark.long
async def test_an_app_directory_is_the_workspace_when_nothing_else_says(start, daemon, base_image):
    container = daemon.containers.run(base_image, ["mkdir", "/app"], detach=True)
    container.wait()
    image = container.commit(name := f"benchflow-test-app-{uuid.uuid4().hex[:8]}")
    container.remove()
    try:
        assert (await start(image=ImageRef(reference=image.id))).ref.workdir == "/app"
    finally:
        for leftover in daemon.containers.list(filters={"ancestor": image.id}):
            leftover.remove(force=True)
        daemon.images.remove(name, force=True)


async def test_an_entrypoint_runs_before_the_main_process_and_its_user_does_not_bind_the_engine(start, image_from):
    image = image_from(Entrypoint=["/bin/sh", "-c", 'id -un >/tmp/began; exec "$@"', "entry"], User="nobody")
    sandbox = await start(image=image)
    assert (await sandbox.exec(["id", "-u"])).stdout == "0\n"
    # What the engine begins with in the sandbox does not wait for it.
    look = "until grep -qx root /tmp/began 2>/dev/null; do sleep 0.05; done"
    assert (await sandbox.exec(["sh", "-c", look], timeout=PATIENCE)).return_code == 0


async def test_an_entrypoint_that_ends_is_told_with_its_last_words(start, image_from, provider, stack):
    image = image_from(Entrypoint=["/bin/sh", "-c", "echo cannot find my database >&2; exit 3"])

    async def refused():
        try:
            sandbox = await start(image=image)
        except SandboxStartError as error:
            return error
        # It ended just after its start was seen.
        await provider.remove(sandbox.ref.name)
        return None

    error = await until(refused)
    assert "exit status 3" in error.message
    assert "cannot find my database" in error.log_tail
    assert error.remedy
    assert await provider.owned(stack) == []


async def test_a_container_has_its_limits_gains_no_privileges_and_does_not_see_the_daemon(start, daemon):
    sandbox = await start(cpus=0.5, memory_mb=96, storage_mb=100)
    assert any("storage_mb" in warning for warning in sandbox.ref.warnings)
    host = daemon.containers.get(sandbox.ref.handle).attrs["HostConfig"]
    assert host["NanoCpus"] == 500_000_000
    assert host["Memory"] == host["MemorySwap"] == 96 * 1024 * 1024
    assert host["PidsLimit"] == 4096
    assert "no-new-privileges" in host["SecurityOpt"]
    assert host["CapDrop"] == ["ALL"] and not host["Privileged"] and not host["Binds"]
    assert "NoNewPrivs:\t1" in (await sandbox.read_bytes("/proc/self/status")).decode()
    assert (await sandbox.exec(["test", "-e", "/var/run/docker.sock"])).return_code == 1


@pytest.mark.long
async def test_more_processors_than_there_are_is_a_warning(start):
    sandbox = await start(cpus=10_000)
    assert any("cpus" in warning for warning in sandbox.ref.warnings)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root kills processes of a container past the daemon")
async def test_a_container_is_removed_also_while_another_call_holds_its_locks(start, provider, daemon):
    sandbox = await start()
    container = sandbox.ref.handle
    for command in (["sh", "-c", "while :; do kill -s STOP -- -1; done"], ["sleep", "1"]):
        made = daemon.api.exec_create(container, command)
        entering = asyncio.ensure_future(asyncio.to_thread(daemon.api.exec_start, made["Id"], detach=True))
        await asyncio.wait([entering], timeout=1)
    # It waits for the start of a process that is stopped, and keeps others from the container.
    looking = asyncio.ensure_future(asyncio.to_thread(daemon.api.inspect_container, container))
    assert not (await asyncio.wait([looking, entering], timeout=1))[0]
    async with asyncio.timeout(30):
        await provider.remove(sandbox.ref.name)
    assert daemon.containers.list(all=True, filters={"id": container}) == []
    await asyncio.gather(looking, entering, return_exceptions=True)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root kills processes of a container past the daemon")
@pytest.mark.skipif(not Path("/sys/fs/cgroup/freezer").is_dir(), reason="a unified hierarchy kills frozen processes")
async def test_a_container_that_was_frozen_as_a_command_entered_it_is_removed(start, provider, daemon):
    """Remove it although who started the command, and asked for the pause, is gone, and the daemon answers nobody."""
    sandbox = await start()
    container = sandbox.ref.handle
    (state,) = Path("/sys/fs/cgroup/freezer").glob(f"**/*{container}*/freezer.state")
    inside = set((state.parent / "cgroup.procs").read_text().split())

    def enter(execution: str) -> None:
        with contextlib.suppress(APIError):
            daemon.api.exec_start(execution, detach=True)

    def freeze_who_enters() -> bool:
        made = daemon.api.exec_create(container, ["true"])
        starts.append(threading.Thread(target=enter, args=[made["Id"]]))
        starts[-1].start()
        while starts[-1].is_alive():
            if set((state.parent / "cgroup.procs").read_text().split()) - inside:
                state.write_text("FROZEN")
                break
        starts[-1].join(timeout=1)
        if not starts[-1].is_alive():
            state.write_text("THAWED")
        return starts[-1].is_alive()

    starts: list[threading.Thread] = []
    while not await asyncio.to_thread(freeze_who_enters):
        pass
    calls = [asyncio.ensure_future(asyncio.to_thread(daemon.api.pause, container))]
    await asyncio.wait(calls, timeout=1)
    async with asyncio.timeout(60):
        await provider.remove(sandbox.ref.name)
    assert daemon.containers.list(all=True, filters={"id": container}) == []
    await asyncio.gather(*calls, return_exceptions=True)
