"""Ready images on the local sandbox: from a Docker daemon and from archives, found again, shared, and refused."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.image_archives import description, directory, docker_archive, member, oci_archive, packed
from support.local_sandboxes import LOCAL, mounted_store
from support.musl_image import musl_image

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import ForeignSnapshotError, ImageBuildError, ImagePullError
from benchflow.planes.agent.toolbox.libc import find_libc
from benchflow.planes.sandbox.local.local_images import BARE, PREFIX, require_image
from benchflow.planes.sandbox.local.machine import Machine
from benchflow.store import DirectoryBackend, Store
from benchflow.testing.sandbox_conformance.sandbox_fixtures import STACK_LABEL, make_provider, remove_all

pytestmark = [pytest.mark.asyncio, pytest.mark.local]

PROGRAM = b"#!/bin/sh\necho of-the-image\n"
CONFIG = {"Env": ["GREETING=hello", "EMPTY="], "WorkingDir": "/work", "User": "5:6", "Cmd": ["serve"]}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with mounted_store(tmp_path_factory.mktemp("state")) as state:
        yield state


@pytest.fixture
def stack() -> str:
    return uuid.uuid4().hex


@pytest.fixture
async def provider(state: Path, stack: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SandboxProvider]:
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(state))
    made = make_provider(LOCAL)
    yield made
    await remove_all(made, stack)
    await made.close()


def layers(*more: bytes) -> list[bytes]:
    """Return the layers of an image that no other test has."""
    own = packed([directory("work"), member("work/mark", uuid.uuid4().bytes), member("bin/hello", PROGRAM, mode=0o755)])
    return [own, *more]


async def built(provider: SandboxProvider, image: str, **fields: Any) -> ImageRef:
    return await provider.build(ImageConfig(image=image, **fields))


def unpacked() -> set[str]:
    machine = Machine()
    machine.store.open()
    found = set(machine.store.names("images"))
    machine.close()
    return found


# --- archives --------------------------------------------------------------------------------------------


async def test_both_kinds_of_archives_of_an_image_are_one_image(provider: SandboxProvider, tmp_path: Path) -> None:
    made = layers(packed([member("work/.wh.mark"), member("work/upper", b"x")]))
    told = description(made, **CONFIG)
    saved = docker_archive(tmp_path / "saved.tar", made, told, "mine:1")
    oci = oci_archive(tmp_path / "oci.tar", made, told, "mine")
    indexed = oci_archive(tmp_path / "indexed.tar", made, told, "mine", indexed=True)
    first = await built(provider, f"docker-archive:{saved}")
    assert (first.workdir, first.user, first.built) == ("/work", "5:6", False)
    names = [
        f"docker-archive:{saved}:mine:1",
        f"oci-archive:{oci}",
        f"oci-archive:{oci}:mine",
        f"oci-archive:{indexed}",
    ]
    assert [await built(provider, name) for name in names] == [first] * 4
    files = Machine().store.root / "images" / first.reference.removeprefix(PREFIX)
    assert {path.name for path in (files / "u" / "work").iterdir()} == {"upper"}
    record = json.loads((files / "image.json").read_text())
    assert (record["env"], record["command"]) == ({"GREETING": "hello", "EMPTY": ""}, ["serve"])


async def test_builds_at_the_same_time_unpack_once_and_one_that_is_cancelled_leaves_nothing(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    before = unpacked()
    made = layers(packed([member(f"work/{number}", b"x" * 100) for number in range(20_000)]))
    name = f"docker-archive:{docker_archive(tmp_path / 'saved.tar', made, description(made))}"
    first = asyncio.create_task(built(provider, name))
    drafts = Machine().store.root / ".partial"
    while not list(drafts.glob("*/volume/u/work/mark")):
        assert not first.done()
        await asyncio.sleep(0.01)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert unpacked() == before and list(drafts.glob("*/volume")) == []
    one, *others = await asyncio.gather(*(built(make_provider(LOCAL), name) for _ in range(3)))
    assert others == [one] * 2 and len(unpacked() - before) == 1


async def test_a_layer_counts_only_with_the_digest_that_its_image_has_for_it(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    before = unpacked()
    told = description(layers())
    file = docker_archive(tmp_path / "saved.tar", [packed([member("other", b"x")])], told)
    with pytest.raises(ImagePullError, match="another digest") as caught:
        await built(provider, f"docker-archive:{file}")
    assert (caught.value.key, caught.value.file) == ("docker_image", str(file))
    assert unpacked() == before


async def test_an_archive_that_is_none_or_has_no_such_image_is_refused_by_name(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    made = layers()
    saved = docker_archive(tmp_path / "saved.tar", made, description(made), "mine:1")
    other = description(made) | {"architecture": "pdp11"}
    (tmp_path / "text.tar").write_text("no archive\n")
    (tmp_path / "dir.tar").mkdir()
    os.mkfifo(tmp_path / "pipe.tar")
    ends = {
        f"docker-archive:{saved}:mine:2": "holds 0 images named 'mine:2'",
        f"oci-archive:{saved}": "lacks 'index.json'",
        f"docker-archive:{docker_archive(tmp_path / 'other.tar', made, other)}": "is for linux/pdp11",
        f"docker-archive:{docker_archive(tmp_path / 'list.tar', made, {'rootfs': []})}": "makes no sense",
        f"docker-archive:{docker_archive(tmp_path / 'more.tar', made * 2, description(made))}": "other layers",
        f"oci-archive:{tmp_path}/text.tar": "is no archive of an image",
        f"oci-archive:{tmp_path}/missing.tar": "cannot be read: No such file",
        f"oci-archive:{tmp_path}/dir.tar": "cannot be read: is a directory",
        f"oci-archive:{tmp_path}/pipe.tar": "cannot be read: is a pipe",
        "oci-archive:relative.tar": "is not absolute",
    }
    for name, said in ends.items():
        with pytest.raises(ImagePullError, match=said) as caught:
            await built(provider, name)
        assert caught.value.key == "docker_image" and caught.value.remedy, name


async def test_a_build_has_its_time(provider: SandboxProvider, tmp_path: Path) -> None:
    made = layers(packed([member(f"work/{number}") for number in range(20_000)]))
    file = docker_archive(tmp_path / "saved.tar", made, description(made))
    with pytest.raises(ImageBuildError, match="took longer than"):
        await built(provider, f"docker-archive:{file}", timeout_sec=0.2)


async def test_without_a_daemon_both_ways_are_named(provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(ImagePullError, match="mine:1 cannot be had: no Docker daemon answers") as caught:
        await built(provider, "mine:1")
    assert caught.value.key == "docker_image"
    assert "docker load" in str(caught.value.remedy) and "oci-archive:/path" in str(caught.value.remedy)


@pytest.mark.docker
async def test_a_daemon_that_has_no_such_image_is_named_with_the_other_way(provider: SandboxProvider) -> None:
    with pytest.raises(ImagePullError, match=r"benchflow.invalid/absent:1 cannot be had: .*cannot be pulled") as caught:
        await built(provider, "benchflow.invalid/absent:1")
    assert "oci-archive:/path" in str(caught.value.remedy)


# --- what a Docker daemon has ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def musl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with musl_image(tmp_path_factory.mktemp("musl") / "image") as reference:
        yield reference


async def started(provider: SandboxProvider, stack: str, image: ImageRef, **fields: Any) -> Sandbox:
    name = f"benchflow-test-{uuid.uuid4().hex[:12]}"
    spec = SandboxSpec(name=name, image=image, labels={STACK_LABEL: stack}, **fields)
    return await provider.start(spec, host_id="host", queue="queue")


async def said(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(["sh", "-c", script], cwd="/")
    assert result.return_code == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.docker
async def test_a_sandbox_over_an_image_sees_nothing_of_the_host(
    provider: SandboxProvider, stack: str, musl: str, tmp_path: Path
) -> None:
    image = await built(provider, musl)
    sandbox = await started(provider, stack, image)
    top = {"bin", "dev", "etc", "home", "lib", "logs", "proc", "root", "sys", "tmp", "usr"}
    assert set((await said(sandbox, "ls /")).split()) == top
    assert await said(sandbox, "ls /usr/bin | grep -c python; :") == "0"
    etc = {"group", "hostname", "hosts", "ld-musl-x86_64.d", "ld-musl-x86_64.path", "mtab", "passwd", "resolv.conf"}
    assert set((await said(sandbox, "ls /etc")).split()) <= etc
    assert await said(sandbox, "cat /etc/hostname; echo $PATH; id -u") == "sandbox\n/usr/bin:/bin\n0"
    assert "nameserver" in await said(sandbox, "cat /etc/resolv.conf")
    assert await said(sandbox, "ls /proc/1/root/usr/bin | grep -c python; :") == "0"
    # In one process of this machine, that is what an agent's toolbox goes by.
    assert await find_libc(provider, image, labels={STACK_LABEL: stack}) == "musl"
    bare = ImageRef(reference=BARE)
    assert await find_libc(provider, bare, labels={STACK_LABEL: stack}) == "glibc"


@pytest.mark.docker
async def test_a_snapshot_over_an_image_depends_on_no_host_but_for_its_processor(
    provider: SandboxProvider, stack: str, musl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(DirectoryBackend(tmp_path / "artifacts"))
    image = await built(provider, musl)
    sandbox = await started(provider, stack, image)
    await said(sandbox, "echo changed >/root/file; rm /bin/vi")
    snapshot = await sandbox.snapshot(f"one-{stack}")
    pack = await provider.pack_snapshot(snapshot, store)
    key = image.reference.removeprefix(PREFIX)
    assert require_image(Machine().store.root, key, "another host's").is_whole
    with mounted_store(tmp_path / "state") as state:
        monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(state))
        other = make_provider(LOCAL)
        arrived = await other.unpack_snapshot(pack, f"two-{stack}", store)
        again = await started(other, stack, arrived)
        assert await said(again, "cat /root/file; [ -e /bin/vi ] || echo gone") == "changed\ngone"
        await refuse_other_processors(other, pack, store)
        await remove_all(other, stack)
        await other.close()


async def refuse_other_processors(provider: SandboxProvider, pack: ArtifactRef, store: Store) -> None:
    told = json.loads(await store.read(pack))
    told["snapshot"]["image"]["fingerprint"] = "image/pdp11"
    altered = await store.put_bytes(json.dumps(told).encode())
    with pytest.raises(ForeignSnapshotError, match="another processor"):
        await provider.unpack_snapshot(altered, "three", store)


@pytest.mark.docker
async def test_files_of_a_task_are_added_to_an_image(
    provider: SandboxProvider, stack: str, musl: str, tmp_path: Path
) -> None:
    files = tmp_path / "environment"
    files.mkdir()
    (files / "data").write_text("of-the-task\n")
    config = ImageConfig(image=musl, context=str(files), digest="0" * 32, files_target="/work")
    image = await provider.build(config)
    assert image == await provider.build(config)
    sandbox = await started(provider, stack, image, workdir="/work")
    assert await said(sandbox, "cat /work/data; ls /usr/bin | grep -c python; :") == "of-the-task\n0"
    assert "nameserver" in await said(sandbox, "cat /etc/resolv.conf")
    elsewhere = await provider.build(config.model_copy(update={"files_target": "/other"}))
    assert elsewhere.reference != image.reference


@pytest.mark.docker
async def test_what_docker_saves_is_the_image_that_its_daemon_has(
    provider: SandboxProvider, musl: str, tmp_path: Path
) -> None:
    saving = await asyncio.create_subprocess_exec("docker", "save", "-o", tmp_path / "saved.tar", musl)
    assert await saving.wait() == 0
    assert await built(provider, f"docker-archive:{tmp_path}/saved.tar:{musl}") == await built(provider, musl)
