"""New image descriptions in containerd's image store, over layers that it has.

The store knows a layer by the digest of its blob, compressed or not, which only the image's manifest has. The API gives
a manifest only in the archive of `save`, among the layers, which are read and dropped. If this process may read the
store's files, it finds the manifest there: an image's id is its digest, or leads to it. `load` takes an archive without
layers: the store looks for missing blobs among its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from benchflow.errors import SandboxError
from benchflow.planes.sandbox.docker.descriptions import make_description
from benchflow.planes.sandbox.docker.docker_daemon import RecordingClient
from benchflow.planes.sandbox.docker.layers import CHUNK, PieceReader, load_image, stream_member

_MAX_DESCRIPTION = 4 * 1024 * 1024
"""Maximum number of bytes of a manifest, or of an image's configuration."""

_STORES = ("containerd/daemon", "../containerd")
"""Directories of containerd's data, relative to the daemon's: if the daemon has started it, and by default."""

_BLOBS = "io.containerd.content.v1.content/blobs/sha256"
"""Directory of the blobs in containerd's data."""

_INVALID = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Errors from the content of a manifest or a configuration, which a registry may have made up."""

_NAME = re.compile(r"sha256:([0-9a-f]{64})")

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"

Layer = dict[str, Any]
"""Descriptor of a layer in a manifest: media type, digest and size of its blob."""


def describe_over(
    client: RecordingClient, reference: str, like: Mapping[str, Any], config: Mapping[str, Any], store: Path | None
) -> None:
    """Have the daemon create an image from the layers of another one and a configuration.

    Args:
        client: The daemon's client.
        reference: Name of the new image.
        like: `inspect` data of the other image.
        config: Configuration of the new image, as `inspect` has it under `Config`.
        store: The daemon's root directory, if it is on this host; else None.

    Raises:
        SandboxSpaceError: The daemon's disk is full.
        SandboxError: The other image's manifest is not found, or the daemon refuses the image.
    """
    archives, image = list(like["RootFS"]["Layers"]), str(like["Id"])
    layers = find_layers(read_stored_blobs(store, image), archives) if store is not None else None
    if layers is None:
        with contextlib.closing(read_exported_blobs(client, image)) as blobs:
            layers = find_layers(blobs, archives)
    if layers is None:
        raise SandboxError(f"the daemon's export of {image} has no manifest", key="snapshot")
    create_image(client, reference, make_description(like, config, archives, reference), layers, {})


def describe_layer(file: Path, digest: str) -> Layer:
    """Return the descriptor of an uncompressed layer, from its archive and digest."""
    return {"mediaType": _LAYER, "digest": digest, "size": file.stat().st_size}


def create_image(
    client: RecordingClient,
    reference: str,
    description: Mapping[str, Any],
    layers: list[Layer],
    files: Mapping[str, Path],
) -> None:
    """Have the daemon create an image.

    Args:
        client: The daemon's client.
        reference: Name of the image.
        description: Its configuration file, as the image format specifies it.
        layers: Descriptors of its layers, from the bottom up.
        files: Archives of the layers that the daemon lacks, by digest.

    Raises:
        SandboxSpaceError: The daemon's disk is full.
        SandboxError: The daemon refuses the image.
    """
    if wrong := load_image(client, _stream_archive(reference, description, layers, files)):
        raise SandboxError(f"the daemon does not take the description of an image: {wrong}", key="snapshot")


def find_layers(blobs: Iterable[bytes], archives: list[str]) -> list[Layer] | None:
    """Return the layer descriptors of the manifest whose image has these layers; None if there is none.

    One export can have several manifests: for other platforms, and attestations about the build.

    Args:
        blobs: Manifests and configurations, in any order, among other blobs.
        archives: Digests of the uncompressed layers.
    """
    # By the digests of the configurations that they name.
    manifests: dict[str, list[Layer]] = {}
    same: set[str] = set()
    for blob in blobs:
        with contextlib.suppress(*_INVALID):
            content = json.loads(blob)
            if "layers" in content:
                manifests[content["config"]["digest"]] = content["layers"]
            elif content["rootfs"]["diff_ids"] == archives:
                same.add(_compute_digest(blob))
        for config in same & manifests.keys():
            return manifests[config]
    return None


def read_stored_blobs(store: Path, image: str) -> Iterator[bytes]:
    """Yield index, manifests and configurations of an image from the store's files that this process may read."""
    waiting = [image]
    while waiting:
        digest = waiting.pop()
        for place in _STORES:
            with contextlib.suppress(OSError, *_INVALID):
                file = store / place / _BLOBS / _NAME.fullmatch(digest)[1]  # type: ignore[index]
                blob = file.read_bytes() if file.stat().st_size <= _MAX_DESCRIPTION else b""
                if _compute_digest(blob) == digest:
                    yield blob
                    content = json.loads(blob)
                    below = [*content.get("manifests", ()), content.get("config", {})]
                    waiting += [each.get("digest", "") for each in below]
                    break


def read_exported_blobs(client: RecordingClient, image: str) -> Generator[bytes, None, None]:
    """Yield the small files of the daemon's export of an image, manifests among them; layers are dropped."""
    pieces = client.get_image(image, chunk_size=CHUNK)
    with contextlib.closing(pieces), tarfile.open(fileobj=PieceReader(pieces), mode="r|", bufsize=CHUNK) as archive:
        for entry in archive:
            content = archive.extractfile(entry) if entry.isreg() and entry.size <= _MAX_DESCRIPTION else None
            if content is not None:
                yield content.read()


def _stream_archive(
    reference: str, description: Mapping[str, Any], layers: list[Layer], files: Mapping[str, Path]
) -> Iterator[bytes]:
    """Yield an image as a stream in the OCI layout, for the daemon's `load`."""
    config = json.dumps(description).encode()
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": _MANIFEST, "config": _describe_blob(_CONFIG, config), "layers": layers}
    ).encode()
    name, tag = f"docker.io/{reference}", reference.rpartition(":")[2]
    named = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
    index = {
        "schemaVersion": 2,
        "mediaType": _INDEX,
        "manifests": [_describe_blob(_MANIFEST, manifest) | {"annotations": named}],
    }
    texts = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        _format_path(_compute_digest(config)): config,
        _format_path(_compute_digest(manifest)): manifest,
        "index.json": json.dumps(index).encode(),
    }
    for path, content in texts.items():
        yield from stream_member(path, len(content), io.BytesIO(content))
    for digest, file in files.items():
        blob: IO[bytes]
        with file.open("rb") as blob:
            yield from stream_member(_format_path(digest), file.stat().st_size, blob)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _describe_blob(media_type: str, content: bytes) -> dict[str, Any]:
    """Return the descriptor of a blob."""
    return {"mediaType": media_type, "digest": _compute_digest(content), "size": len(content)}


def _compute_digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _format_path(digest: str) -> str:
    """Return the path of a blob in the archive."""
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"
