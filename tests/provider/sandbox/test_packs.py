"""What packing is beside what every provider promises: by which way layers come, and on which hosts they are of use."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import tarfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import ForeignSnapshotError, SandboxError
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.docker.captures import SNAPSHOT
from benchflow.planes.sandbox.docker.layers import Layers, parse_missing_layer
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.local.local_driver import LocalDriver
from benchflow.planes.sandbox.local.local_images import BARE
from benchflow.store import DirectoryBackend, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(DirectoryBackend(tmp_path / "artifacts"))


async def altered(pack: ArtifactRef, store: Store, **fields: Any) -> ArtifactRef:
    """The description of a pack with other fields; those of its snapshot where it has one."""
    told = json.loads(await store.read(pack))
    (told["snapshot"]["image"] if "snapshot" in told else told).update(fields)
    return await store.put_bytes(json.dumps(told).encode())


async def layers_of(pack: ArtifactRef, store: Store) -> list[str]:
    return [layer["sha256"] for layer in json.loads(await store.read(pack))["layers"]]


@contextlib.asynccontextmanager
async def far_away(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DrivenProvider]:
    """The same daemon behind a port, as one whose files nobody here sees."""
    open_ends: list[asyncio.Task[None]] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        daemon = await asyncio.open_unix_connection("/var/run/docker.sock")
        open_ends.extend(asyncio.create_task(pipe(*ends)) for ends in ((reader, daemon[1]), (daemon[0], writer)))

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    with monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        provider = DrivenProvider(DockerDriver())
        yield provider
        await provider.close()
    server.close()
    for task in open_ends:
        task.cancel()
    await asyncio.gather(*open_ends, return_exceptions=True)


@pytest.fixture(scope="module")
def layered() -> Iterator[ImageRef]:
    """A snapshot of three layers, of which one is empty."""
    client = docker.from_env()
    context = io.BytesIO()
    steps = b"FROM scratch\nCOPY one /\nWORKDIR /there\nCOPY two /there/\n"
    with tarfile.open(fileobj=context, mode="w") as archive:
        for name, content in (("Dockerfile", steps), ("one", os.urandom(300_000)), ("two", b"")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    tag = f"{SNAPSHOT}:test-{uuid.uuid4().hex}"
    client.images.build(fileobj=io.BytesIO(context.getvalue()), custom_context=True, tag=tag, rm=True)
    yield ImageRef(reference=tag)
    client.images.remove(tag)
    client.close()


@pytest.mark.docker
async def test_a_daemon_whose_files_are_elsewhere_sends_the_same_layers(
    provider: DrivenProvider, layered: ImageRef, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SandboxError, match="no snapshot"):
        await provider.pack_snapshot(ImageRef(reference="debian:bookworm-slim"), store)
    one = await layers_of(await provider.pack_snapshot(layered, store), store)
    assert len(one) == 3
    async with far_away(monkeypatch) as far:
        other = Store(DirectoryBackend(tmp_path / "others"))
        assert await layers_of(await far.pack_snapshot(layered, other), other) == one
        for layer in one:
            ref = await other.find(layer)
            assert ref is not None and len(await other.read(ref)) == ref.size


@pytest.mark.docker
async def test_layers_are_not_taken_from_files_that_are_not_theirs(tmp_path: Path) -> None:
    layer = "sha256:" + "0" * 64
    place = tmp_path / "image" / "overlay2" / "layerdb" / "sha256" / ("0" * 64)
    place.mkdir(parents=True)
    reader = Layers({"DockerRootDir": str(tmp_path), "Driver": "overlay2"})
    target = tmp_path / "layer.tar"
    assert not reader.copy([layer], 0, target)
    (place / "cache-id").write_text("x")
    (place / "tar-split.json.gz").write_bytes(b"no archive")
    assert not reader.copy([layer], 0, target)
    assert not target.exists()


def test_the_daemons_word_for_a_missing_layer_is_understood() -> None:
    said = "open /var/lib/docker/tmp/docker-import-123/4/layer.tar: no such file or directory"
    assert parse_missing_layer(said) == 4
    assert parse_missing_layer("no space left on device") is None


@pytest.mark.docker
async def test_an_image_for_another_kind_of_machine_is_refused(
    provider: DrivenProvider, layered: ImageRef, store: Store
) -> None:
    pack = await provider.pack_snapshot(layered, store)
    for fields in ({"architecture": "s390x"}, {"os": "windows"}, {"kind": "local"}):
        with pytest.raises(ForeignSnapshotError) as raised:
            await provider.unpack_snapshot(await altered(pack, store, **fields), "benchflow-test-foreign", store)
        assert raised.value.remedy


@contextlib.asynccontextmanager
async def machine(directory: Path, stack: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DrivenProvider]:
    """Local sandboxes with a state directory of their own, as another machine has them."""
    with monkeypatch.context() as patch:
        patch.setenv("BENCHFLOW_STATE_DIR", str(directory))
        provider = DrivenProvider(LocalDriver())
        yield provider
        for owned in await provider.owned(stack):
            await provider.remove(owned.name)
        await provider.sweep(stack)
        await provider.close()


def over(image: ImageRef, stack: str) -> SandboxSpec:
    name = f"benchflow-test-{uuid.uuid4().hex[:12]}"
    return SandboxSpec(name=name, image=image, labels={"benchflow.stack": stack}, network_mode="no-network")


@pytest.mark.local
async def test_what_lies_below_a_local_snapshot_goes_with_it_once(
    store: Store, tmp_path: Path, stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = tmp_path / "environment"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM debian:bookworm-slim\nENV A=b\nRUN seq 100000 >/below\n")
    async with machine(tmp_path / "one", stack, monkeypatch) as one:
        built = await one.build(ImageConfig(context=str(context)))
        sandbox = await one.start(over(built, stack), host_id="one", queue="one")
        packs = []
        for word in ("first", "second"):
            await sandbox.write_file("/word", word)
            packs.append(await one.pack_snapshot(await sandbox.snapshot(f"benchflow-test-{word}"), store))
        first, second = [json.loads(await store.read(pack)) for pack in packs]
        assert first["base"] == second["base"] and first["base"]["files"]["size"] > 500_000
        assert second["snapshot"]["files"]["size"] < 100_000
    async with machine(tmp_path / "two", stack, monkeypatch) as two:
        image = await two.unpack_snapshot(packs[1], "benchflow-test-there", store)
        copy = await two.start(over(image, stack), host_id="two", queue="two")
        assert await copy.read_bytes("/word") == b"second"
        assert (await copy.exec(["sh", "-c", "tail -n 1 /below; echo $A"])).stdout == "100000\nb\n"
        await two.remove_snapshots("benchflow-test-")
    assert not [path for name in ("one", "two") for path in (tmp_path / name / "scratch").glob("*")]


@pytest.mark.local
async def test_a_snapshot_over_other_programs_is_refused(
    store: Store, tmp_path: Path, stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine(tmp_path / "one", stack, monkeypatch) as one:
        bare = ImageRef(reference=BARE)
        with pytest.raises(SandboxError, match="host itself"):
            await one.pack_snapshot(bare, store)
        sandbox = await one.start(over(bare, stack), host_id="one", queue="one")
        pack = await one.pack_snapshot(await sandbox.snapshot("benchflow-test-mine"), store)
        strange = await altered(pack, store, fingerprint="0" * 64)
        for each in (strange, await store.put_bytes(b'{"kind": "docker"}')):
            with pytest.raises(ForeignSnapshotError) as raised:
                await one.unpack_snapshot(each, "benchflow-test-other", store)
            assert raised.value.remedy
