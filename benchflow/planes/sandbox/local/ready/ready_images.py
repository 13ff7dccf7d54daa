"""Ready images in the store: fetched from a Docker daemon, or an archive on this host, and unpacked once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from benchflow.archive_reader import CHUNK
from benchflow.confined import open_regular
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.errors import ImageBuildError, ImagePullError, UnsafePathError
from benchflow.planes.sandbox.cancellation import StoppedError, run_stoppable
from benchflow.planes.sandbox.local.local_images import read_image
from benchflow.planes.sandbox.local.machine import Machine
from benchflow.planes.sandbox.local.ready.description import Description
from benchflow.planes.sandbox.local.ready.image_archive import MAX_SIZE, ArchivedImage, ImageArchive
from benchflow.planes.sandbox.local.ready.root_files import RootTree
from benchflow.planes.sandbox.sandbox_choice import find_docker_address, find_docker_problem
from benchflow.planes.sandbox.scratch import make_scratch
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.planes.sandbox.transcript import Transcript

if TYPE_CHECKING:
    from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon, RecordingClient

FORMS = ("oci-archive", "docker-archive")
"""Prefixes of names of archives, as in skopeo and podman."""


async def prepare_ready_image(machine: Machine, config: ImageConfig, log: Path | None) -> ImageRef:
    """Return a ready image, and unpack it into the store unless that was done before.

    Args:
        machine: Machine in whose store it is unpacked.
        config: Configuration with the name of the image.
        log: File for the transcript; None for none.

    Raises:
        ImagePullError: The image is not available, or invalid.
        ImageBuildError: It took longer than the build of an image may.
    """
    assert config.image is not None
    form, colon, place = config.image.partition(":")
    unpacking = _Unpacking(machine, config.image, Transcript(log))
    try:
        async with awake_timeout(config.timeout_sec) as timer:
            if colon and form in FORMS:
                key = await unpacking.from_archive(form, place)
            else:
                key = await unpacking.from_daemon(config, log)
    except TimeoutError as error:
        if not timer.expired():
            raise
        raise ImageBuildError(
            f"bringing and unpacking the image {config.image} took longer than {config.timeout_sec:g} s",
            key="docker_image",
            remedy="raise build_timeout_sec",
        ) from error
    found = await asyncio.to_thread(read_image, machine.store.root, key)
    assert found is not None
    return found.ref(key).model_copy(update={"built": False})


class _Unpacking:
    """The unpacking of one image into the store."""

    def __init__(self, machine: Machine, name: str, transcript: Transcript) -> None:
        self._machine = machine
        self._name = name
        self._transcript = transcript

    async def from_archive(self, form: str, place: str) -> str:
        """Unpack an image of an archive, and return its key.

        Args:
            form: Format, one of `FORMS`.
            place: `PATH`, or `PATH:NAME`.
        """
        path, colon, name = place.partition(":")
        if not path.startswith("/"):
            raise self._missing(f"the path of {self._name} is not absolute")

        async with make_scratch() as directory:

            def read(archive: ImageArchive) -> ArchivedImage:
                reference = name if colon else None
                return archive.oci(reference) if form == "oci-archive" else archive.saved(reference)

            return await self._unpack(lambda: self._open(Path(path)), path, directory, read)

    async def from_daemon(self, config: ImageConfig, log: Path | None) -> str:
        """Unpack an image that a Docker daemon has, or can pull, and return its key."""
        if (problem := await asyncio.to_thread(find_docker_problem, find_docker_address())) is not None:
            raise self._missing(problem)
        # Imported here, so that the Docker library is loaded only if it is needed.
        from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon

        engine = DockerDaemon()
        try:
            return await self._from_engine(engine, config, log)
        finally:
            engine.close()

    async def _from_engine(self, engine: DockerDaemon, config: ImageConfig, log: Path | None) -> str:
        """Unpack an image through a connection to a daemon, and return its key."""
        from benchflow.planes.sandbox.docker.docker_images import Images

        wanted = ImageConfig(image=config.image, timeout_sec=config.timeout_sec)
        try:
            image = (await Images(engine).build(wanted, log)).identity
        except ImagePullError as error:
            raise self._missing(error.message, type(error)) from error
        told = await engine.call(lambda client: client.inspect_image(image))  # type: ignore[no-untyped-call]
        key = Description.inspected(told, self._name).key
        if await self._find(key):
            return key
        async with make_scratch() as directory:
            saved = directory / "image.tar"

            def save(stop: threading.Event, client: RecordingClient) -> None:
                with saved.open("wb") as file:
                    for piece in client.get_image(image, chunk_size=CHUNK):
                        if stop.is_set():
                            raise StoppedError
                        file.write(piece)

            await engine.call_stoppable(save)
            return await self._unpack(lambda: saved.open("rb"), self._name, directory, lambda it: it.saved(None))

    async def _unpack(
        self,
        open_archive: Callable[[], IO[bytes]],
        shown: str,
        directory: Path,
        choose: Callable[[ImageArchive], ArchivedImage],
    ) -> str:
        """Unpack an image of an archive, unless that was done before, and return its key.

        Args:
            open_archive: Opens the archive.
            shown: Name of the archive in errors.
            directory: Directory for temporary files.
            choose: Returns the image, of those in the archive.
        """

        def read(stop: threading.Event) -> str:
            with open_archive() as file:
                return choose(ImageArchive(file, shown, directory, _make_checker(stop))).description.key

        def unpack(stop: threading.Event) -> None:
            check = _make_checker(stop)
            with open_archive() as file:
                archive = ImageArchive(file, shown, directory, check)
                image = choose(archive)

                def write(volume: Path, lock: int) -> None:
                    (volume / "u").mkdir()
                    with RootTree(volume / "u", MAX_SIZE, check) as root:
                        for number, digest in enumerate(image.description.rootfs.layers):
                            with archive.layer(image, number) as layer:
                                root.apply(layer)
                            self._transcript.write(f"Unpacked {digest}\n")
                        root.finish()
                    image.description.image().write(volume)

                self._machine.store.fill(f"images/{image.description.key}", write)

        key = await run_stoppable(read)
        if not await self._find(key):
            async with self._machine.using(), self._machine.at_image(key):
                if not await self._find(key):
                    await run_stoppable(unpack)
        return key

    async def _find(self, key: str) -> bool:
        """Return whether the store has an image of this key."""
        await asyncio.to_thread(self._machine.store.open)
        return await asyncio.to_thread(read_image, self._machine.store.root, key) is not None

    def _open(self, path: Path) -> IO[bytes]:
        try:
            return open_regular(path)
        except (OSError, UnsafePathError) as error:
            said = error.message if isinstance(error, UnsafePathError) else error.strerror
            raise self._missing(f"{path} cannot be read: {said}") from error

    def _missing(self, reason: str, kind: type[ImagePullError] = ImagePullError) -> ImagePullError:
        """Return the error for an image that is not available."""
        return kind(
            f"the image {self._name} cannot be had: {reason}",
            key="docker_image",
            remedy="put the image into a Docker daemon that this host reaches (`docker build`, `docker pull`, "
            '`docker load`), or name an archive of it: "oci-archive:/path/image.tar", "docker-archive:/path/image.tar"',
        )


def _make_checker(stop: threading.Event) -> Callable[[], None]:
    """Return a callback that raises `StoppedError` once `stop` is set."""

    def check() -> None:
        if stop.is_set():
            raise StoppedError

    return check
