"""New image descriptions over layers that the daemon has, so that nothing of a container's configuration is in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchflow.errors import SandboxError
from benchflow.planes.sandbox.docker.docker_daemon import RecordingClient
from benchflow.planes.sandbox.docker.layers import load_image, stream_image
from benchflow.planes.sandbox.docker.uppers import EmptyLayer, format_comment, parse_copied_numbers


def describe_image(
    client: RecordingClient,
    reference: str,
    like: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    copied: Sequence[int] | None = None,
    top: EmptyLayer | None = None,
) -> None:
    """Have the daemon create an image from the layers of another one and a configuration.

    Args:
        client: The daemon's client.
        reference: Name of the new image.
        like: `inspect` data of the other image.
        config: Configuration of the new image, as `inspect` has it under `Config`.
        copied: Indices of the layers that were filled past the daemon; by default those of the other image's comment.
        top: Empty layer to put on top, which the caller will fill past the daemon.

    Raises:
        SandboxSpaceError: The daemon's disk is full.
        SandboxError: The daemon refuses the image.
    """
    layers = list(like["RootFS"]["Layers"])
    numbers = tuple(parse_copied_numbers(like) if copied is None else copied)
    if top is not None:
        numbers = (*numbers, len(layers))
        layers.append(top.digest)
    description = json.dumps(make_description(like, config, layers, format_comment(reference, numbers))).encode()
    files = {len(layers) - 1: top.archive} if top is not None else {}
    if wrong := load_image(client, stream_image(description, reference, len(layers), files)):
        raise SandboxError(
            f"the daemon does not describe an image anew over layers that it has: {wrong}",
            key="snapshot",
        )


def make_description(
    like: Mapping[str, Any], config: Mapping[str, Any], layers: list[str], note: str
) -> dict[str, Any]:
    """Return the configuration file of an image, as the image format specifies it.

    Args:
        like: `inspect` data of an image, for architecture, system and creation time only.
        config: The `config` section.
        layers: Digests of the layers' archives, from the bottom up.
        note: Comment, which must be unique: images of equal descriptions would be one, and could share their names.
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
