"""Manifests in containerd's image store, into which a registry may have put anything."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow.planes.sandbox.docker import oci

Put = Callable[[Any], str]

ARCHIVES = ["sha256:" + "a" * 64]
LAYERS = [{"digest": "sha256:" + "b" * 64, "size": 1}]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Puts a blob into the store, and returns its digest."""
    place = tmp_path / "containerd/daemon/io.containerd.content.v1.content/blobs/sha256"
    place.mkdir(parents=True)

    def write(told: Any) -> str:
        blob = told if isinstance(told, bytes) else json.dumps(told).encode()
        name = hashlib.sha256(blob).hexdigest()
        (place / name).write_bytes(blob)
        return f"sha256:{name}"

    return write


@pytest.fixture
def manifest(put: Put) -> str:
    return put({"config": {"digest": put({"config": {}, "rootfs": {"diff_ids": ARCHIVES}})}, "layers": LAYERS})


def found(store: Path, image: str) -> Any:
    return oci.find_layers(oci.read_stored_blobs(store, image), ARCHIVES)


def test_an_image_is_a_manifest_or_leads_to_it(tmp_path: Path, put: Put, manifest: str) -> None:
    other = put({"config": {"digest": put({"rootfs": {"diff_ids": []}})}, "layers": []})
    missing = "sha256:" + "c" * 64
    nested = put({"manifests": [{"digest": missing}, {"digest": other}, {"digest": manifest}]})
    for image in (manifest, nested, put({"manifests": [{"digest": nested}]})):
        assert found(tmp_path, image) == LAYERS
    assert found(tmp_path, other) is None and found(tmp_path, missing) is None


@pytest.mark.parametrize(
    "hostile", [None, 1, [], {}, "x", {"digest": 1}, b"[" * 100_000, b"\xff", b""], ids=lambda it: repr(it)[:9]
)
def test_what_is_none_is_passed_over(tmp_path: Path, put: Put, manifest: str, hostile: Any) -> None:
    blob = put(hostile)
    for told in (
        {"manifests": [{"digest": blob}, {"digest": manifest}]},
        {"manifests": [{"digest": manifest}], "config": {"digest": blob}},
    ):
        assert found(tmp_path, put(told)) == LAYERS
    assert found(tmp_path, put({"manifests": hostile if not isinstance(hostile, bytes) else 0})) is None


def test_no_file_is_read_but_blobs_that_are_what_they_are_called(tmp_path: Path, put: Put, manifest: str) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"{}")
    for digest in (f"sha256:{outside}", "sha256:../../../../../outside", "sha256:../../../../../../dev/zero"):
        assert list(oci.read_stored_blobs(tmp_path, digest)) == []
    name = manifest.removeprefix("sha256:")
    (file,) = tmp_path.rglob(name)
    file.write_bytes(file.read_bytes() + b" ")
    assert found(tmp_path, manifest) is None
