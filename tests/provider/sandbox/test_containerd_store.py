"""What containerd's image store holds of snapshots and forks, and what is left in it: nothing.

That it branches as other stores do, test_conformance_containerd_store.py and test_docker_snapshots.py show.
"""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import docker
import pytest
from support.killed_capture import take_snapshot
from support.second_daemon import SecondDaemon

from benchflow.planes.sandbox.docker import DockerDriver, captures, oci
from benchflow.planes.sandbox.docker.descriptions import make_description
from benchflow.planes.sandbox.docker.docker_daemon import RecordingClient
from benchflow.planes.sandbox.docker.layers import stream_member
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.driven.driven_sandbox import DrivenSandbox
from benchflow.testing.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.long]

Start = Callable[..., Any]


@pytest.fixture(autouse=True)
def daemon(containerd_store: SecondDaemon, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The daemon, which is this test's only one."""
    monkeypatch.setenv("DOCKER_HOST", containerd_store.address)
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture
def stored(containerd_store: SecondDaemon, daemon: Any) -> Callable[[], set[str]]:
    """All that the store has: names of images, blobs, what is being written, and layers unpacked."""
    root = containerd_store.data / "containerd/daemon"
    places = ("content.v1.content/blobs/sha256", "content.v1.content/ingest", "snapshotter.v1.overlayfs/snapshots")

    def look() -> set[str]:
        names = {name for row in daemon.api.images(all=True) for name in row["RepoTags"] or row["RepoDigests"]}
        return names | {str(path) for place in places for path in root.glob(f"io.containerd.{place}/*")}

    return look


def a_name() -> str:
    return f"benchflow-test-{uuid.uuid4().hex[:12]}"


async def test_of_snapshots_forks_and_restores_nothing_stays(
    start: Start, provider: DrivenProvider, stored: Callable[[], set[str]]
) -> None:
    before = stored()
    parent: DrivenSandbox = await start(env={"TASK": "t"})
    await parent.write_file("/kept", "x" * 100_000)
    prefix = a_name()
    image = await parent.snapshot(f"{prefix}-1")
    await parent.restore(image)
    above = await parent.snapshot(f"{prefix}-2")
    children = await parent.fork([a_name(), a_name()])
    assert len(stored() - before) > 5
    await provider.remove_image(above)
    await provider.remove_snapshots(prefix)
    assert await (await provider.attach(children[0])).read_bytes("/kept") == b"x" * 100_000
    for ref in (*children, parent.ref):
        await provider.remove(ref.name)
    # At once: the daemon has the store let go of what an image held before it answers.
    assert stored() == before


@pytest.mark.parametrize(
    "moment", ["commit", "after commit", "unpause", "load_image", "after load_image", "remove_image"]
)
async def test_a_process_that_is_killed_at_any_moment_leaves_a_whole_snapshot_or_none(
    start: Start, provider: DrivenProvider, daemon: Any, stack: str, stored: Callable[[], set[str]], moment: str
) -> None:
    before = stored()
    sandbox: DrivenSandbox = await start(env={"TASK": "t"})
    await sandbox.write_file("/file", "first")
    name = a_name()
    done = await asyncio.to_thread(take_snapshot, sandbox.ref, name, moment)
    assert done.returncode == -9, done.stderr
    fresh = DrivenProvider(DockerDriver())
    assert [owned.name for owned in await fresh.owned(stack)] == [sandbox.ref.name]
    assert not daemon.api.inspect_container(sandbox.ref.handle)["State"]["Paused"]
    is_whole = moment in ("after load_image", "remove_image")
    left = [tag for row in daemon.api.images(all=True) for tag in row["RepoTags"] if tag.startswith("benchflow/")]
    assert [tag.partition(":")[0] for tag in left] == ([captures.SNAPSHOT] if is_whole else [])
    await sandbox.write_file("/file", "later")
    image = await (await fresh.attach(sandbox.ref)).snapshot(name)
    await fresh.close()
    copy = await start(image=image)
    assert await copy.read_bytes("/file") == (b"first" if is_whole else b"later")
    for each in (copy, sandbox):
        await provider.remove(each.ref.name)
    await provider.remove_image(image)
    await until(lambda: stored() == before)


@pytest.fixture
def named(daemon: Any) -> Iterator[Callable[[str], str]]:
    """Names images, which are removed afterwards."""
    names: list[str] = []

    def name(tag: str) -> str:
        names.append(f"benchflow-test-manifest:{tag}")
        return names[-1]

    yield name
    for each in reversed(names):
        daemon.images.remove(each, force=True)


def test_the_stores_file_of_a_manifest_says_what_the_daemons_export_says(
    containerd_store: SecondDaemon, daemon: Any, base_image: str, named: Callable[[str], str]
) -> None:
    container = daemon.containers.run(base_image, ["touch", "/file"], detach=True)
    container.wait()
    container.commit(*named("changed").split(":"))
    container.remove()
    for name, count in ((base_image, 1), ("benchflow-test-manifest:changed", 2)):
        layers, exported = found(containerd_store, daemon.api.inspect_image(name))
        assert layers == exported and len(layers) == count


def test_an_image_of_which_only_this_machines_kind_is_there_has_layers_too(
    containerd_store: SecondDaemon, daemon: Any, base_image: str, named: Callable[[str], str]
) -> None:
    """As `docker pull` leaves one that a registry has for several kinds."""
    base = daemon.api.inspect_image(base_image)
    layers, _ = found(containerd_store, base)
    config = json.dumps(make_description(base, {}, base["RootFS"]["Layers"], "")).encode()
    blobs = [config, manifest(config, layers)]
    kinds = [(base["Architecture"], blobs[1]), ("s390x", manifest(b"{}", []))]
    listed = [
        oci._describe_blob(oci._MANIFEST, it) | {"platform": {"os": "linux", "architecture": kind}}
        for kind, it in kinds
    ]
    blobs.append(index(listed))
    annotations = {"io.containerd.image.name": f"docker.io/library/{named('kinds')}"}
    top = index([oci._describe_blob(oci._INDEX, blobs[2]) | {"annotations": annotations}])
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": top}
    files |= {oci._format_path(oci._compute_digest(blob)): blob for blob in blobs}
    packed = b"".join(piece for name, it in files.items() for piece in stream_member(name, len(it), io.BytesIO(it)))
    daemon.images.load(packed + bytes(2 * tarfile.BLOCKSIZE))
    assert found(containerd_store, daemon.api.inspect_image("benchflow-test-manifest:kinds")) == (layers, layers)


def found(store: SecondDaemon, image: dict[str, Any]) -> tuple[Any, Any]:
    """Return how an image's layers are named in the store's files, and in the daemon's export."""
    archives = image["RootFS"]["Layers"]
    client = RecordingClient(base_url=store.address, timeout=120)
    exported = oci.find_layers(oci.read_exported_blobs(client, image["Id"]), archives)
    client.close()
    return oci.find_layers(oci.read_stored_blobs(store.data, image["Id"]), archives), exported


def manifest(config: bytes, layers: Any) -> bytes:
    told = {
        "schemaVersion": 2,
        "mediaType": oci._MANIFEST,
        "config": oci._describe_blob(oci._CONFIG, config),
        "layers": layers,
    }
    return json.dumps(told).encode()


def index(manifests: list[dict[str, Any]]) -> bytes:
    return json.dumps({"schemaVersion": 2, "mediaType": oci._INDEX, "manifests": manifests}).encode()
