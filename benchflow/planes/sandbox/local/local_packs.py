"""Packs, which bring snapshots to other hosts: the changed files of a snapshot and its layer, as archives in the store.

The host's own root lies below them, so only a machine with the same programs can use them, unless the layer is a ready
image. Archives are made by GNU tar, which keeps the holes, nodes and extended attributes of overlay layers, and makes
equal archives of equal files: a layer that many snapshots share is one blob.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from benchflow.contracts.base import ArtifactRef, BlobStore, Model
from benchflow.contracts.images import ImageRef
from benchflow.errors import ForeignSnapshotError, SandboxError
from benchflow.planes.sandbox.local.fingerprint import compute_host_fingerprint
from benchflow.planes.sandbox.local.local_images import WHOLE, LocalImage, parse_key, require_image
from benchflow.planes.sandbox.local.local_images import read_image as read
from benchflow.planes.sandbox.local.machine import Machine
from benchflow.planes.sandbox.scratch import make_scratch

_NOTE = "packed.json"
"""File beside an image's files, with the archive's reference in the store."""

_EVERYTHING = ("--numeric-owner", "--acls", "--xattrs", "--xattrs-include=*")
"""Options of tar for all metadata of files."""

_REPEATABLE = (
    *("--format=posix", "--sort=name", "--sparse"),
    "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime",
)
"""Options of tar that leave out what differs from run to run: access times, tar's pid in header names."""


class PackedImage(Model):
    """An image whose files are an archive in the store."""

    key: str | None = None
    """Key of the image; None for a snapshot, which is named when it is unpacked."""
    image: LocalImage
    """Record of the image."""
    files: ArtifactRef
    """Archive of the changed files, `u` of the volume."""


class LocalPack(Model):
    """A snapshot, and the layer below it."""

    kind: Literal["local"] = "local"
    """Provider that can unpack it."""
    snapshot: PackedImage
    """The snapshot."""
    base: PackedImage | None = None
    """The layer; None if the host lies below the snapshot."""


class _Note(Model):
    """A note of the archive that was made of an image."""

    key: str
    """Key of the image; a note copied along with a volume has that of the original."""
    files: ArtifactRef
    """The archive."""


class LocalPacks:
    """The snapshots of one machine, packed and unpacked.

    Args:
        machine: The machine.
    """

    def __init__(self, machine: Machine) -> None:
        """Make it."""
        self._machine = machine

    async def pack(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        """Upload an image and the layer below it, except for archives that the store has; return the pack's reference.

        Raises:
            SandboxError: The image is the bare host, is missing, or was made over other programs; or tar failed.
        """
        key = parse_key(image)
        if key is None:
            raise SandboxError("the host itself cannot be packed", key="image", remedy="pack a snapshot of a sandbox")
        async with self._machine.using():
            await asyncio.to_thread(self._machine.store.open)
            snapshot = await self._pack(key, store)
            below = snapshot.image.base
            base = await self._pack(below, store) if below is not None else None
        pack = LocalPack(snapshot=snapshot.model_copy(update={"key": None}), base=base)
        return await store.put_bytes(pack.model_dump_json().encode())

    async def unpack(self, ref: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        """Create the image `name` and the layer below it from a pack, unless they exist.

        Raises:
            ForeignSnapshotError: It is no pack of a local sandbox, or needs another machine.
            SandboxError: tar failed.
        """
        try:
            pack = LocalPack.model_validate_json(await store.read(ref))
        except ValidationError as error:
            raise ForeignSnapshotError(
                "it is no snapshot of a local sandbox", file=ref.uri, remedy="unpack it with what packed it"
            ) from error
        image = pack.snapshot.image
        if image.fingerprint not in (WHOLE, await asyncio.to_thread(compute_host_fingerprint)):
            raise ForeignSnapshotError(
                "it was taken over another machine's programs, which lie below its files, or for another processor",
                remedy="let it be unpacked on a machine that was installed in the same way, or use --sandbox docker",
            )
        async with self._machine.using():
            await asyncio.to_thread(self._machine.store.open)
            if pack.base is not None:
                await self._unpack(str(pack.base.key), pack.base, store)
            await self._unpack(name, pack.snapshot, store)
        return image.ref(name)

    async def _pack(self, key: str, store: BlobStore) -> PackedImage:
        """Upload the files of one image, and return it. Raises as `require_image`."""
        async with self._machine.at_image(key):
            fingerprint = await asyncio.to_thread(compute_host_fingerprint)
            image = await asyncio.to_thread(require_image, self._machine.store.root, key, fingerprint)
            volume = self._machine.store.root / "images" / key
            files = await self._noted(volume / _NOTE, key, store)
            if files is None:
                async with make_scratch() as directory:
                    archive = directory / "files.tar"
                    await asyncio.to_thread(
                        _run_tar,
                        [*_EVERYTHING, *_REPEATABLE, "--create", f"--file={archive}", f"--directory={volume}/u", "."],
                    )
                    files = await store.put_file(archive)
                await asyncio.to_thread((volume / _NOTE).write_text, _Note(key=key, files=files).model_dump_json())
            return PackedImage(key=key, image=image, files=files)

    async def _noted(self, file: Path, key: str, store: BlobStore) -> ArtifactRef | None:
        """Return the archive that was made of an image before, if the store still has it."""
        try:
            note = _Note.model_validate_json(await asyncio.to_thread(file.read_bytes))
        except (FileNotFoundError, ValidationError):
            return None
        return await store.find(note.files.sha256) if note.key == key else None

    async def _unpack(self, key: str, packed: PackedImage, store: BlobStore) -> None:
        """Create the image `key` from its archive, unless it exists."""
        async with self._machine.at_image(key):
            if await asyncio.to_thread(read, self._machine.store.root, key) is not None:
                return
            async with make_scratch() as directory:
                archive = directory / "files.tar"
                await store.fetch(packed.files, archive)
                await asyncio.to_thread(_require_uncompressed, archive)

                def write(volume: Path, lock: int) -> None:
                    (volume / "u").mkdir()
                    options = [*_EVERYTHING, "--same-owner", "--preserve-permissions", "--extract"]
                    _run_tar([*options, f"--file={archive}", f"--directory={volume}/u"], lock)
                    packed.image.write(volume)

                await asyncio.to_thread(self._machine.store.fill, f"images/{key}", write)


def _require_uncompressed(archive: Path) -> None:
    """Raise `ForeignSnapshotError` for an archive that is not plain tar.

    GNU tar would decompress it by another program, to any size.
    """
    with archive.open("rb") as file:
        file.seek(257)
        magic = file.read(5)
    if magic != b"ustar":
        raise ForeignSnapshotError(
            "its files are no archive as `pack` makes them", remedy="unpack it with what packed it"
        )


def _run_tar(arguments: Sequence[str], *keep: int) -> None:
    """Run GNU tar, which inherits the descriptors `keep`. Raise `SandboxError` if it fails."""
    try:
        done = subprocess.run(
            ["tar", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, pass_fds=keep
        )
    except FileNotFoundError as error:
        raise SandboxError("there is no tar on this machine", remedy="install GNU tar") from error
    if done.returncode:
        raise SandboxError(
            "tar could not carry the files of a snapshot",
            log_tail=done.stderr[-2000:],
            remedy="it must be GNU tar, and have room; see what it says",
        )
