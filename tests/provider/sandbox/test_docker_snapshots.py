"""What the daemon holds of snapshots and forks: what is in an image, what is left of it, and what a crash leaves."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Mount, SandboxSpec
from benchflow.errors import SandboxLostError, UnsupportedFeatureError
from benchflow.planes.sandbox.docker import DockerDriver, captures
from benchflow.planes.sandbox.docker.docker_daemon import RecordingClient
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.testing.sandbox_conformance.network_tests import fetched
from benchflow.testing.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("image_store")]

CONFIG = {
    "Env": ["PATH=/usr/bin:/bin", "WORLD=one two"],
    "Cmd": ["/bin/sh", "-c", 'exec "$@"', "cmd"],
    "Entrypoint": ["/bin/sh", "-c", 'exec "$@"', "entry"],
    "User": "nobody",
    "WorkingDir": "/tmp",
    "Labels": {"made.by": "a test"},
    "ExposedPorts": {"8000/tcp": {}},
}


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


@pytest.fixture
def left(daemon, stack):
    """What there is of this test's stack: containers, images without a name of their own, volumes."""

    def look():
        short = captures.hash_stack(stack)
        tags = [tag for image in daemon.api.images() for tag in image["RepoTags"] or ()]
        label = {"label": f"benchflow.stack={stack}"}
        return {
            "containers": sorted(row["Names"][0] for row in daemon.api.containers(all=True, filters=label)),
            "images": [tag for tag in tags if f":{short}-" in tag],
            "volumes": [volume["Name"] for volume in daemon.api.volumes(filters=label)["Volumes"] or ()],
        }

    return look


NOTHING = {"containers": [], "images": [], "volumes": []}


def a_name():
    return f"benchflow-test-{uuid.uuid4().hex[:12]}"


async def test_an_image_of_a_sandbox_has_its_files_and_nothing_else_of_it(
    start, provider, daemon, image_from, stack, tmp_path
):
    canary = uuid.uuid4().hex
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "tool").write_text(canary)
    own = image_from(**CONFIG)
    sandbox = await start(
        image=own,
        env={"TASK": canary, "WORLD": canary},
        labels={"benchflow.stack": stack, "made.for": canary},
        mounts=(
            Mount(source=str(tmp_path / "tools"), target="/opt/tools"),
            Mount(source=str(tmp_path / "tools"), target="/run/benchflow/room", read_only=False),
        ),
    )
    await sandbox.exec(["sh", "-c", 'echo "$KEY"'], env={"KEY": canary})
    await sandbox.exec_once("key", ["sh", "-c", 'echo "$KEY"'], env={"KEY": canary})
    await sandbox.exec(["sh", "-c", "echo $TASK >/dev/shm/file; echo $TASK >/run/benchflow/file; echo kept >/file"])
    image = await sandbox.snapshot(a_name())
    try:
        (child,) = await sandbox.fork([a_name()])
        forked = daemon.api.inspect_container(child.handle)["Image"]
        for reference in (image.reference, forked):
            found = daemon.api.inspect_image(reference)
            assert found["Config"] == daemon.api.inspect_image(own.reference)["Config"]
            assert canary not in str((found, daemon.api.history(reference)))
            assert not any(canary.encode() in piece for piece in daemon.api.get_image(reference, chunk_size=1 << 30))
        assert image.workdir == "/tmp"
        copy = await start(image=image)
        # The pattern comes in halves, since an argument would be found, too.
        find = 'grep -rlF --devices=skip --exclude-dir=proc --exclude-dir=sys "$1$2" /'
        assert (await copy.control(find, canary[:16], canary[16:])).stdout == ""
        assert await copy.read_bytes("/file") == b"kept\n"
        assert (await copy.exec(["sh", "-c", 'echo "$WORLD$TASK"; ls /opt/tools'])).stdout == "one two\n"
    finally:
        for owned in await provider.owned(stack):
            await provider.remove(owned.name)
        await provider.remove_image(image)


async def test_a_snapshot_of_an_entrypoints_sandbox_has_none_of_its_secrets(
    start, provider, daemon, image_from, stack, discarded
):
    secret = uuid.uuid4().hex
    own = image_from(Entrypoint=["/bin/sh", "-c", 'echo "${#TOLD}" >/begun; exec tail -f /dev/null'])
    labels = {"benchflow.stack": stack}
    spec = SandboxSpec(name=a_name(), image=own, labels=labels, network_mode="no-network", entrypoint="first")
    sandbox = await provider.start(spec, host_id="host", queue="queue", secrets={"TOLD": secret})
    await until(lambda: sandbox.read_outside("/begun"))
    image = discarded(await sandbox.snapshot(a_name()))
    found = daemon.api.inspect_image(image.reference)
    assert found["Config"] == daemon.api.inspect_image(own.reference)["Config"]
    assert not any(secret.encode() in piece for piece in daemon.api.get_image(image.reference, chunk_size=1 << 30))
    assert await sandbox.read_bytes("/begun") == b"32\n"
    await provider.remove(sandbox.ref.name)


@pytest.mark.long
async def test_layers_do_not_pile_up(start, provider, daemon, image_from, monkeypatch):
    monkeypatch.setattr(captures, "MAX_LAYERS", 2)
    sandbox = await start(image=image_from(**CONFIG), env={"TASK": "t 1"})
    script = "mkdir /d && echo 0 >/d/0 && ln /d/0 /d/link && chmod 640 /d/0 && chown nobody /d/0 && ln -s 0 /d/soft"
    await sandbox.exec(["sh", "-c", f"{script} && rm /etc/motd && echo x >/etc/hosts.allow && mkfifo /d/pipe"])
    for generation in (1, 2):
        (ref,) = await sandbox.fork([a_name()])
        await provider.remove(sandbox.ref.name)
        sandbox = await provider.attach(ref)
        await sandbox.exec(["sh", "-c", f"rm /d/{generation - 1}; echo {generation} >/d/{generation}"])
        image = daemon.api.inspect_image(daemon.api.inspect_container(ref.handle)["Image"])
        assert len(image["RootFS"]["Layers"]) == {1: 2, 2: 1}[generation]
        assert image["Config"]["Labels"] == CONFIG["Labels"] and image["Config"]["User"] == "nobody"
    said = await sandbox.exec(["sh", "-c", "ls /d; stat -c '%U %a %F' /d/link /d/pipe; cat /d/link; readlink /d/soft"])
    assert said.stdout.split("\n") == [
        *("2", "link", "pipe", "soft", "nobody 640 regular file", "root 644 fifo", "0", "0", ""),
    ]
    assert (await sandbox.exec(["test", "-e", "/etc/motd"])).return_code == 1
    assert (await sandbox.exec(["sh", "-c", "echo $TASK; hostname"])).stdout == "t 1\nsandbox\n"


@pytest.mark.soak
async def test_a_chain_of_a_hundred_and_thirty_is_as_good_as_one(sandbox, provider):
    for generation in range(1, 131):
        (ref,) = await sandbox.fork([a_name()])
        await provider.remove(sandbox.ref.name)
        sandbox = await provider.attach(ref)
        assert (await sandbox.exec(["sh", "-c", f"echo {generation} >>/lines"])).return_code == 0
    assert (await sandbox.read_bytes("/lines")).split() == [b"%d" % n for n in range(1, 131)]


async def test_what_was_made_for_a_fork_goes_with_the_last_child(provider, start, left):
    parent = await start()
    one, two = await parent.fork([a_name(), a_name()])
    assert len(left()["images"]) == 1
    await provider.remove(parent.ref.name)
    await provider.remove(one.name)
    assert len(left()["images"]) == 1
    await (await provider.attach(two)).exec(["true"])
    await provider.remove(two.name)
    assert left() == NOTHING


@pytest.mark.long
async def test_a_snapshot_that_is_in_use_may_be_removed(provider, start, left):
    parent = await start()
    await parent.write_file("/kept", "x")
    image = await parent.snapshot(a_name())
    await parent.restore(image)
    await provider.remove_image(image)
    assert await parent.read_bytes("/kept") == b"x"
    (ref,) = await parent.fork([a_name()])
    assert await (await provider.attach(ref)).read_bytes("/kept") == b"x"
    for name in (ref.name, parent.ref.name):
        await provider.remove(name)
    assert left() == NOTHING


async def test_a_child_is_made_as_its_parent_was_but_for_what_can_be_written(
    start, provider, daemon, image_from, tmp_path
):
    for name in ("tools", "shared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    parent = await start(
        image=image_from(Entrypoint=["/bin/sh", "-c", 'echo begun >>/begun; exec "$@"', "entry"]),
        env={"TASK": "t 1"},
        cpus=0.5,
        memory_mb=256,
        mounts=(
            Mount(source=str(tmp_path / "tools"), target="/opt/tools"),
            Mount(source=str(tmp_path / "shared"), target="/opt/shared", read_only=False),
        ),
    )
    await until(lambda: has_begun(parent, 1))
    (ref,) = await parent.fork([a_name()])
    first, second = (daemon.api.inspect_container(sandbox.handle) for sandbox in (parent.ref, ref))
    assert second["HostConfig"]["NanoCpus"] == 5 * 10**8 and second["HostConfig"]["Memory"] == 256 << 20
    assert _without(first["HostConfig"], "Mounts") == _without(second["HostConfig"], "Mounts")
    assert _without(first["Config"], "Image") == _without(second["Config"], "Image")
    assert {mount["Source"] for mount in first["Mounts"] if mount["RW"]}.isdisjoint(
        mount["Source"] for mount in second["Mounts"]
    )
    child = await provider.attach(ref)
    await until(lambda: has_begun(child, 2))
    assert (await child.exec(["sh", "-c", "cat /opt/tools/file; ls -A /opt/shared; cat /begun"])).stdout == (
        "toolsbegun\nbegun\n"
    )
    assert (await child.exec(["touch", "/opt/tools/new"])).return_code != 0


async def has_begun(sandbox, times):
    """Whether the entrypoint has said so, which no start waits for."""
    return (await sandbox.exec(["cat", "/begun"])).stdout == "begun\n" * times


def _without(described, key):
    return {name: value for name, value in described.items() if name != key}


@pytest.mark.long
# This host reaches no container of a daemon in a network namespace of its own.
@pytest.mark.parametrize("image_store", ["storage driver"], indirect=True)
async def test_each_child_is_reached_at_a_port_of_its_own(provider, start):
    serve = 'import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000, bind="0.0.0.0")'
    parent = await start(network_mode="public", ports=(8000,))
    children = [await provider.attach(ref) for ref in await parent.fork([a_name(), a_name()])]
    places = set()
    for sandbox in (parent, *children):
        await sandbox.exec(
            ["sh", "-c", f"mkdir /w; cd /w; echo {sandbox.ref.name} >index.html; python3 -c '{serve}' 2>/dev/null &"]
        )
        places.add(place := await sandbox.expose_port(8000))
        assert await fetched(place) == f"{sandbox.ref.name}\n".encode()
    assert len(places) == 3


@pytest.mark.long
async def test_commands_may_begin_while_a_fork_is_made(provider, start):
    parent = await start()
    forking = asyncio.create_task(parent.fork([a_name()]))
    began = 0
    while not forking.done():
        assert (await parent.exec(["echo", "x"])).stdout == "x\n"
        began += 1
    assert began
    assert (await (await provider.attach((await forking)[0])).exec(["true"])).return_code == 0


@pytest.mark.long
async def test_files_in_a_volume_of_the_image_are_part_of_what_is_kept(provider, start, image_from):
    parent = await start(image=image_from(Volumes={"/data": {}}))
    await parent.write_file("/data/kept", "x")
    (ref,) = await parent.fork([a_name()])
    assert await (await provider.attach(ref)).read_bytes("/data/kept") == b"x"


async def test_a_volume_that_cannot_be_kept_is_refused(start, daemon, base_image, stack):
    name, labels = a_name(), {"benchflow.stack": stack}
    daemon.containers.create(base_image, ["sleep", "1000"], name=name, init=True, labels=labels, volumes=["/data"])
    sandbox = await start(name=name)
    with pytest.raises(UnsupportedFeatureError, match="/data would not be in it"):
        await sandbox.snapshot(a_name())


class Died(BaseException):
    """The end of the process that was at it."""


@pytest.mark.parametrize(
    "moment",
    [
        *(pytest.param(name, marks=pytest.mark.long) for name in ("create_container_from_config", "kill")),
        "remove_container",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("rename", "start")),
    ],
)
async def test_a_restore_that_is_cut_off_is_finished_by_whoever_looks_next(
    start, stack, left, provider, monkeypatch, moment, discarded
):
    sandbox = await start()
    await sandbox.exec_once("step", ["echo", "once"])
    await sandbox.write_file("/file", "kept")
    image = discarded(await sandbox.snapshot(a_name()))
    await sandbox.write_file("/file", "later")
    real = getattr(RecordingClient, moment)

    def die(self, *args, **options):
        if moment == "create_container_from_config":
            real(self, *args, **options)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(RecordingClient, moment, die)
        with pytest.raises(Died):
            await sandbox.restore(image)
    fresh = DrivenProvider(DockerDriver())
    again = await fresh.attach(sandbox.ref)
    assert await again.read_bytes("/file") == b"kept"
    assert await again.was_started("step")
    assert (await again.exec_once("step", ["true"])).stdout == "once\n"
    assert [owned.name for owned in await fresh.owned(stack)] == [sandbox.ref.name]
    await fresh.remove(sandbox.ref.name)
    await fresh.close()
    assert left()["containers"] == [] and left()["volumes"] == []


@pytest.mark.long
async def test_one_that_was_removed_half_restored_is_gone(start, stack, left, monkeypatch, discarded):
    sandbox = await start()
    image = discarded(await sandbox.snapshot(a_name()))

    def die(self, *args, **options):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(RecordingClient, "rename", die)
        with pytest.raises(Died):
            await sandbox.restore(image)
    fresh = DrivenProvider(DockerDriver())
    (owned,) = await fresh.owned(stack)
    assert owned.name == sandbox.ref.name
    await fresh.remove(owned.name)
    with pytest.raises(SandboxLostError):
        await fresh.attach(sandbox.ref)
    await fresh.close()
    assert left()["containers"] == [] and left()["volumes"] == []


@pytest.fixture
def discarded(daemon):
    images = []

    def remember(image):
        images.append(image.reference)
        return image

    yield remember
    for reference in images:
        daemon.images.remove(reference, force=True)
