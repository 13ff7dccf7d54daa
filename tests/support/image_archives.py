"""Archives of images as tests need them: layers of their own members, in the formats of `docker save` and of OCI."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchflow.planes.sandbox.local.ready.description import ARCHITECTURE


class Member(tarfile.TarInfo):
    """A member of a layer, with what is in it."""

    content = b""


def member(name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, **fields: Any) -> Member:
    """Return a member of a layer. fields: of its header."""
    info = Member(name)
    info.type, info.size, info.mode = kind, len(content), 0o644
    for key, value in fields.items():
        setattr(info, key, value)
    info.content = content
    return info


def directory(name: str, mode: int = 0o755) -> Member:
    return member(name, kind=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str) -> Member:
    return member(name, kind=tarfile.SYMTYPE, linkname=target)


def packed(members: Iterable[Member]) -> bytes:
    """Return an archive of members, in their order."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info in members:
            archive.addfile(info, io.BytesIO(info.content))
    return file.getvalue()


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def description(layers: Sequence[bytes], **config: Any) -> dict[str, Any]:
    """Return the configuration file of an image."""
    rootfs = {"type": "layers", "diff_ids": [digest(layer) for layer in layers]}
    return {"architecture": ARCHITECTURE, "os": "linux", "config": config, "rootfs": rootfs}


def docker_archive(file: Path, layers: Sequence[bytes], told: dict[str, Any], *tags: str) -> Path:
    """Write an archive as `docker save` does. tags: of the image; several archives of one image otherwise."""
    config = json.dumps(told).encode()
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = json.dumps([{"Config": "config.json", "RepoTags": list(tags) or None, "Layers": names}]).encode()
    files = [*zip(names, layers, strict=True), ("config.json", config), ("manifest.json", manifest)]
    file.write_bytes(packed(member(name, content) for name, content in files))
    return file


def oci_archive(file: Path, layers: Sequence[bytes], told: dict[str, Any], name: str, *, indexed: bool = False) -> Path:
    """Write an archive in the OCI format, with compressed layers. indexed: below an index of platforms."""
    blobs: dict[str, bytes] = {}

    def add(content: bytes, **fields: Any) -> dict[str, Any]:
        blobs[digest(content)] = content
        return {"digest": digest(content), "size": len(content), **fields}

    manifest = {"config": add(json.dumps(told).encode()), "layers": [add(gzip.compress(layer)) for layer in layers]}
    top = add(json.dumps(manifest).encode(), mediaType="application/vnd.oci.image.manifest.v1+json")
    if indexed:
        here = {"os": "linux", "architecture": ARCHITECTURE}
        other = {**top, "digest": digest(b"other"), "platform": {"os": "linux", "architecture": "pdp11"}}
        index = {"manifests": [other, {**top, "platform": here}]}
        top = add(json.dumps(index).encode(), mediaType="application/vnd.oci.image.index.v1+json")
    top["annotations"] = {"org.opencontainers.image.ref.name": name}
    files = [(f"blobs/sha256/{key.removeprefix('sha256:')}", content) for key, content in blobs.items()]
    files.append(("index.json", json.dumps({"manifests": [top]}).encode()))
    file.write_bytes(packed(member(name, content) for name, content in files))
    return file
