"""Images described anew in containerd's image store, over layers that it has.

The store knows a layer by the digest of its blob, compressed or not, and only the image's manifest tells that. The API
shows a manifest in the archive of `save` alone, among the layers, which are read and let go of. Where this process may
read the store's files, it finds the manifest there: an image's id is its digest, or leads to it. `load` takes an
archive without layers: the store looks for blobs that an archive lacks among its own.
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
from benchflow.planes.sandbox.docker.descriptions import description_of
from benchflow.planes.sandbox.docker.engine import RecordingClient
from benchflow.planes.sandbox.docker.layers import CHUNK, PieceReader, member
from benchflow.planes.sandbox.docker.translation import raise_if_full

_MAX_DESCRIPTION = 4 * 1024 * 1024
"""Bytes of a manifest, or of an image's configuration."""

_STORES = ("containerd/daemon", "../containerd")
"""Where containerd keeps its data, from the daemon's directory: if the daemon has started it, and by default."""

_BLOBS = "io.containerd.content.v1.content/blobs/sha256"

_INVALID = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Raised by what a registry may have put into a manifest or a configuration."""

_NAME = re.compile(r"sha256:([0-9a-f]{64})")

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"

Layer = dict[str, Any]
"""How a manifest names a layer: the digest of its blob, and of which kind that is."""


def describe_over(
    client: RecordingClient, reference: str, like: Mapping[str, Any], config: Mapping[str, Any], store: Path | None
) -> None:
    """Have the daemon make an image of the layers of another, with a configuration of its own.

    Args:
        store: The daemon's directory, where that is this host's.
    """
    archives, image = list(like["RootFS"]["Layers"]), str(like["Id"])
    layers = find_layers(stored_blobs(store, image), archives) if store is not None else None
    if layers is None:
        with contextlib.closing(exported_blobs(client, image)) as blobs:
            layers = find_layers(blobs, archives)
    if layers is None:
        raise SandboxError(f"the daemon's export of {image} has no manifest", key="snapshot")
    load(client, reference, description_of(like, config, archives, reference), layers, {})


def layer_of(file: Path, digest: str) -> Layer:
    """Return how a manifest names a layer that is not compressed."""
    return {"mediaType": _LAYER, "digest": digest, "size": file.stat().st_size}


def load(
    client: RecordingClient,
    reference: str,
    description: Mapping[str, Any],
    layers: list[Layer],
    files: Mapping[str, Path],
) -> None:
    """Have the daemon make an image.

    Args:
        description: Its configuration, as the image format has it.
        layers: From below.
        files: Of the layers that the daemon does not have, by their digests.
    """
    said = list(client.load_image(_archive(reference, description, layers, files)))  # type: ignore[no-untyped-call]
    wrong = [line["error"] for line in said if "error" in line]
    if wrong:
        raise_if_full(str(wrong[0]))
        raise SandboxError(f"the daemon does not take the description of an image: {wrong[0]}", key="snapshot")


def find_layers(blobs: Iterable[bytes], archives: list[str]) -> list[Layer] | None:
    """Return how a manifest among blobs names the layers of these archives. They come in any order.

    Several may belong to one image: of other kinds of machines, and of how it was built.
    """
    # By the digests of their configurations.
    manifests: dict[str, list[Layer]] = {}
    same: set[str] = set()
    for blob in blobs:
        with contextlib.suppress(*_INVALID):
            told = json.loads(blob)
            if "layers" in told:
                manifests[told["config"]["digest"]] = told["layers"]
            elif told["rootfs"]["diff_ids"] == archives:
                same.add(_digest(blob))
        for config in same & manifests.keys():
            return manifests[config]
    return None


def stored_blobs(store: Path, image: str) -> Iterator[bytes]:
    """Yield what describes an image from the store's own files, as far as this process may read them."""
    waiting = [image]
    while waiting:
        digest = waiting.pop()
        for place in _STORES:
            with contextlib.suppress(OSError, *_INVALID):
                file = store / place / _BLOBS / _NAME.fullmatch(digest)[1]  # type: ignore[index]
                blob = file.read_bytes() if file.stat().st_size <= _MAX_DESCRIPTION else b""
                if _digest(blob) == digest:
                    yield blob
                    told = json.loads(blob)
                    below = [*told.get("manifests", ()), told.get("config", {})]
                    waiting += [each.get("digest", "") for each in below]
                    break


def exported_blobs(client: RecordingClient, image: str) -> Generator[bytes, None, None]:
    """Yield what describes an image from the daemon's export of it, of which the layers are let go of."""
    pieces = client.get_image(image, chunk_size=CHUNK)
    with contextlib.closing(pieces), tarfile.open(fileobj=PieceReader(pieces), mode="r|", bufsize=CHUNK) as archive:
        for entry in archive:
            content = archive.extractfile(entry) if entry.isreg() and entry.size <= _MAX_DESCRIPTION else None
            if content is not None:
                yield content.read()


def _archive(
    reference: str, description: Mapping[str, Any], layers: list[Layer], files: Mapping[str, Path]
) -> Iterator[bytes]:
    """Yield the parts of an image as `load` takes it."""
    config = json.dumps(description).encode()
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": _MANIFEST, "config": _blob(_CONFIG, config), "layers": layers}
    ).encode()
    name, tag = f"docker.io/{reference}", reference.rpartition(":")[2]
    named = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
    index = {
        "schemaVersion": 2,
        "mediaType": _INDEX,
        "manifests": [_blob(_MANIFEST, manifest) | {"annotations": named}],
    }
    texts = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        _place(_digest(config)): config,
        _place(_digest(manifest)): manifest,
        "index.json": json.dumps(index).encode(),
    }
    for path, content in texts.items():
        yield from member(path, len(content), io.BytesIO(content))
    for digest, file in files.items():
        blob: IO[bytes]
        with file.open("rb") as blob:
            yield from member(_place(digest), file.stat().st_size, blob)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _blob(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _place(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"
