"""Images of the Docker daemon: ready ones are found or pulled, others are built once per identity.

The identity of a built image is a digest of all that it is made from: its context, and the ids of the images that it
takes files from. Dockerfiles go to the daemon's classic builder; those that need BuildKit, to the `docker` program. No
image is removed here that was not built here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchflow.contracts.images import ImageConfig, ImageRef, user_of
from benchflow.errors import (
    ImageBuildError,
    ImagePullError,
    RegistryUnavailableError,
    SandboxBusyError,
    SandboxError,
    SandboxSpaceError,
    SandboxUnavailableError,
    UnsupportedFeatureError,
)
from benchflow.host_files import hold_lock_async
from benchflow.paths import find_state_dir
from benchflow.planes.sandbox.bases import resolve_bases
from benchflow.planes.sandbox.build_context import Context, read_context, read_files
from benchflow.planes.sandbox.docker.buildkit import build_by_program
from benchflow.planes.sandbox.docker.docker_daemon import DockerDaemon, RecordingClient
from benchflow.planes.sandbox.docker.translation import NotFoundError, is_busy, raise_if_full
from benchflow.planes.sandbox.external_images import ExternalImage, find_external_images
from benchflow.planes.sandbox.rebuilds import choose_build_key, record_rebuild
from benchflow.planes.sandbox.timeouts import awake_clock, awake_wait
from benchflow.planes.sandbox.transcript import Transcript

REPOSITORY = "benchflow/task"
DIGEST_LABEL = "benchflow.digest"

_NO_BASE = re.compile(
    r"pull access denied|manifest (for .* )?(unknown|not found)|repository does not exist|not found: manifest"
    r"|failed to resolve source metadata|failed to do request|Get \"?https?://|dial tcp|no such host"
    r"|i/o timeout",
    re.I,
)

_REGISTRY_BUSY = (
    "toomanyrequests",
    "too many requests",
    "tls handshake timeout",
    "client.timeout exceeded",
    "request canceled while waiting",
    "unexpected http status: 5",
    "service unavailable",
    "bad gateway",
    "internal server error",
    "network is unreachable",
    "temporary failure in name resolution",
    "server misbehaving",
    "i/o timeout",
    ": eof",
)
"""Parts of the daemon's messages about a registry that does not answer, or not now."""

UNFINISHED = "-unfinished"
"""Suffix of a build's tag until it is certain that its base images did not change meanwhile."""

MAX_MOVES = 5
"""Maximum number of builds in a row during which a base image is replaced."""


@dataclass(frozen=True)
class _Build:
    """A build to carry out. `ids` are those of `bases` before it; `identity`, a digest of all that it is made from."""

    context: Context
    bases: list[ExternalImage]
    ids: dict[str, str | None]
    identity: str
    digest: str
    tag: str
    timeout_sec: float


class Images:
    """The images of one daemon."""

    def __init__(self, engine: DockerDaemon) -> None:
        """Make it."""
        self._engine = engine

    async def build(self, config: ImageConfig, log: Path | None) -> ImageRef:
        """Return the image of a configuration, pulled or built if needed within its timeout. `log` gets the output.

        Raises:
            ImagePullError: An image is neither on this host nor can it be pulled.
            ImageBuildError: The build failed, or took too long.
        """
        async with awake_clock() as clock:
            return await self._build(config, log, lambda: max(config.timeout_sec - clock(), 0.0))

    async def _build(self, config: ImageConfig, log: Path | None, left: Callable[[], float]) -> ImageRef:
        if config.image is not None:
            ready = await self._find_or_pull(ExternalImage(config.image), left(), log, _make_ready_error)
            if config.context is None:
                return ready
            await self._refuse_triggers(config.image)
            context = await asyncio.to_thread(read_files, config, ready.workdir)
        else:
            context = await asyncio.to_thread(read_context, config)
        given = config.digest
        if given is None:
            given = await asyncio.to_thread(context.compute_digest)
        resolved = resolve_bases(context.text, config.bases)
        own = resolved.extend_digest(given.removeprefix("sha256:"))
        context = replace(context, sent=resolved.text if resolved.used else None)
        arguments = await self._read_platform_arguments() if context.list_buildkit_features() else {}
        bases = find_external_images(resolved.text, context.shown, arguments)
        names = {reference: name for name, reference in resolved.used.items()}
        # A given digest covers the Dockerfile, unless that was generated for the files of a ready image.
        made_up = context.text if config.image is not None else ""
        for _ in range(MAX_MOVES):
            for base in bases:
                if base.name not in names:
                    await self._find_or_pull(base, left(), log, partial(_make_base_error, context))
                elif await self.find(base.name, built=False) is None:
                    # Built on this host: an image of this name in a registry would be another one.
                    raise _make_base_error(context, names[base.name], f"{base.name} is not on this host")
            ids = await self._find_ids(bases)
            identity = hashlib.sha256(json.dumps([own, made_up, ids]).encode()).hexdigest()
            digest = choose_build_key(identity, config.rebuild)
            tag = f"{REPOSITORY}:{digest[:32]}"
            build = _Build(context, bases, ids, identity, digest, tag, left())
            if found := await self.find(tag, built=True):
                return found
            async with hold_lock_async(_lock(tag)):
                if found := await self._make(build, config, log):
                    return found
        raise SandboxBusyError(
            f"the images that {context.shown} starts from became others during {MAX_MOVES} builds",
            file=context.shown,
            key="FROM",
            remedy="wait until nothing builds or pulls them",
        )

    async def find(self, reference: str, built: bool) -> ImageRef | None:
        """Return a reference to an image of this host, with `built` recorded in it; None if there is none."""
        try:
            image = await self._engine.inspect_image(reference)
        except NotFoundError:
            return None
        config = image.get("Config") or {}
        workdir = config.get("WorkingDir") or None
        return ImageRef(
            reference=reference,
            workdir=None if workdir == "/" else workdir,
            user=user_of(config.get("User")),
            built=built,
            id=str(image["Id"]),
        )

    async def find_or_make(self, reference: str, make: Callable[[], Awaitable[None]]) -> ImageRef:
        """Return an image of this host that one process at a time makes under this name, unless it exists."""
        if found := await self.find(reference, built=True):
            return found
        async with hold_lock_async(_lock(reference)):
            if found := await self.find(reference, built=True):
                return found
            await make()
            if found := await self.find(reference, built=True):
                return found
        raise SandboxError(f"the image {reference} was removed while it was made")

    async def _find_ids(self, images: Iterable[ExternalImage]) -> dict[str, str | None]:
        """Return the current ids of images by name, None for one that is not on this host."""
        found = {image.name: await self.find(image.name, built=False) for image in images}
        return {name: image.id if image is not None else None for name, image in found.items()}

    async def _read_platform_arguments(self) -> dict[str, str]:
        """Return the build arguments that BuildKit defines by itself, such as TARGETARCH, also for FROM."""
        version = await self._engine.call(lambda client: client.version(api_version=False))
        values = {"PLATFORM": f"{version['Os']}/{version['Arch']}", "OS": version["Os"], "ARCH": version["Arch"]}
        return {f"{side}{part}": value for side in ("TARGET", "BUILD") for part, value in values.items()}

    async def _refuse_triggers(self, reference: str) -> None:
        image = await self._engine.inspect_image(reference)
        if (image.get("Config") or {}).get("OnBuild"):
            raise UnsupportedFeatureError(
                f"{reference} has ONBUILD instructions, which would run before the files of environment/ are added",
                key="docker_image",
                remedy="write environment/Dockerfile, which starts FROM it",
            )

    # --- ready images --------------------------------------------------------------------------------

    async def _find_or_pull(
        self, image: ExternalImage, timeout: float, log: Path | None, missing: Callable[[str, str], SandboxError]
    ) -> ImageRef:
        """Return an image of this host, pulled if needed. `missing` makes the error from its name and a reason."""
        try:
            if found := await self.find(image.name, built=False):
                return found
        except SandboxError as error:
            if error.retryable or isinstance(error, SandboxUnavailableError):
                raise
            # The name is invalid.
            raise missing(image.name, error.message) from error
        async with hold_lock_async(_lock(image.name)):
            if found := await self.find(image.name, built=False):
                return found
            try:
                await self._follow(
                    lambda client: client.pull(
                        *_split_tag(image.name), stream=True, decode=True, platform=image.platform
                    ),
                    Progress(log),
                    timeout,
                )
            except (SandboxUnavailableError, SandboxSpaceError):
                raise
            except SandboxError as error:
                raise missing(image.name, error.message) from error
            except TimeoutError as error:
                raise missing(image.name, f"it took longer than {timeout:g} s") from error
            if found := await self.find(image.name, built=False):
                return found
            raise missing(image.name, "it was pulled but is not on this host")

    # --- Dockerfiles ---------------------------------------------------------------------------------

    async def _make(self, build: _Build, config: ImageConfig, log: Path | None) -> ImageRef | None:
        """Build and tag an image and return it; None if a base image changed meanwhile: its identity is unknown."""
        if found := await self.find(build.tag, built=True):
            return found
        unfinished = f"{build.tag}{UNFINISHED}"
        await self._carry_out(build, unfinished, config, Progress(log))
        try:
            if await self._find_ids(build.bases) != build.ids:
                return None
            repository, _, name = build.tag.partition(":")
            await self._engine.call(lambda client: client.tag(unfinished, repository, name))
            if config.rebuild is not None:
                # After the tag: else others would build under this tag, which nothing has yet, with the cache.
                await asyncio.to_thread(record_rebuild, build.identity, config.rebuild)
        finally:
            with contextlib.suppress(NotFoundError):
                await self._engine.call(lambda client: client.remove_image(unfinished, noprune=True))
        return await self.find(build.tag, built=True)

    async def _carry_out(self, build: _Build, tag: str, config: ImageConfig, transcript: Progress) -> None:
        context, labels, has_cache = build.context, {DIGEST_LABEL: build.digest}, config.rebuild is None
        features = context.list_buildkit_features()
        archive = await asyncio.to_thread(context.pack)
        try:
            if features:
                await build_by_program(
                    context,
                    archive,
                    tag,
                    labels,
                    build.timeout_sec,
                    transcript,
                    features=features,
                    has_cache=has_cache,
                )
            else:
                await self._follow(
                    lambda client: client.build(
                        fileobj=archive,
                        custom_context=True,
                        dockerfile=context.dockerfile,
                        tag=tag,
                        rm=True,
                        forcerm=True,
                        nocache=not has_cache,
                        labels=labels,
                        decode=True,
                    ),
                    transcript,
                    build.timeout_sec,
                )
        except TimeoutError as error:
            raise ImageBuildError(
                f"the build took longer than {config.timeout_sec:g} s",
                file=context.shown,
                remedy="raise build_timeout_sec, or make the build smaller",
                log_tail=transcript.tail,
            ) from error
        except (SandboxUnavailableError, ImageBuildError):
            raise
        except SandboxError as error:
            if error.retryable and not _NO_BASE.search(error.message):
                raise
            raise _make_build_error(context, error.message, transcript) from error
        finally:
            archive.close()
        if await self.find(tag, built=True) is None:
            raise ImageBuildError("the build left no image", file=context.shown, log_tail=transcript.tail)

    async def _follow(self, start: Callable[[RecordingClient], Any], transcript: Progress, timeout: float) -> None:
        """Read the daemon's progress in a thread. Hang up on timeout or cancellation, which ends the build or pull."""
        hang_up = threading.Event()
        started: list[Any] = []

        def read(client: RecordingClient) -> None:
            lines = start(client)
            started.append(client.last.response)
            if hang_up.is_set():
                client.last.response.close()
                return
            for line in lines:
                transcript.add(line)

        work = asyncio.ensure_future(self._engine.call_slow(read))
        try:
            is_done = await awake_wait(work, timeout)
        finally:
            if not work.done():
                hang_up.set()
                for response in started:
                    # Closing it would not wake the thread that reads from it.
                    with contextlib.suppress(Exception):
                        response.raw._fp.fp.raw._sock.shutdown(socket.SHUT_RDWR)
                work.add_done_callback(lambda task: task.cancelled() or task.exception())
        if not is_done:
            await self._engine.require_answer()
            raise TimeoutError
        work.result()
        # Such a message quotes the failed command, which could match the patterns below.
        if "returned a non-zero code" in transcript.error:
            raise SandboxError(transcript.error)
        if transcript.error:
            raise_if_full(transcript.error)
            raise (SandboxBusyError if is_busy(transcript.error) else SandboxError)(transcript.error)


class Progress(Transcript):
    """A transcript of the daemon's progress objects. `error` is the daemon's last error message."""

    def __init__(self, log: Path | None) -> None:
        """Make it, with a file to append to; None for none."""
        super().__init__(log)
        self.error = ""

    def add(self, line: dict[str, Any]) -> None:
        """Add a progress object of the daemon."""
        if "error" in line:
            self.error = str(line["error"])
            self.write(f"{self.error}\n")
        elif "stream" in line:
            self.write(str(line["stream"]))
        elif "status" in line and "progress" not in line:
            self.write(f"{line['id']}: {line['status']}\n" if line.get("id") else f"{line['status']}\n")


def _lock(reference: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", reference)[-100:]
    return find_state_dir() / "locks" / f"image-{name}.lock"


def _make_build_error(context: Context, reason: str, transcript: Transcript) -> SandboxError:
    """Return the error for a failed build: that of `_make_base_error` if an image of it cannot be pulled."""
    if _NO_BASE.search(reason) or (reason.startswith("docker build") and _NO_BASE.search(transcript.tail)):
        bases = re.findall(r"^FROM\s+(?:--\S+\s+)*(\S+)", context.text, re.I | re.M)
        error = _make_base_error(context, ", ".join(bases), reason)
        error.log_tail = transcript.tail
        return error
    return ImageBuildError(
        reason,
        file=context.shown,
        remedy="mend the step that failed; the whole log is kept with the results",
        log_tail=transcript.tail,
    )


def _make_base_error(context: Context, names: str, reason: str) -> SandboxError:
    """Return the error for base images of a Dockerfile that cannot be pulled."""
    return _choose_pull_error(reason)(
        f"an image that the build starts from cannot be had ({names}): {reason}",
        file=context.shown,
        key="FROM",
        remedy="check the name, log in to its registry, or put the image on this host (`docker pull`, `docker load`)",
    )


def _make_ready_error(name: str, reason: str) -> SandboxError:
    """Return the error for a ready image that cannot be pulled."""
    return _choose_pull_error(reason)(
        f"the image {name} is not on this host and cannot be pulled: {reason}",
        key="docker_image",
        remedy="check the name, log in to its registry (`docker login`), or put the image on this host "
        "(`docker pull`, `docker load`)",
    )


def _choose_pull_error(reason: str) -> type[ImagePullError]:
    """Return the error type of a failed pull: a retryable one if the registry is away, else that of a missing image."""
    may_pass = is_busy(reason) or any(part in reason.lower() for part in _REGISTRY_BUSY)
    return RegistryUnavailableError if may_pass else ImagePullError


def _split_tag(reference: str) -> tuple[str, str | None]:
    """Split off the tag; without one it is `latest`, since the daemon would otherwise pull every tag."""
    if "@" in reference:
        return reference, None
    head, colon, tag = reference.rpartition(":")
    if colon and "/" not in tag:
        return head, tag
    return reference, "latest"
