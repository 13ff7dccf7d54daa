"""Containers in states that only Docker knows, and what is asked of the daemon."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from benchflow.contracts.sandbox import ImageRef
from benchflow.errors import SandboxLostError, SandboxStartError
from benchflow.planes.sandbox.docker import launch
from benchflow.testing.sandbox_conformance.fixtures import PATIENCE
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


async def test_a_sandbox_that_stopped_is_made_anew(start, daemon, name):
    first = await start(name=name)
    daemon.containers.get(first.ref.handle).kill()
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


async def test_attaching_to_one_that_stopped_says_that_it_is_lost(provider, sandbox, daemon):
    daemon.containers.get(sandbox.ref.handle).stop()
    with pytest.raises(SandboxLostError, match="no longer runs"):
        await provider.attach(sandbox.ref)


async def test_removing_takes_volumes_along(provider, start, daemon, image_from, stack):
    mine = {"label": f"benchflow.stack={stack}"}
    sandbox = await start(image=image_from(Volumes={"/data": {}}))
    # The engine's own, and none for what the image declares: that would be in no snapshot.
    mounts = daemon.api.inspect_container(sandbox.ref.handle)["Mounts"]
    assert [mount["Name"] for mount in mounts] == [volume.id for volume in daemon.volumes.list(filters=mine)]
    assert [mount["Destination"] for mount in mounts] == ["/run/benchflow"]
    await provider.remove(sandbox.ref.name)
    assert daemon.volumes.list(filters=mine) == []


async def test_stopping_by_hand_takes_no_grace_period(sandbox, daemon):
    container = daemon.containers.get(sandbox.ref.handle)
    await asyncio.to_thread(container.stop, timeout=60)
    container.reload()
    # It has ended when it was asked to, and was not killed when the period was over.
    assert container.attrs["State"]["ExitCode"] == 0


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


async def test_a_container_has_the_environment_and_the_labels(start, daemon, stack):
    sandbox = await start(env={"TASK": "t 1"}, labels={"benchflow.stack": stack, "benchflow.workflow": "w/1"})
    container = daemon.containers.get(sandbox.ref.handle)
    assert "TASK=t 1" in container.attrs["Config"]["Env"]
    assert container.labels["benchflow.workflow"] == "w/1"


async def test_the_images_user_does_not_bind_the_engine(start, image_from):
    sandbox = await start(image=image_from(User="nobody"))
    assert (await sandbox.exec(["id", "-u"])).stdout == "0\n"


async def test_an_entrypoint_runs_before_the_main_process(start, image_from):
    image = image_from(Entrypoint=["/bin/sh", "-c", 'echo began >/began; exec "$@"', "entry"])
    sandbox = await start(image=image)
    # What the engine begins with in the sandbox does not wait for it.
    look = "until grep -qx began /began 2>/dev/null; do sleep 0.05; done"
    assert (await sandbox.exec(["sh", "-c", look], timeout=PATIENCE)).return_code == 0


async def test_an_entrypoint_that_ends_is_told_with_its_last_words(start, image_from, provider, stack, monkeypatch):
    # A busy daemon may take longer to note that a container has ended.
    monkeypatch.setattr(launch, "_LOOKS", 1200)
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


class Late:
    """An engine whose daemon notes only after many looks that a container has ended."""

    def __init__(self, looks):
        self.looks, self.left = 0, looks

    async def call(self, ask):
        return ask(self)

    def inspect_container(self, _):
        self.looks += 1
        running = self.looks <= self.left
        return {"State": {"Running": running, "Status": "", "ExitCode": 3, "Error": "", "OOMKilled": False}}

    def logs(self, *_, **__):
        return b"last words\n"


async def test_an_end_that_the_daemon_notes_late_is_told_with_its_last_words(monkeypatch):
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))
    error = await launch.start_error(Late(150), "container", SandboxLostError("cannot exec in a stopped container"))
    assert "exit status 3" in error.message and error.log_tail == "last words"


async def test_where_there_is_no_shell_no_end_is_waited_for():
    engine = Late(10**9)
    error = await launch.start_error(engine, "container", SandboxLostError('exec: "/bin/sh": no such file'))
    assert error.remedy == launch.NO_SHELL and engine.looks == 1


async def test_limits_are_the_containers_own(start, daemon):
    sandbox = await start(cpus=0.5, memory_mb=96)
    host = daemon.containers.get(sandbox.ref.handle).attrs["HostConfig"]
    assert host["NanoCpus"] == 500_000_000
    assert host["Memory"] == host["MemorySwap"] == 96 * 1024 * 1024
    assert host["PidsLimit"] == 4096


async def test_limits_that_cannot_be_kept_are_warnings(start):
    sandbox = await start(storage_mb=100, cpus=10_000)
    assert any("storage_mb" in warning for warning in sandbox.ref.warnings)
    assert any("cpus" in warning for warning in sandbox.ref.warnings)


async def test_nothing_gains_privileges_and_the_daemons_socket_is_not_inside(start, daemon):
    sandbox = await start()
    host = daemon.containers.get(sandbox.ref.handle).attrs["HostConfig"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert host["CapDrop"] == ["ALL"] and not host["Privileged"] and not host["Binds"]
    status = (await sandbox.read_file("/proc/self/status")).decode()
    assert "NoNewPrivs:\t1" in status
    assert (await sandbox.exec(["test", "-e", "/var/run/docker.sock"])).return_code == 1
