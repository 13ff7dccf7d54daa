"""Captures: the files of a container, as of one moment, as an image with the configuration of the container's image.

The container is paused while its changes are copied. If this process may read and write the daemon's files, it copies
them itself, into a layer that the daemon was given without files. Else the daemon commits an image, which has the
container's configuration, with its environment and labels; so a second image is described over the same layers, which
the daemon has already, with the configuration of the container's image.

There are three kinds of image names, each with a hash of the stack. A `snapshot` exists until it is removed. A `fork`
is the image of forked sandboxes, and is removed with the last of them. A `part` is one that is being made.
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
from benchflow.host_files import hold_lock_async
from benchflow.paths import find_state_dir
from benchflow.planes.sandbox.cancellation import run_to_completion
from benchflow.planes.sandbox.docker import uppers
from benchflow.planes.sandbox.docker.container_config import PROGRAMS, read_label
from benchflow.planes.sandbox.docker.container_records import lock_for_capture
from benchflow.planes.sandbox.docker.descriptions import describe_image
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon, RecordingClient
from benchflow.planes.sandbox.docker.docker_images import Images
from benchflow.planes.sandbox.docker.docker_networks import STACK_LABEL
from benchflow.planes.sandbox.docker.oci import describe_over
from benchflow.planes.sandbox.docker.translation import ConflictError, NotFoundError, make_space_error
from benchflow.planes.sandbox.driven.engine_scripts import ENGINE_DIRECTORY
from benchflow.planes.sandbox.timeouts import AwakeDeadline

T = TypeVar("T")

log = logging.getLogger(__name__)

SNAPSHOT, FORK, PART = "benchflow/snapshot", "benchflow/fork", "benchflow/part"

MAX_LAYERS = 100
"""Maximum number of layers of a capture, beyond which it is flattened to one. The daemon's own limit is 125."""

_PAUSE_TIMEOUT = 30.0
"""Seconds in which the processes of a container must come to a stop for a pause."""

_POLL_INTERVAL = 0.01
"""Poll interval in seconds."""

PART_LABEL = "benchflow.part"
"""Label of a container that never runs and exists only while an image is made from its files."""


class Captures:
    """The captures of one daemon."""

    def __init__(self, engine: DockerDaemon, images: Images, info: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Make it.

        Args:
            engine: The daemon.
            images: Its images.
            info: Returns the daemon's `info`.
        """
        self._engine = engine
        self._images = images
        self._info = info
        self._has_files = True

    @contextlib.asynccontextmanager
    async def hold(self, stack: str) -> AsyncIterator[None]:
        """Hold a shared lock in the block, during which `tidy` removes no capture of the stack as a leftover."""
        async with hold_lock_async(_lock(stack), shared=True):
            yield

    async def take_snapshot(self, container: dict[str, Any], name: str) -> ImageRef:
        """Return the snapshot with a name, taken now unless it exists.

        Args:
            container: `inspect` data of the container.
            name: Name of the snapshot, unique in the stack.
        """
        reference = format_snapshot_reference(hash_stack(read_label(container, STACK_LABEL)), name)
        return await self._images.find_or_make(reference, lambda: self._take(container, reference))

    async def take_fork(self, container: dict[str, Any]) -> str:
        """Capture a container as an image for forks and return its reference.

        The name is random. The image is removed with the last container that was made from it.

        Args:
            container: `inspect` data of the container.
        """
        reference = f"{FORK}:{hash_stack(read_label(container, STACK_LABEL))}-{secrets.token_hex(8)}"
        await self._take(container, reference)
        return reference

    async def copy_without_volumes(self, reference: str, stack: str) -> str:
        """Return the name of a copy of an image without its VOLUMEs, since files on a volume are in no capture.

        An image that declares none, is missing, or can't be described anew is returned as it is.

        Args:
            reference: Name of the image.
            stack: Id of the stack to which the copy belongs.
        """
        try:
            found = await self._engine.inspect_image(reference)
        except NotFoundError:
            return reference
        if not (found["Config"] or {}).get("Volumes"):
            return reference
        other = f"{FORK}:{hash_stack(stack)}-{secrets.token_hex(8)}"
        try:
            await self._describe(other, found, found["Config"] | {"Volumes": None})
        except SandboxError as error:
            log.info("%s keeps its volumes: %s", reference, error.message)
            return reference
        return other

    async def release(self, image: str) -> None:
        """Remove an image that was made for forks, unless a container still needs it; any other image is left alone."""
        with contextlib.suppress(NotFoundError):
            found = await self._engine.inspect_image(image)
            for name in found["RepoTags"]:
                if name.startswith(f"{FORK}:"):
                    await self._remove(name)

    async def remove(self, reference: str) -> None:
        """Remove an image. Missing is success.

        A snapshot that containers still use gets the name of a `fork`, so that it is removed with the last of them.
        """
        with contextlib.suppress(NotFoundError):
            try:
                await self._engine.call(lambda client: client.remove_image(reference))
            except ConflictError:
                if not reference.startswith(f"{SNAPSHOT}:"):
                    raise
                stack = reference.partition(":")[2].partition("-")[0]
                await self._tag(reference, f"{FORK}:{stack}-{secrets.token_hex(8)}")
                await self._engine.call(lambda client: client.remove_image(reference, force=True))

    async def remove_all(self, prefix: str) -> None:
        """Remove the snapshots of all stacks whose names begin with `prefix`.

        It is compared with the readable part of image names: the last 80 characters of a snapshot's name, with `-` for
        characters other than letters, digits, `.`, `_` and `-`.
        """
        for row in await self._engine.call(lambda client: client.images(name=SNAPSHOT)):
            for name in row["RepoTags"] or ():
                if name.partition(":")[2].partition("-")[2].startswith(prefix):
                    await self.remove(name)

    async def tidy(self, stack: str) -> None:
        """Remove leftovers of dead processes and unused fork images of the stack. Do nothing while `hold` is held."""
        async with hold_lock_async(_lock(stack), wait=False) as held:
            if not held:
                return
            label = {"label": [f"{STACK_LABEL}={stack}", PART_LABEL]}
            for row in await self._engine.call(lambda client: client.containers(all=True, filters=label)):
                with contextlib.suppress(SandboxError):
                    await self._engine.call(lambda client, it=row: client.remove_container(it["Id"], force=True))  # type: ignore[misc]
            kinds = {"reference": [FORK, PART]}
            for row in await self._engine.call(lambda client: client.images(filters=kinds)):
                for name in row["RepoTags"] or ():
                    if name.startswith((f"{FORK}:{hash_stack(stack)}-", f"{PART}:{hash_stack(stack)}-")):
                        await self._remove(name)

    # --- taking --------------------------------------------------------------------------------------

    async def _take(self, container: dict[str, Any], reference: str) -> None:
        """Capture a container under an image name, by copy if possible, else by commit."""
        _refuse_volumes(container)
        own = await self._engine.inspect_image(container["Image"])
        part = f"{PART}:{hash_stack(read_label(container, STACK_LABEL))}-{secrets.token_hex(8)}"
        try:
            by_copy = await self._copy(container, own, part)
            if not by_copy:
                await self._commit(container, part)
            taken = await self._engine.inspect_image(part)
            if len(taken["RootFS"]["Layers"]) > MAX_LAYERS:
                await self._flatten(container, part)
                taken = await self._engine.inspect_image(f"{part}-flat")
                await self._describe(reference, taken, own["Config"])
            elif by_copy:
                await self._tag(part, reference)
            else:
                await self._describe(reference, taken, own["Config"], uppers.parse_copied_numbers(own))
        finally:
            for name in (part, f"{part}-flat"):
                await self._remove(name)

    async def _copy(self, container: dict[str, Any], own: dict[str, Any], part: str) -> bool:
        """Copy the container's changes past the daemon into the image `part`. Return False if that is not possible.

        Args:
            container: `inspect` data of the container.
            own: `inspect` data of its image.
            part: Name of the image to make.
        """
        if not self._has_files or not self._engine.is_local or not uppers.may_copy(await self._info()):
            return False

        def lay(client: RecordingClient) -> Path:
            describe_image(client, part, own, own["Config"], top=uppers.EmptyLayer())
            return uppers.find_directory(client.inspect_image(part))  # type: ignore[no-untyped-call]

        def copy(client: RecordingClient) -> OSError | None:
            # Making the layer and pausing are slow, and mostly waiting: they run side by side.
            with ThreadPoolExecutor(1) as beside:
                laying = beside.submit(lay, client)
                with _pause_meanwhile(client, container["Id"]):
                    return uppers.fill_layer(laying.result(), uppers.find_directory(container))

        error = await self._run_locked(container, copy)
        if error is None:
            return True
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise make_space_error(f"for a copy of what the sandbox has changed: {error.strerror}") from error
        log.warning("snapshots are left to the daemon from now on, since its files cannot be copied here: %s", error)
        self._has_files = False
        await self._remove(part)
        return False

    async def _commit(self, container: dict[str, Any], part: str) -> None:
        """Have the daemon commit the container's changes as the image `part`."""
        repository, _, tag = part.partition(":")

        def copy(client: RecordingClient) -> None:
            with _pause_meanwhile(client, container["Id"]):
                client.commit(container["Id"], repository=repository, tag=tag, pause=False)

        await self._run_locked(container, copy)

    async def _run_locked(self, container: dict[str, Any], copy: Callable[[RecordingClient], T]) -> T:
        """Run `copy` under the container's capture lock, so that no other capture and no start of an exec overlaps."""
        async with lock_for_capture(container["Id"]):
            # Run to completion even if cancelled: the lock must be held for as long as the container is paused.
            return await run_to_completion(self._engine.call(copy))

    async def _flatten(self, container: dict[str, Any], part: str) -> None:
        """Import an image's files, exported from a container that never runs, as the one-layer image `part`-flat."""
        labels = {STACK_LABEL: read_label(container, STACK_LABEL), PART_LABEL: ""}
        repository, _, tag = f"{part}-flat".partition(":")

        def copy(client: RecordingClient) -> None:
            made = client.create_container(part, ["true"], labels=labels)["Id"]
            try:
                client.import_image(src=client.export(made), stream_src=True, repository=repository, tag=tag)
            finally:
                client.remove_container(made, force=True, v=True)

        await self._engine.call_slow(copy)

    async def _describe(
        self, reference: str, like: dict[str, Any], config: dict[str, Any], copied: Sequence[int] | None = None
    ) -> None:
        """Make the image `reference` from the layers of another image and a configuration."""
        info = await self._info()
        if uppers.uses_containerd_store(info):
            store = Path(info["DockerRootDir"]) if self._engine.is_local else None
            await self._engine.call_slow(lambda client: describe_over(client, reference, like, config, store))
        else:
            await self._engine.call(lambda client: describe_image(client, reference, like, config, copied=copied))

    async def _tag(self, reference: str, other: str) -> None:
        """Give an image another name."""
        repository, _, tag = other.partition(":")
        await self._engine.call(lambda client: client.tag(reference, repository, tag))

    async def _remove(self, name: str) -> None:
        """Remove an image by its name, unless it is missing or a container needs it."""
        with contextlib.suppress(NotFoundError, ConflictError):
            await self._engine.call(lambda client: client.remove_image(name))


@contextlib.contextmanager
def _pause_meanwhile(client: RecordingClient, container: str) -> Iterator[None]:
    """Pause a container during the block."""
    pause(client, container)
    try:
        yield
    finally:
        # Fails if the container was resumed meanwhile, so that the copy is not of one moment.
        client.unpause(container)


def pause(client: RecordingClient, container: str) -> None:
    """Pause all processes of a container, with retries. One that is paused already is success.

    `docker commit` is not left to pause by itself: it would go on to copy even if the pause failed.

    Raises:
        APIError: It could not be paused within 30 s.
    """
    deadline = AwakeDeadline(_PAUSE_TIMEOUT)
    while True:
        _await_entries(client, container, deadline)
        try:
            client.pause(container)
            return
        except APIError as error:
            message = str(error.explanation)
            if "already paused" in message:
                # By a process that has died since: the capture lock admits one at a time.
                return
            # On a busy machine the runtime's own timeout for freezing is too short.
            if "freeze" not in message or deadline.is_over():
                raise
            time.sleep(_POLL_INTERVAL)


def _await_entries(client: RecordingClient, container: str, deadline: AwakeDeadline) -> None:
    """Wait until no exec is entering a container: one that is paused on its way in would keep it paused for ever.

    The caller's lock keeps other execs from starting. The daemon answers a start when it begins it, and sets the pid at
    the end.
    """
    entering = list(client.inspect_container(container)["ExecIDs"] or ())
    while entering and not deadline.is_over():
        entering = [each for each in entering if _is_entering(client, each)]
        if entering:
            time.sleep(_POLL_INTERVAL)


def _is_entering(client: RecordingClient, exec_id: str) -> bool:
    """Return whether the daemon has begun to start an exec that has no pid yet."""
    try:
        state = client.exec_inspect(exec_id)
    except DaemonNotFound:
        return False
    return bool(state["Running"]) and not state["Pid"]


def _refuse_volumes(container: dict[str, Any]) -> None:
    """Raise `UnsupportedFeatureError` if a volume is mounted other than the engine's: its files would be missing."""
    volumes = [mount["Destination"] for mount in container["Mounts"] if mount["Type"] == "volume"]
    if others := sorted(set(volumes) - {ENGINE_DIRECTORY, PROGRAMS}):
        raise UnsupportedFeatureError(
            f"the files in {', '.join(others)} would not be in it: the image declares a VOLUME there",
            key="snapshot",
            remedy="keep them elsewhere, or leave VOLUME out of the Dockerfile",
        )


def format_snapshot_reference(stack: str, name: str) -> str:
    """Return the image name of a snapshot.

    Args:
        stack: Hash of the stack, as `hash_stack` returns it.
        name: Name of the snapshot.
    """
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[-80:]
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{SNAPSHOT}:{stack}-{readable}-{digest}"


def hash_stack(stack: str) -> str:
    """Return the hash of a stack id that image names contain, since an id may have characters that a name may not."""
    return hashlib.sha256(stack.encode()).hexdigest()[:12]


def _lock(stack: str) -> Path:
    return find_state_dir() / "locks" / f"captures-{hash_stack(stack)}.lock"
