"""The files of a container, as of one moment, as an image that else is the container's own image.

A container stands still while what has changed is copied. Where the daemon's files are this host's, they are copied
here, into a layer that the daemon was given without files. Else the daemon makes an image, which has the container's
configuration, with its environment and labels; so another image is described over the same layers, which the daemon has
already. Either way it has the configuration of the image that the container began with.

There are three kinds of names, each with the stack's. A `snapshot` is kept until it is removed. A `fork` is what
sandboxes begin with, and goes with the last of them. A `part` is one while it is being made.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from docker.errors import APIError
from docker.errors import NotFound as DaemonNotFound

from benchflow.contracts.images import ImageRef
from benchflow.errors import SandboxError, UnsupportedFeatureError
from benchflow.paths import state_dir
from benchflow.planes.sandbox.cancellation import see_through
from benchflow.planes.sandbox.docker import uppers
from benchflow.planes.sandbox.docker.descriptions import describe
from benchflow.planes.sandbox.docker.engine import Engine, RecordingClient
from benchflow.planes.sandbox.docker.images import Images
from benchflow.planes.sandbox.docker.launch import PROGRAMS
from benchflow.planes.sandbox.docker.networks import STACK_LABEL
from benchflow.planes.sandbox.docker.oci import describe_over
from benchflow.planes.sandbox.docker.records import capturing
from benchflow.planes.sandbox.docker.translation import Conflict, NotFound, space_error
from benchflow.planes.sandbox.driven.scripts import ROOM
from benchflow.planes.sandbox.records import file_lock
from benchflow.planes.sandbox.timeouts import AwakeDeadline

T = TypeVar("T")

log = logging.getLogger(__name__)

SNAPSHOT, FORK, PART = "benchflow/snapshot", "benchflow/fork", "benchflow/part"

MOST_LAYERS = 100
"""The daemon makes no image of more than 125."""

_PATIENCE = 30.0
"""Seconds for the processes of a container to come to stand."""

_LOOK_EVERY = 0.01

PART_LABEL = "benchflow.part"
"""Of a container that is there for its files alone, while an image is made from them."""


class Captures:
    """The states of containers that one daemon keeps. info: asks what the daemon says of itself."""

    def __init__(self, engine: Engine, images: Images, info: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._engine = engine
        self._images = images
        self._info = info
        self._has_files = True

    @contextlib.asynccontextmanager
    async def using(self, stack: str) -> AsyncIterator[None]:
        """While this is held, nothing counts as left over that the stack's captures have made."""
        async with file_lock(_use_lock(stack), shared=True):
            yield

    async def keep(self, container: dict[str, Any], name: str) -> ImageRef:
        """The snapshot of a name, taken unless it is there. container: as the daemon describes it."""
        reference = snapshot_reference(_stack_of(container), name)

        async def make() -> ImageRef:
            found = await self._images.find(reference, built=True)
            if found is None:
                await self._take(container, reference)
                found = await self._images.find(reference, built=True)
            if found is None:
                raise SandboxError(f"the snapshot {name} was removed while it was taken")
            return found

        found = await self._images.find(reference, built=True)
        return found if found is not None else await self._images.locked(reference, make)

    async def take(self, container: dict[str, Any]) -> str:
        """An image without a name that anybody knows. It goes with the last container that is made from it."""
        reference = f"{FORK}:{_stack_of(container)}-{secrets.token_hex(8)}"
        await self._take(container, reference)
        return reference

    async def without_volumes(self, reference: str, stack: str) -> str:
        """An image like another that declares no VOLUME: what lies on a volume is in no image."""
        try:
            found = await self._found(reference)
        except NotFound:
            return reference
        if not (found["Config"] or {}).get("Volumes"):
            return reference
        other = f"{FORK}:{short_of(stack)}-{secrets.token_hex(8)}"
        try:
            await self._describe(other, found, found["Config"] | {"Volumes": None})
        except SandboxError as error:
            log.info("%s keeps its volumes: %s", reference, error.message)
            return reference
        return other

    async def release(self, image: str) -> None:
        """Remove an image that sandboxes began with, if it is one of this module's without a name, and unused."""
        with contextlib.suppress(NotFound):
            found = await self._found(image)
            for name in found["RepoTags"]:
                if name.startswith(f"{FORK}:"):
                    await self._remove(name)

    async def remove(self, reference: str) -> None:
        """Remove an image. A snapshot that sandboxes were started from loses its name, and goes with them."""
        with contextlib.suppress(NotFound):
            try:
                await self._engine.call(lambda client: client.remove_image(reference))
            except Conflict:
                if not reference.startswith(f"{SNAPSHOT}:"):
                    raise
                stack = reference.partition(":")[2].partition("-")[0]
                await self._name(reference, f"{FORK}:{stack}-{secrets.token_hex(8)}")
                await self._engine.call(lambda client: client.remove_image(reference, force=True))

    async def remove_all(self, prefix: str) -> None:
        """Remove the snapshots whose names begin so."""
        for row in await self._engine.call(lambda client: client.images(name=SNAPSHOT)):
            for name in row["RepoTags"] or ():
                if name.partition(":")[2].partition("-")[2].startswith(prefix):
                    await self.remove(name)

    async def tidy(self, stack: str) -> None:
        """Remove what those have left that died at it, and images without a name that nothing needs."""
        async with file_lock(_use_lock(stack), wait=False) as held:
            if not held:
                return
            label = {"label": [f"{STACK_LABEL}={stack}", PART_LABEL]}
            for row in await self._engine.call(lambda client: client.containers(all=True, filters=label)):
                with contextlib.suppress(SandboxError):
                    await self._engine.call(lambda client, it=row: client.remove_container(it["Id"], force=True))  # type: ignore[misc]
            kinds = {"reference": [FORK, PART]}
            for row in await self._engine.call(lambda client: client.images(filters=kinds)):
                for name in row["RepoTags"] or ():
                    if name.startswith((f"{FORK}:{short_of(stack)}-", f"{PART}:{short_of(stack)}-")):
                        await self._remove(name)

    # --- taking --------------------------------------------------------------------------------------

    async def _take(self, container: dict[str, Any], reference: str) -> None:
        _refuse_volumes(container)
        own = await self._found(container["Image"])
        part = f"{PART}:{_stack_of(container)}-{secrets.token_hex(8)}"
        try:
            by_copy = await self._copy(container, own, part)
            if not by_copy:
                await self._commit(container, part)
            taken = await self._found(part)
            if len(taken["RootFS"]["Layers"]) > MOST_LAYERS:
                await self._flatten(container, part)
                taken = await self._found(f"{part}-flat")
                await self._describe(reference, taken, own["Config"])
            elif by_copy:
                await self._name(part, reference)
            else:
                await self._describe(reference, taken, own["Config"], uppers.copied_numbers(own))
        finally:
            for name in (part, f"{part}-flat"):
                await self._remove(name)

    async def _copy(self, container: dict[str, Any], own: dict[str, Any], part: str) -> bool:
        """Copy what has changed past the daemon; False where that can't be done. own: the container's image."""
        if not self._has_files or not self._engine.is_local or not uppers.may_copy(await self._info()):
            return False

        def lay(client: RecordingClient) -> Path:
            describe(client, part, own, own["Config"], top=uppers.EmptyLayer())
            return uppers.directory_of(client.inspect_image(part))  # type: ignore[no-untyped-call]

        def copy(client: RecordingClient) -> OSError | None:
            # Both take their time, and most of it is waiting.
            with ThreadPoolExecutor(1) as beside:
                laying = beside.submit(lay, client)
                with _paused(client, container["Id"]):
                    return uppers.fill(laying.result(), uppers.directory_of(container))

        error = await self._alone(container, copy)
        if error is None:
            return True
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise space_error(f"for a copy of what the sandbox has changed: {error.strerror}") from error
        log.warning("snapshots are left to the daemon from now on, since its files cannot be copied here: %s", error)
        self._has_files = False
        await self._remove(part)
        return False

    async def _commit(self, container: dict[str, Any], part: str) -> None:
        """Let the daemon copy what has changed."""
        repository, _, tag = part.partition(":")

        def copy(client: RecordingClient) -> None:
            with _paused(client, container["Id"]):
                client.commit(container["Id"], repository=repository, tag=tag, pause=False)

        await self._alone(container, copy)

    async def _alone(self, container: dict[str, Any], copy: Callable[[RecordingClient], T]) -> T:
        """Have it copied, while nobody else copies it or starts a command in it."""
        async with capturing(container["Id"]):
            # Nobody else may begin while it is paused, whatever has become of this.
            return await see_through(self._engine.call(copy))

    async def _found(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._engine.call(lambda client: client.inspect_image(name))  # type: ignore[no-untyped-call]
        return found

    async def _flatten(self, container: dict[str, Any], part: str) -> None:
        """The same files as one layer: what a container of the image would see, which never runs."""
        labels = {STACK_LABEL: container["Config"]["Labels"].get(STACK_LABEL, ""), PART_LABEL: ""}
        repository, _, tag = f"{part}-flat".partition(":")

        def copy(client: RecordingClient) -> None:
            made = client.create_container(part, ["true"], labels=labels)["Id"]
            try:
                client.import_image(src=client.export(made), stream_src=True, repository=repository, tag=tag)
            finally:
                client.remove_container(made, force=True, v=True)

        await self._engine.follow(copy)

    async def _describe(
        self, reference: str, like: dict[str, Any], config: dict[str, Any], copied: Sequence[int] | None = None
    ) -> None:
        info = await self._info()
        if uppers.keeps_images_elsewhere(info):
            store = Path(info["DockerRootDir"]) if self._engine.is_local else None
            await self._engine.follow(lambda client: describe_over(client, reference, like, config, store))
        else:
            await self._engine.call(lambda client: describe(client, reference, like, config, copied=copied))

    async def _name(self, reference: str, other: str) -> None:
        repository, _, tag = other.partition(":")
        await self._engine.call(lambda client: client.tag(reference, repository, tag))

    async def _remove(self, name: str) -> None:
        """Remove the image of a name, unless a container needs it."""
        with contextlib.suppress(NotFound, Conflict):
            await self._engine.call(lambda client: client.remove_image(name))


@contextlib.contextmanager
def _paused(client: RecordingClient, container: str) -> Iterator[None]:
    pause(client, container)
    try:
        yield
    finally:
        # Fails where it has not stood still all the time.
        client.unpause(container)


def pause(client: RecordingClient, container: str) -> None:
    """Stop all that runs in a container. Left to do so by itself, the daemon copies also when it didn't succeed."""
    giving_up = AwakeDeadline(_PATIENCE)
    while True:
        _await_entries(client, container, giving_up)
        try:
            client.pause(container)
            return
        except APIError as error:
            said = str(error.explanation)
            if "already paused" in said:
                # By somebody who has died at it: nobody else may be at it now.
                return
            # On a busy machine the processes don't come to stand in the little time that they are given.
            if "freeze" not in said or giving_up.is_over():
                raise
            time.sleep(_LOOK_EVERY)


def _await_entries(client: RecordingClient, container: str, giving_up: AwakeDeadline) -> None:
    """Wait for commands that are coming up: paused on its way in, one would keep the container paused for ever.

    No other may begin meanwhile. The daemon answers when it has begun to start a command, and knows its pid at the end.
    """
    entering = list(client.inspect_container(container)["ExecIDs"] or ())
    while entering and not giving_up.is_over():
        entering = [each for each in entering if _is_entering(client, each)]
        if entering:
            time.sleep(_LOOK_EVERY)


def _is_entering(client: RecordingClient, exec_id: str) -> bool:
    try:
        state = client.exec_inspect(exec_id)
    except DaemonNotFound:
        return False
    return bool(state["Running"]) and not state["Pid"]


def _refuse_volumes(container: dict[str, Any]) -> None:
    volumes = [mount["Destination"] for mount in container["Mounts"] if mount["Type"] == "volume"]
    if others := sorted(set(volumes) - {ROOM, PROGRAMS}):
        raise UnsupportedFeatureError(
            f"the files in {', '.join(others)} would not be in it: the image declares a VOLUME there",
            key="snapshot",
            remedy="keep them elsewhere, or leave VOLUME out of the Dockerfile",
        )


def snapshot_reference(stack: str, name: str) -> str:
    """The image of a snapshot. stack: as `short_of` has it."""
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[-80:]
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{SNAPSHOT}:{stack}-{readable}-{digest}"


def _stack_of(container: dict[str, Any]) -> str:
    return short_of((container["Config"]["Labels"] or {}).get(STACK_LABEL, ""))


def short_of(stack: str) -> str:
    """A stack's part of the names of images, which may not hold everything that a stack's may."""
    return hashlib.sha256(stack.encode()).hexdigest()[:12]


def _use_lock(stack: str) -> Path:
    return state_dir() / "locks" / f"captures-{short_of(stack)}.lock"
