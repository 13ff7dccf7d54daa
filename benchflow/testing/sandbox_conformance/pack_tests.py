"""Portable snapshots: packed into the artifact store and unpacked again, completely or not at all.

The other host is this one, after it has removed the snapshot.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import CorruptArtifactError, SandboxStartError, StoreError, UnsupportedFeatureError
from benchflow.store import DirectoryBackend, Store
from benchflow.testing.sandbox_conformance.sandbox_fixtures import Keep, SandboxFixtures, Start, nap

CHANGES = """
import os, socket
os.makedirs('/w/deep/er')
def put(path, content=b'x', mode=0o644, owner=(0, 0)):
    with open(path, 'wb') as file:
        file.write(content)
    os.chown(path, *owner)
    os.chmod(path, mode)
put('/w/plain'); put('/w/empty', b''); put('/w/owned', owner=(1234, 4321)); put('/w/setuid', mode=0o4755)
put('/w/a \\n"name"\\u00e4'); put(b'/w/\\xff'); put('/w/big', os.urandom(3000001), 0o600); put('/w/secret', mode=0)
put('/w/tagged'); os.setxattr('/w/tagged', 'user.tag', bytes(range(256)))
os.link('/w/plain', '/w/deep/second')
os.symlink('plain', '/w/link'); os.symlink('/nowhere', '/w/dangling'); os.lchown('/w/link', 7, 8)
os.mkfifo('/w/pipe'); os.chmod('/w/deep/er', 0o1777); os.utime('/w/empty', (1000000000, 1000000000))
with open('/w/holes', 'wb') as file:
    file.truncate(1 << 22)
    file.seek(1 << 21)
    file.write(b'in the middle')
os.remove('/etc/issue')
import shutil
shutil.rmtree('/etc/skel'); os.mkdir('/etc/skel'); put('/etc/skel/new')
"""
"""Changes files of every kind that a file system can hold: new, changed and removed ones."""

LOOK = """
import hashlib, json, os, stat
found = {}
for top in ('/w', '/etc/skel', '/etc/issue'):
    paths = [top]
    for directory, names, files in os.walk(top):
        paths += [directory + '/' + name for name in names + files]
    for path in paths:
        if not os.path.lexists(path):
            continue
        own = os.lstat(path)
        what = [stat.filemode(own.st_mode), own.st_uid, own.st_gid, int(own.st_mtime)]
        if stat.S_ISREG(own.st_mode):
            what += [own.st_size, own.st_nlink, hashlib.sha256(open(path, 'rb').read()).hexdigest()]
            what += [[name, os.getxattr(path, name).hex()] for name in os.listxattr(path)]
        if stat.S_ISLNK(own.st_mode):
            what.append(os.readlink(path))
        found[os.fsencode(path).hex()] = what
print(json.dumps(found))
"""
"""Prints the metadata and content hashes of the files that `CHANGES` changes, as JSON."""

UNPACK = """
import asyncio, sys, time
from benchflow.contracts.base import ArtifactRef
from benchflow.store import DirectoryBackend, Store
from benchflow.testing.sandbox_conformance.sandbox_fixtures import make_provider
from pathlib import Path

class Stalling(DirectoryBackend):
    def get(self, key, target):
        size = self.size(key)
        if key.endswith(sys.argv[4]):
            with (self.root / key).open('rb') as blob:
                target.write_bytes(blob.read(size // 2))
            print('in the middle', flush=True)
            time.sleep(3600)
        super().get(key, target)

store = Store(Stalling(Path(sys.argv[2])))
pack = ArtifactRef.model_validate_json(sys.argv[3])
asyncio.run(make_provider(sys.argv[1]).unpack_snapshot(pack, sys.argv[5], store))
"""
"""Unpacks from a store that stalls in the middle of one blob."""

Unpack = Callable[[ArtifactRef], Awaitable[ImageRef]]
"""Type of the fixture `unpack`."""


class PackTests(SandboxFixtures):
    """Tests of `pack_snapshot` and `unpack_snapshot`."""

    @pytest.fixture(scope="class")
    @classmethod
    def blobs(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Return the artifact store's directory: one for all tests, as layers below a snapshot are sent only once."""
        return tmp_path_factory.mktemp("artifacts")

    @pytest.fixture
    def store(self, blobs: Path) -> Store:
        """Return the artifact store."""
        return Store(DirectoryBackend(blobs))

    @pytest_asyncio.fixture
    async def packer(self, provider: SandboxProvider, start: Start) -> Sandbox:
        """Return a sandbox; skip the test if the provider packs no snapshots."""
        if not provider.capabilities().portable:
            pytest.skip("this provider packs no snapshots")
        return await start()

    @pytest_asyncio.fixture
    async def unpack(self, provider: SandboxProvider, store: Store, discard: list[ImageRef]) -> AsyncIterator[Unpack]:
        """Yield a function that unpacks a snapshot under a new name, which is removed after the test."""

        async def take(pack: ArtifactRef) -> ImageRef:
            image = await provider.unpack_snapshot(pack, f"benchflow-test-{nap()}", store)
            discard.append(image)
            return image

        yield take

    @staticmethod
    async def packed(
        packer: Sandbox, provider: SandboxProvider, keep: Keep, store: Store, blobs: Path
    ) -> tuple[ImageRef, ArtifactRef, Path]:
        """Return a snapshot with the file /kept, its pack, and the path of the blob with the snapshot's own change."""
        await provider.pack_snapshot(await keep(packer), store)
        before = stored(blobs)
        await packer.write_file("/kept", "x" * 1000)
        image = await keep(packer)
        pack = await provider.pack_snapshot(image, store)
        (own,) = stored(blobs).keys() - before.keys() - {pack.sha256}
        return image, pack, next(blobs.rglob(own))

    async def test_packing_that_is_not_offered_is_refused(
        self, provider: SandboxProvider, image: ImageRef, store: Store
    ) -> None:
        if provider.capabilities().portable:
            pytest.skip("this provider packs snapshots")
        with pytest.raises(UnsupportedFeatureError):
            await provider.pack_snapshot(image, store)
        with pytest.raises(UnsupportedFeatureError):
            await provider.unpack_snapshot(await store.put_bytes(b"{}"), "x", store)

    async def test_a_snapshot_comes_back_with_all_that_its_files_are(
        self, start: Start, provider: SandboxProvider, packer: Sandbox, keep: Keep, store: Store, unpack: Unpack
    ) -> None:
        said = await packer.exec(["python3", "-c", CHANGES])
        assert said.return_code == 0, said.stderr
        image = await keep(packer)
        pack = await provider.pack_snapshot(image, store)
        # Compared with a copy, because a snapshot need not keep everything of a file.
        copy = await start(image=image)
        there = await look(copy)
        await copy.stop()
        # As on a host that never had it.
        await provider.remove_image(image)
        other = await start(image=await unpack(pack))
        assert await look(other) == there
        assert b"/etc/issue".hex() not in there and len(there) > 15

    async def test_a_snapshot_above_another_comes_back_with_both(
        self, start: Start, provider: SandboxProvider, packer: Sandbox, keep: Keep, store: Store, unpack: Unpack
    ) -> None:
        await packer.exec(["sh", "-c", "mkdir /d && echo 1 >/d/one && echo 1 >/d/gone"])
        below = await keep(packer)
        first = await start(image=below)
        await first.exec(["sh", "-c", "echo 2 >/d/two && rm /d/gone"])
        above = await keep(first)
        pack = await provider.pack_snapshot(above, store)
        for sandbox in (packer, first):
            await sandbox.stop()
        for image in (above, below):
            await provider.remove_image(image)
        again = await start(image=await unpack(pack))
        assert (await again.exec(["ls", "/d"])).stdout.split() == ["one", "two"]
        # An unpacked snapshot is like any other: sandboxes from it can be captured and packed.
        await again.write_file("/d/three", "3")
        third = await start(image=await unpack(await provider.pack_snapshot(await keep(again), store)))
        assert (await third.exec(["ls", "/d"])).stdout.split() == ["one", "three", "two"]

    async def test_only_what_the_store_does_not_have_is_sent(
        self, provider: SandboxProvider, packer: Sandbox, keep: Keep, store: Store, blobs: Path
    ) -> None:
        first = await keep(packer)
        pack = await provider.pack_snapshot(first, store)
        before = stored(blobs)
        assert await provider.pack_snapshot(first, store) == pack
        assert stored(blobs) == before
        await packer.write_file("/more", os.urandom(100_000))
        await provider.pack_snapshot(await keep(packer), store)
        added = {name: size for name, size in stored(blobs).items() if name not in before}
        assert 100_000 < sum(added.values()) < 500_000, added

    async def test_unpacking_at_the_same_time_is_unpacking_once(
        self,
        start: Start,
        provider: SandboxProvider,
        other: SandboxProvider,
        packer: Sandbox,
        keep: Keep,
        store: Store,
        discard: list[ImageRef],
    ) -> None:
        await packer.write_file("/kept", "x")
        image = await keep(packer)
        pack = await provider.pack_snapshot(image, store)
        await provider.remove_image(image)
        names = [f"benchflow-test-{nap()}" for _ in range(2)]
        work = [each.unpack_snapshot(pack, name, store) for name in names for each in (provider, other)]
        images = await asyncio.gather(*work)
        discard += images
        assert images[0] == images[1] != images[2] == images[3]
        for found in (images[0], images[2]):
            assert await (await start(image=found)).read_bytes("/kept") == b"x"
        # When one of the two names is removed, the other still has all files.
        await provider.remove_image(images[0])
        assert await (await start(image=images[2])).read_bytes("/kept") == b"x"

    async def test_a_blob_that_is_not_what_it_was_leaves_no_image(
        self, start: Start, provider: SandboxProvider, packer: Sandbox, keep: Keep, store: Store, blobs: Path
    ) -> None:
        image, pack, blob = await self.packed(packer, provider, keep, store, blobs)
        name = f"benchflow-test-{nap()}"
        unpacked = await provider.unpack_snapshot(pack, name, store)
        for each in (image, unpacked):
            await provider.remove_image(each)
        whole = blob.read_bytes()
        half = len(whole) // 2
        for harmed in (whole[:half], whole[:half] + b"!" + whole[half + 1 :], None):
            blob.unlink()
            if harmed is not None:
                blob.write_bytes(harmed)
            with pytest.raises(StoreError) as raised:
                await provider.unpack_snapshot(pack, name, store)
            assert raised.value.remedy
            assert isinstance(raised.value, CorruptArtifactError) == (harmed is not None)
            with pytest.raises(SandboxStartError):
                await start(image=unpacked)
            blob.write_bytes(whole)
        assert await provider.unpack_snapshot(pack, name, store) == unpacked
        assert await (await start(image=unpacked)).read_bytes("/kept") == b"x" * 1000
        await provider.remove_image(unpacked)

    async def test_a_process_that_dies_in_the_middle_leaves_no_image(
        self,
        start: Start,
        provider: SandboxProvider,
        packer: Sandbox,
        keep: Keep,
        store: Store,
        blobs: Path,
        stack: str,
        state_directory: Path,
    ) -> None:
        image, pack, blob = await self.packed(packer, provider, keep, store, blobs)
        name = f"benchflow-test-{nap()}"
        unpacked = await provider.unpack_snapshot(pack, name, store)
        for each in (image, unpacked):
            await provider.remove_image(each)
        before = files_of(state_directory)
        given = [self.provider_path, str(blobs), pack.model_dump_json(), blob.name, name]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", UNPACK, *given, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"in the middle\n"
        process.kill()
        await process.wait()
        with pytest.raises(SandboxStartError):
            await start(image=unpacked)
        # `owned` also removes the leftovers of dead processes.
        await provider.owned(stack)
        assert {path for path in files_of(state_directory) - before if path.suffix != ".lock"} == set()
        assert await provider.unpack_snapshot(pack, name, store) == unpacked
        assert await (await start(image=unpacked)).read_bytes("/kept") == b"x" * 1000
        await provider.remove_image(unpacked)

    async def test_nothing_secret_is_in_the_store(
        self, start: Start, spec: SandboxSpec, provider: SandboxProvider, keep: Keep, store: Store, blobs: Path
    ) -> None:
        if not provider.capabilities().portable:
            pytest.skip("this provider packs no snapshots")
        secret = secrets.token_hex(16)
        packer = await start(env={"GIVEN": secret}, labels=spec.labels | {"benchflow.test": secret})
        await packer.exec(["sh", "-c", "echo $TOKEN >/dev/shm/token; echo ok >/kept"], env={"TOKEN": secret})
        await provider.pack_snapshot(await keep(packer), store)
        assert not [path for path in blobs.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


async def look(sandbox: Sandbox) -> dict[str, Any]:
    """Return the metadata and content hashes of the files that `CHANGES` changes, by path."""
    said = await sandbox.exec(["python3", "-c", LOOK])
    assert said.return_code == 0, said.stderr
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def stored(blobs: Path) -> dict[str, int]:
    """Return the sizes of all blobs in the store's directory, by name."""
    return {path.name: path.stat().st_size for path in blobs.rglob("*") if path.is_file()}


def files_of(directory: Path) -> set[Path]:
    """Return all paths below a directory."""
    return set(directory.rglob("*"))
