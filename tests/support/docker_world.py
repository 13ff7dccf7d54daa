"""The containers and networks of a stack, as the daemon sees them."""

from __future__ import annotations

import asyncio
import io
import posixpath
import tarfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import docker
from docker.models.containers import Container
from support.worlds import Seen

from benchflow.testing.waiting import until


class DockerWorld:
    """A `World` in a Docker daemon."""

    sandbox = "docker"

    def __init__(self) -> None:
        self.started: list[str] = []
        self._stack = ""
        self._docker = docker.from_env()
        self._events: Any = None

    def watch(self, stack_id: str) -> None:
        self._stack = stack_id
        filters = {"type": "container", "event": "create", "label": f"benchflow.stack={stack_id}"}
        self._events = self._docker.events(decode=True, filters=filters)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        # The daemon remembers few events, so that they must be written down as they come.
        with suppress(Exception):
            for event in self._events:
                self.started.append(event["Actor"]["Attributes"]["name"])

    def sandboxes(self) -> list[Seen]:
        return [_seen(container) for container in self._containers()]

    def shared(self) -> set[str]:
        return {str(network.id) for network in self._networks()}

    # Not by commands in them: one that begins as the engine pauses its sandbox would keep the daemon waiting for ever.

    def with_file(self, path: str) -> list[Seen]:
        return [_seen(container) for container in self._containers() if _is_running_with(container, path)]

    def make_file(self, path: str, among: Iterable[Seen] | None = None) -> None:
        if among is not None:
            for seen in among:
                _touch(self._docker.containers.get(seen.identity), path)
            return
        for container in self._containers():
            try:
                _touch(container, path)
            except docker.errors.APIError as error:
                if not _says_not_running(error):
                    raise

    def commands(self, sandbox: Seen) -> list[str]:
        return [str(row[-1]) for row in self._docker.containers.get(sandbox.identity).top()["Processes"]]

    def kill(self, sandbox: Seen) -> None:
        self._docker.containers.get(sandbox.identity).kill()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        running = [container for container in self._containers() if container.status == "running"]
        try:
            for container in running:
                container.pause()
            yield
        finally:
            for container in running:
                # One that was not stopped any more, or is gone.
                with suppress(docker.errors.APIError):
                    container.unpause()

    def builds(self, mark: str, *, begun: bool = False) -> list[Seen]:
        # They are the daemon's own containers, without a label, and there before their step runs.
        everything = self._docker.containers.list(all=True, ignore_removed=True)
        building = [it for it in everything if mark in " ".join(it.attrs["Config"]["Cmd"] or [])]
        return [_seen(it) for it in building if not begun or any(mark in line for line in _processes(it))]

    def helpers(self) -> list[int]:
        return []

    def waiters(self) -> list[int]:
        return []

    def processes(self) -> list[int]:
        return []

    async def leftovers(self) -> list[str]:
        containers = [f"container {container.name}" for container in self._containers()]
        return containers + [f"network {network.name}" for network in self._networks()]

    async def remove_built(self, mark: str) -> None:
        client = self._docker.api
        for row in client.images(filters={"label": "benchflow.digest"}):
            # Whoever tests beside this removes images, too.
            with suppress(docker.errors.NotFound):
                if any(mark in (layer["CreatedBy"] or "") for layer in client.history(row["Id"])):
                    await _remove(client, row["Id"])

    async def close(self) -> None:
        for container in self._containers():
            with suppress(docker.errors.APIError):
                container.remove(force=True)
        for network in self._networks():
            network.remove()
        if self._events is not None:
            self._events.close()
        self._docker.close()

    def _containers(self) -> list[Container]:
        if not self._stack:
            return []
        filters = {"label": f"benchflow.stack={self._stack}"}
        return self._docker.containers.list(all=True, filters=filters, ignore_removed=True)

    def _networks(self) -> list[Any]:
        filters = {"label": f"benchflow.stack={self._stack}"}
        return self._docker.networks.list(filters=filters) if self._stack else []


async def solving(client: docker.DockerClient, job: str) -> list[Container]:
    """Return the containers of a job, by its name, in which a solution works."""

    def found() -> list[Container]:
        running = client.containers.list(filters={"label": f"benchflow.job={job}"}, ignore_removed=True)
        return [container for container in running if any("solve.sh" in line for line in _processes(container))]

    return await asyncio.to_thread(found)


def _processes(container: Container) -> list[str]:
    """Return the command lines in a container; none in one that comes up or has ended."""
    try:
        return [str(row[-1]) for row in container.top()["Processes"] or []]
    except docker.errors.APIError as error:
        if not _says_not_running(error):
            raise
        return []


def _says_not_running(error: docker.errors.APIError) -> bool:
    # Of one that is being removed, some requests are told as a failure of the daemon's own.
    return error.status_code in (404, 409) or "is not running" in str(error.explanation)


def _is_running_with(container: Container, path: str) -> bool:
    if container.status != "running":
        return False
    try:
        pieces, _ = container.get_archive(path)
    except docker.errors.APIError:
        return False
    pieces.close()
    return True


def _touch(container: Container, path: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(posixpath.basename(path)))
    assert container.put_archive(posixpath.dirname(path), packed.getvalue())


def _seen(container: Container) -> Seen:
    return Seen(container.name, str(container.id), container.labels.get("benchflow.workflow", ""))


async def _remove(client: docker.APIClient, image: str) -> None:
    """Remove an image as soon as no container that somebody looked into it with is left."""

    def removed() -> bool:
        try:
            client.remove_image(image, force=True)
        except docker.errors.APIError as error:
            if error.status_code != 409:
                raise
            return False
        return True

    await until(removed, every=0.2)
