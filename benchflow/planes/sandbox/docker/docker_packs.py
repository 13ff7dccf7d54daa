"""Packs: snapshots for other hosts, as a description and one blob per layer in the artifact store.

A layer's archive is stored unchanged, so that its blob has the digest by which daemons know the layer. So any host sees
which layers the store has already, and a later snapshot uploads only what has changed since the one before it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from benchflow.contracts.base import ArtifactRef, BlobStore, Model
from benchflow.contracts.failures import typed_error
from benchflow.contracts.images import ImageRef
from benchflow.errors import ForeignSnapshotError, SandboxError
from benchflow.host_files import hold_lock_async
from benchflow.paths import find_state_dir
from benchflow.planes.sandbox.docker import uppers
from benchflow.planes.sandbox.docker.captures import SNAPSHOT, format_snapshot_reference
from benchflow.planes.sandbox.docker.container_config import make_no_image_error
from benchflow.planes.sandbox.docker.descriptions import make_description
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon
from benchflow.planes.sandbox.docker.docker_images import Images
from benchflow.planes.sandbox.docker.layers import (
    CHUNK,
    Layers,
    extract_layers,
    load_image,
    parse_missing_layer,
    stream_image,
)
from benchflow.planes.sandbox.docker.oci import create_image, describe_layer
from benchflow.planes.sandbox.docker.translation import NotFoundError
from benchflow.planes.sandbox.docker.uppers import find_copied_layers, pack_layer, read_digest
from benchflow.planes.sandbox.scratch import make_scratch


class DockerPack(Model):
    """A snapshot's description, as it is stored."""

    kind: Literal["docker"] = "docker"
    """Kind of the pack; a snapshot of another provider has another one."""

    stack: str
    """Hash of the stack, from the snapshot's name."""

    architecture: str
    """Architecture, as the daemon names it."""

    os: str
    """Operating system, as the daemon names it."""

    created: str
    """Time of creation, as the daemon has it."""

    config: dict[str, Any]
    """Configuration of the image, as `inspect` has it under `Config`."""

    layers: tuple[ArtifactRef, ...]
    """Archives of the layers, from the bottom up."""


class DockerPacks:
    """Packing and unpacking the snapshots of one daemon."""

    def __init__(self, engine: DockerDaemon, images: Images) -> None:
        """Make it."""
        self._engine = engine
        self._images = images

    async def pack(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        """Upload a snapshot to the store, except for layers that are there, and return a reference to the pack.

        Raises:
            SandboxError: The image is no snapshot, or a layer can't be read.
            SandboxStartError: The snapshot is missing.
        """
        repository, _, tag = image.reference.partition(":")
        if repository != SNAPSHOT:
            raise SandboxError(f"{image.reference} is no snapshot", key="image", remedy="pack a snapshot of a sandbox")
        try:
            found = await self._engine.inspect_image(image.reference)
        except NotFoundError as error:
            raise make_no_image_error(image.reference, error) from error
        layers = list(found["RootFS"]["Layers"])
        copied = find_copied_layers(found)
        stored = [
            await self._store_copied(copied[number], store)
            if number in copied
            else await self._store_layer(image.reference, layers, number, store)
            for number in range(len(layers))
        ]
        pack = DockerPack(
            stack=tag.partition("-")[0],
            architecture=found["Architecture"],
            os=found["Os"],
            created=found["Created"],
            config=found["Config"],
            layers=tuple(stored),
        )
        return await store.put_bytes(pack.model_dump_json().encode())

    async def unpack(self, ref: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        """Return the snapshot with a name, created from a pack unless it exists.

        Args:
            ref: The pack.
            name: Name of the snapshot.
            store: Artifact store with the layers.

        Raises:
            ForeignSnapshotError: It is no pack of a Docker daemon, or one of another platform.
            SandboxError: The daemon refuses it.
        """
        try:
            pack = DockerPack.model_validate_json(await store.read(ref))
        except ValidationError as error:
            raise ForeignSnapshotError(
                "it is no snapshot of a Docker daemon", file=ref.uri, remedy="unpack it with what packed it"
            ) from error
        reference = format_snapshot_reference(pack.stack, name)

        async def make() -> None:
            await self._require_kind(pack)
            await self._load(pack, reference, store)

        return await self._images.find_or_make(reference, make)

    # --- to the store --------------------------------------------------------------------------------

    async def _store_copied(self, layer: Path, store: BlobStore) -> ArtifactRef:
        """Store a layer that was filled past the daemon, whose export would lack the files."""
        try:
            digest = await asyncio.to_thread(read_digest, layer)
            if digest and (known := await store.find(digest.removeprefix("sha256:"))):
                return known
            async with make_scratch() as directory:
                file = directory / "layer.tar"
                await asyncio.to_thread(pack_layer, layer, file)
                return await store.put_file(file)
        except OSError as error:
            typed = typed_error(error)
            if typed is not error:
                raise typed from error
            raise SandboxError(
                f"a layer of the snapshot cannot be packed: {error.strerror}",
                file=str(layer),
                remedy="see that the snapshot is still there, and that its files and the state directory have room",
            ) from error

    async def _store_layer(self, reference: str, layers: list[str], number: int, store: BlobStore) -> ArtifactRef:
        """Store a layer, from the daemon's files if possible, else with the layers above it from an export."""
        digest = layers[number].removeprefix("sha256:")
        if known := await store.find(digest):
            return known
        # Snapshots of one task share their lower layers: one process uploads them, and the others find them.
        async with (
            hold_lock_async(find_state_dir() / "locks" / f"layer-{digest[:32]}.lock"),
            make_scratch() as directory,
        ):
            if known := await store.find(digest):
                return known
            info = await self._engine.call(lambda client: client.info())
            file = directory / "layer.tar"
            if self._engine.is_local and await asyncio.to_thread(Layers(info).copy, layers, number, file):
                return await store.put_file(file)
            lacking = {layer for layer in layers[number:] if await store.find(layer.removeprefix("sha256:")) is None}
            files = await self._engine.call_slow(
                lambda client: extract_layers(client.get_image(reference, chunk_size=CHUNK), lacking, directory)
            )
            stored = {layer: await store.put_file(file) for layer, file in files.items()}
        if layers[number] not in stored:
            raise SandboxError(f"the daemon's export of {reference} lacks its layer {layers[number]}")
        return stored[layers[number]]

    # --- from the store ------------------------------------------------------------------------------

    async def _require_kind(self, pack: DockerPack) -> None:
        """Raise `ForeignSnapshotError` unless the daemon's platform is that of the pack."""
        platform = await self._engine.call(lambda client: client.version())
        if (platform["Os"], platform["Arch"]) != (pack.os, pack.architecture):
            raise ForeignSnapshotError(
                f"it is for {pack.os} on {pack.architecture}, and this daemon runs "
                f"{platform['Os']} on {platform['Arch']}",
                remedy="let it be unpacked on a host of that kind",
            )

    async def _load(self, pack: DockerPack, reference: str, store: BlobStore) -> None:
        """Have the daemon create the image of a pack, fetching only layers that it lacks."""
        if uppers.uses_containerd_store(await self._engine.call(lambda client: client.info())):
            return await self._load_all(pack, reference, store)
        # The daemon's error names the layer that it lacks; it can't have those above it either.
        wrong = await self._try_load(pack, reference, {})
        if not wrong:
            return
        first = parse_missing_layer(wrong) or 0
        async with make_scratch() as directory:
            files = {}
            for number, layer in list(enumerate(pack.layers))[first:]:
                files[number] = directory / str(number)
                await store.fetch(layer, files[number])
            wrong = await self._try_load(pack, reference, files)
        if wrong:
            raise SandboxError(f"the daemon does not take the snapshot: {wrong}", key="snapshot")

    async def _load_all(self, pack: DockerPack, reference: str, store: BlobStore) -> None:
        """Load an image with all of its layers: containerd's store accepts one that lacks some, but can't start it."""
        async with make_scratch() as directory:
            files = {}
            for number, layer in enumerate(pack.layers):
                digest = f"sha256:{layer.sha256}"
                files[digest] = directory / str(number)
                await store.fetch(layer, files[digest])
            named = [describe_layer(file, digest) for digest, file in files.items()]
            await self._engine.call_slow(
                lambda client: create_image(client, reference, _describe_pack(pack, reference), named, files)
            )

    async def _try_load(self, pack: DockerPack, reference: str, files: dict[int, Path]) -> str:
        """Have the daemon load an image, entirely or not at all. Return its error message, empty on success."""
        description = json.dumps(_describe_pack(pack, reference)).encode()
        return await self._engine.call_slow(
            lambda client: load_image(client, stream_image(description, reference, len(pack.layers), files))
        )


def _describe_pack(pack: DockerPack, reference: str) -> dict[str, Any]:
    """Return the configuration file of a pack's image."""
    layers = [f"sha256:{layer.sha256}" for layer in pack.layers]
    like = {"Architecture": pack.architecture, "Os": pack.os, "Created": pack.created}
    return make_description(like, pack.config, layers, reference)
