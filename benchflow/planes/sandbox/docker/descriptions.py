"""Images described anew over layers that the daemon has, so that nothing of a container's own is in them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

from benchflow.errors import SandboxError
from benchflow.planes.sandbox.archives import entry
from benchflow.planes.sandbox.docker.engine import RecordingClient
from benchflow.planes.sandbox.docker.translation import raise_if_full
from benchflow.planes.sandbox.docker.uppers import EmptyLayer, comment, copied_numbers


def describe(
    client: RecordingClient,
    reference: str,
    like: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    copied: Sequence[int] | None = None,
    top: EmptyLayer | None = None,
) -> None:
    """Have the daemon make an image of the layers of another, with a configuration of its own.

    copied: which of the layers were filled past the daemon, if not those that the other's comment has. top: goes over
    them, to be filled too.
    """
    layers = list(like["RootFS"]["Layers"])
    numbers = tuple(copied_numbers(like) if copied is None else copied)
    if top is not None:
        numbers = (*numbers, len(layers))
        layers.append(top.digest)
    description = json.dumps(description_of(like, config, layers, comment(reference, numbers))).encode()
    name = f"{hashlib.sha256(description).hexdigest()}.json"
    files = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = json.dumps([{"Config": name, "RepoTags": [reference], "Layers": files}]).encode()
    # The other layers are left out: the daemon looks for them among its own first.
    members = {name: description, "manifest.json": manifest} | ({files[-1]: top.archive} if top else {})
    said = list(client.load_image(_packed(members)))  # type: ignore[no-untyped-call]
    wrong = [line["error"] for line in said if "error" in line]
    if wrong:
        raise_if_full(str(wrong[0]))
        raise SandboxError(
            f"the daemon does not describe an image anew over layers that it has: {wrong[0]}",
            key="snapshot",
        )


def description_of(like: Mapping[str, Any], config: Mapping[str, Any], layers: list[str], note: str) -> dict[str, Any]:
    """Return the description of an image, as the image format has it. It takes nothing else from another than its kind.

    Args:
        like: The other, as `inspect` tells of it.
        layers: The digests of the layers' archives, from below.
        note: Unique: images of the same description would be one, and a name of it could be taken for another's.
    """
    return {
        "architecture": like["Architecture"],
        "os": like["Os"],
        "created": like["Created"],
        "comment": note,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": layers},
        "history": [],
    }


def _packed(members: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in members.items():
            info = entry(name, 0o644, (0, 0))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()
