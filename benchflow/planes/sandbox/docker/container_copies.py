"""Containers created like others: the children of a fork, and the successor of a container in a restore.

The configuration is the one that `inspect` returns for the original, with another image.
"""

from __future__ import annotations

from typing import Any

from benchflow.planes.sandbox.docker.container_config import make_no_image_error
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon
from benchflow.planes.sandbox.docker.translation import NotFoundError
from benchflow.planes.sandbox.driven.engine_scripts import ENGINE_DIRECTORY

HANDLE_LABEL = "benchflow.handle"
"""Label of a container that has replaced another in a restore: the handle of its sandbox."""


def read_handle(container: dict[str, Any]) -> str:
    """Return the handle of a container's sandbox: the id of its first container.

    Args:
        container: `inspect` data of the container, or its row in a list.
    """
    labels = container["Labels"] if "Labels" in container else container["Config"]["Labels"]
    return str((labels or {}).get(HANDLE_LABEL) or container["Id"])


async def create_child(engine: DockerDaemon, parent: dict[str, Any], image: str, name: str) -> str:
    """Create a container like another, without starting it, and return its id. The two share nothing writable.

    Args:
        engine: The daemon.
        parent: `inspect` data of the original.
        image: Image of the new container.
        name: Name of the new container.

    Raises:
        SandboxStartError: The image is missing.
        Conflict: The name is taken.
    """
    labels = {key: value for key, value in (parent["Config"]["Labels"] or {}).items() if key != HANDLE_LABEL}
    mounts = [_own(mount) for mount in _mounts(parent) if mount["Type"] != "bind" or mount.get("ReadOnly")]
    return await _create(engine, parent, image, name, labels, mounts)


async def create_successor(engine: DockerDaemon, container: dict[str, Any], image: str, name: str) -> str:
    """Create a container to replace another in the same sandbox, without starting it, and return its id.

    It has the engine's volume of the original, and the sandbox's handle as a label.

    Args:
        engine: The daemon.
        container: `inspect` data of the original.
        image: Image of the new container.
        name: Name of the new container.

    Raises:
        SandboxStartError: The image is missing.
        Conflict: The name is taken.
    """
    labels = (container["Config"]["Labels"] or {}) | {HANDLE_LABEL: read_handle(container)}
    volume = find_engine_volume(container)
    mounts = [
        mount | {"Source": volume} if mount["Target"] == ENGINE_DIRECTORY else mount for mount in _mounts(container)
    ]
    return await _create(engine, container, image, name, labels, mounts)


def find_engine_volume(container: dict[str, Any]) -> str | None:
    """Return the name of a container's volume for the engine's files, from `inspect` data; None if it has none."""
    for mount in container["Mounts"]:
        if mount["Destination"] == ENGINE_DIRECTORY and mount["Type"] == "volume":
            return str(mount["Name"])
    return None


def _mounts(container: dict[str, Any]) -> list[dict[str, Any]]:
    return list(container["HostConfig"].get("Mounts") or ())


def _own(mount: dict[str, Any]) -> dict[str, Any]:
    """Return a mount without the name of its volume, so that the daemon creates a new volume."""
    return mount if mount["Type"] == "bind" else {key: value for key, value in mount.items() if key != "Source"}


async def _create(
    engine: DockerDaemon,
    like: dict[str, Any],
    image: str,
    name: str,
    labels: dict[str, str],
    mounts: list[dict[str, Any]],
) -> str:
    """Create a container with the configuration of `like`, except for image, labels and mounts, and return its id."""
    host = like["HostConfig"] | {"Mounts": mounts}
    body = like["Config"] | {"Image": image, "Labels": labels, "HostConfig": host}
    try:
        made = await engine.call(lambda client: client.create_container_from_config(body, name))  # type: ignore[no-untyped-call]

    except NotFoundError as error:
        raise make_no_image_error(image, error) from error
    return str(made["Id"])
