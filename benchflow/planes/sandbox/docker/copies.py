"""Containers made like others: the children of a fork, and the one that a restore puts in a container's place.

What a container was made with, the daemon tells; the copy is asked for in the same words, with other files below it.
"""

from __future__ import annotations

from typing import Any

from benchflow.planes.sandbox.docker.engine import Engine
from benchflow.planes.sandbox.docker.launch import no_image
from benchflow.planes.sandbox.docker.translation import NotFound
from benchflow.planes.sandbox.driven.scripts import ROOM

HANDLE_LABEL = "benchflow.handle"
"""Of a container that a restore has put in the place of another: the handle of its sandbox."""


def handle_of(container: dict[str, Any]) -> str:
    """What its sandbox is known by: the id of its first container. container: a description, or a row of a list."""
    labels = container["Labels"] if "Labels" in container else container["Config"]["Labels"]
    return str((labels or {}).get(HANDLE_LABEL) or container["Id"])


async def create_child(engine: Engine, parent: dict[str, Any], image: str, name: str) -> str:
    """Make a container like another, not started; its id. It shares nothing with it that can be written."""
    labels = {key: value for key, value in (parent["Config"]["Labels"] or {}).items() if key != HANDLE_LABEL}
    mounts = [_own(mount) for mount in _mounts(parent) if mount["Type"] != "bind" or mount.get("ReadOnly")]
    return await _create(engine, parent, image, name, labels, mounts)


async def create_successor(engine: Engine, container: dict[str, Any], image: str, name: str) -> str:
    """Make a container to be the same sandbox from another image, not started; its id."""
    labels = (container["Config"]["Labels"] or {}) | {HANDLE_LABEL: handle_of(container)}
    volume = room_of(container)
    mounts = [mount | {"Source": volume} if mount["Target"] == ROOM else mount for mount in _mounts(container)]
    return await _create(engine, container, image, name, labels, mounts)


def room_of(container: dict[str, Any]) -> str | None:
    """The volume that holds the engine's own files in a container."""
    for mount in container["Mounts"]:
        if mount["Destination"] == ROOM and mount["Type"] == "volume":
            return str(mount["Name"])
    return None


def _mounts(container: dict[str, Any]) -> list[dict[str, Any]]:
    return list(container["HostConfig"].get("Mounts") or ())


def _own(mount: dict[str, Any]) -> dict[str, Any]:
    """A mount without the name of its volume, so that the daemon makes another."""
    return mount if mount["Type"] == "bind" else {key: value for key, value in mount.items() if key != "Source"}


async def _create(
    engine: Engine,
    like: dict[str, Any],
    image: str,
    name: str,
    labels: dict[str, str],
    mounts: list[dict[str, Any]],
) -> str:
    host = like["HostConfig"] | {"Mounts": mounts}
    body = like["Config"] | {"Image": image, "Labels": labels, "HostConfig": host}
    try:
        made = await engine.call(lambda client: client.create_container_from_config(body, name))  # type: ignore[no-untyped-call]

    except NotFound as error:
        raise no_image(image, error) from error
    return str(made["Id"])
