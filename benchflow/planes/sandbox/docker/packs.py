"""Snapshots for other hosts: what an image is, and each of its layers as a blob of its own in the artifact store.

A layer's archive is stored as it is, so that its blob has the name that daemons know the layer by. So any host sees
which layers the store has already, and a further snapshot brings only what has changed since the one before it.
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
from benchflow.paths import state_dir
from benchflow.planes.sandbox.docker import uppers
from benchflow.planes.sandbox.docker.captures import SNAPSHOT, snapshot_reference
from benchflow.planes.sandbox.docker.descriptions import description_of
from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.images import Images
from benchflow.planes.sandbox.docker.launch import no_image
from benchflow.planes.sandbox.docker.layers import CHUNK, Layers, archived, missing_layer, split
from benchflow.planes.sandbox.docker.oci import layer_of, load
from benchflow.planes.sandbox.docker.translation import NotFound, raise_if_full
from benchflow.planes.sandbox.docker.uppers import archive, copied_layers, known_digest
from benchflow.planes.sandbox.records import file_lock
from benchflow.planes.sandbox.scratch import scratch


class Pack(Model):
    """An image. stack: the stack's part of its name. config: what its containers are made with. layers: from below."""

    kind: Literal["docker"] = "docker"
    stack: str
    architecture: str
    os: str
    created: str
    config: dict[str, Any]
    layers: tuple[ArtifactRef, ...]


class Packs:
    """The snapshots that one daemon gives and takes."""

    def __init__(self, engine: Engine, images: Images) -> None:
        self._engine = engine
        self._images = images

    async def pack(self, image: ImageRef, store: BlobStore) -> ArtifactRef:
        repository, _, tag = image.reference.partition(":")
        if repository != SNAPSHOT:
            raise SandboxError(f"{image.reference} is no snapshot", key="image", remedy="pack a snapshot of a sandbox")
        try:
            found = await self._engine.call(lambda client: client.inspect_image(image.reference))  # type: ignore[no-untyped-call]
        except NotFound as error:
            raise no_image(image.reference, error) from error
        layers = list(found["RootFS"]["Layers"])
        copied = copied_layers(found)
        stored = [
            await self._store_copied(copied[number], store)
            if number in copied
            else await self._store_layer(image.reference, layers, number, store)
            for number in range(len(layers))
        ]
        pack = Pack(
            stack=tag.partition("-")[0],
            architecture=found["Architecture"],
            os=found["Os"],
            created=found["Created"],
            config=found["Config"],
            layers=tuple(stored),
        )
        return await store.put_bytes(pack.model_dump_json().encode())

    async def unpack(self, ref: ArtifactRef, name: str, store: BlobStore) -> ImageRef:
        try:
            pack = Pack.model_validate_json(await store.read(ref))
        except ValidationError as error:
            raise ForeignSnapshotError(
                "it is no snapshot of a Docker daemon", file=ref.uri, remedy="unpack it with what packed it"
            ) from error
        reference = snapshot_reference(pack.stack, name)

        async def make() -> ImageRef:
            found = await self._images.find(reference, built=True)
            if found is None:
                await self._require_kind(pack)
                await self._load(pack, reference, store)
                found = await self._images.find(reference, built=True)
            if found is None:
                raise SandboxError(f"the snapshot {name} was removed while it was unpacked")
            return found

        found = await self._images.find(reference, built=True)
        return found if found is not None else await self._images.locked(reference, make)

    # --- to the store --------------------------------------------------------------------------------

    async def _store_copied(self, layer: Path, store: BlobStore) -> ArtifactRef:
        """A layer of whose files the daemon knows nothing."""
        try:
            digest = await asyncio.to_thread(known_digest, layer)
            if digest and (known := await store.find(digest.removeprefix("sha256:"))):
                return known
            async with scratch() as directory:
                file = directory / "layer.tar"
                await asyncio.to_thread(archive, layer, file)
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
        digest = layers[number].removeprefix("sha256:")
        if known := await store.find(digest):
            return known
        # Snapshots of one task begin with the same layers: one brings them, and the others find them.
        async with file_lock(state_dir() / "locks" / f"layer-{digest[:32]}.lock"), scratch() as directory:
            if known := await store.find(digest):
                return known
            info = await self._engine.call(lambda client: client.info())
            file = directory / "layer.tar"
            if self._engine.is_local and await asyncio.to_thread(Layers(info).copy, layers, number, file):
                return await store.put_file(file)
            stored = await self._export(reference, set(layers[number:]), directory, store)
        if layers[number] not in stored:
            raise SandboxError(f"the daemon's export of {reference} lacks its layer {layers[number]}")
        return stored[layers[number]]

    async def _export(
        self, reference: str, layers: set[str], directory: Path, store: BlobStore
    ) -> dict[str, ArtifactRef]:
        """Ask the daemon for an image, and store those of its layers that the store does not have."""
        wanted = {layer for layer in layers if await store.find(layer.removeprefix("sha256:")) is None}
        files = await self._engine.follow(
            lambda client: split(client.get_image(reference, chunk_size=CHUNK), wanted, directory)
        )
        return {layer: await store.put_file(file) for layer, file in files.items()}

    # --- from the store ------------------------------------------------------------------------------

    async def _require_kind(self, pack: Pack) -> None:
        told = await self._engine.call(lambda client: client.version())
        if (told["Os"], told["Arch"]) != (pack.os, pack.architecture):
            raise ForeignSnapshotError(
                f"it is for {pack.os} on {pack.architecture}, and this daemon runs {told['Os']} on {told['Arch']}",
                remedy="let it be unpacked on a host of that kind",
            )

    async def _load(self, pack: Pack, reference: str, store: BlobStore) -> None:
        if uppers.keeps_images_elsewhere(await self._engine.call(lambda client: client.info())):
            return await self._load_all(pack, reference, store)
        # The daemon says itself which layer it lacks; those above it can't be there either.
        said = await self._ask(pack, reference, {})
        if not said:
            return
        first = missing_layer(said) or 0
        async with scratch() as directory:
            files = {}
            for number, layer in list(enumerate(pack.layers))[first:]:
                files[number] = directory / str(number)
                await store.fetch(layer, files[number])
            said = await self._ask(pack, reference, files)
        if said:
            raise SandboxError(f"the daemon does not take the snapshot: {said}", key="snapshot")

    async def _load_all(self, pack: Pack, reference: str, store: BlobStore) -> None:
        """Load an image with all of its layers: containerd's store takes one that lacks some, and can't start it."""
        async with scratch() as directory:
            files = {}
            for number, layer in enumerate(pack.layers):
                digest = f"sha256:{layer.sha256}"
                files[digest] = directory / str(number)
                await store.fetch(layer, files[digest])
            named = [layer_of(file, digest) for digest, file in files.items()]
            await self._engine.follow(
                lambda client: load(client, reference, _description(pack, reference), named, files)
            )

    async def _ask(self, pack: Pack, reference: str, files: dict[int, Path]) -> str:
        """Have the daemon load an image, whole or not at all; what it says is wrong."""
        description = json.dumps(_description(pack, reference)).encode()
        said = await self._engine.follow(
            lambda client: list(client.load_image(archived(description, reference, len(pack.layers), files)))  # type: ignore[no-untyped-call]
        )
        wrong = " ".join(str(line["error"]) for line in said if "error" in line)
        raise_if_full(wrong)
        return wrong


def _description(pack: Pack, reference: str) -> dict[str, Any]:
    layers = [f"sha256:{layer.sha256}" for layer in pack.layers]
    like = {"Architecture": pack.architecture, "Os": pack.os, "Created": pack.created}
    return description_of(like, pack.config, layers, reference)
