"""Images: ready ones are found or pulled, the others built once per digest.

A Dockerfile goes to the daemon's own builder; one that uses what only BuildKit has goes to the `docker`
program, since the library cannot speak to BuildKit. Nothing here removes an image that was not built here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from benchflow.contracts.sandbox import ImageConfig, ImageRef
from benchflow.errors import (
    DaemonUnavailableError,
    ImageBuildError,
    ImagePullError,
    RegistryUnavailableError,
    SandboxBusyError,
    SandboxError,
    SandboxSpaceError,
    SandboxUnavailableError,
)
from benchflow.paths import state_dir
from benchflow.planes.sandbox.bases import resolve
from benchflow.planes.sandbox.context import Context, read_context
from benchflow.planes.sandbox.docker.engine import Engine, RecordingClient
from benchflow.planes.sandbox.docker.translation import NotFound, is_busy, raise_if_full
from benchflow.planes.sandbox.records import file_lock
from benchflow.planes.sandbox.timeouts import awake_timeout, awake_wait
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
"""What the daemon says of a registry that does not answer, or not now."""

_NO_DAEMON = ("Cannot connect to the Docker daemon", "error during connect", "error reading from server: EOF")
"""What the `docker` program says when the daemon goes away."""


class Images:
    """The images of one daemon."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def build(self, config: ImageConfig, log: Path | None) -> ImageRef:
        """A ready image for a configuration, pulled or built if it is not here."""
        if config.image is not None:
            found = await self.find(config.image, built=False)
            return found or await self.locked(config.image, lambda: self._pull(config, log))
        context = await asyncio.to_thread(read_context, config)
        given = config.digest
        if given is None:
            given = await asyncio.to_thread(context.digest)
        resolved = resolve(context.text, config.bases)
        digest = resolved.digest(given.removeprefix("sha256:"))
        context = replace(context, sent=resolved.text if resolved.used else None)
        tag = f"{REPOSITORY}:{digest[:32]}"
        found = await self.find(tag, built=True)
        return found or await self.locked(tag, lambda: self._make(context, tag, digest, config, log))

    async def find(self, reference: str, built: bool) -> ImageRef | None:
        """The image of a name, if it is here. built: it was made by this engine."""
        try:
            image = await self._engine.call(
                lambda client: client.inspect_image(reference)  # type: ignore[no-untyped-call]
            )
        except NotFound:
            return None
        workdir = (image.get("Config") or {}).get("WorkingDir") or None
        return ImageRef(reference=reference, workdir=None if workdir == "/" else workdir, built=built)

    async def locked(self, reference: str, make: Callable[[], Any]) -> ImageRef:
        """One process at a time makes an image; those that waited find it."""
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", reference)[-100:]
        async with file_lock(state_dir() / "locks" / f"image-{name}.lock"):
            found: ImageRef = await make()
            return found

    # --- ready images --------------------------------------------------------------------------------

    async def _pull(self, config: ImageConfig, log: Path | None) -> ImageRef:
        reference = str(config.image)
        if found := await self.find(reference, built=False):
            return found
        transcript = Progress(log)
        try:
            await self._follow(
                lambda client: client.pull(*_name_and_tag(reference), stream=True, decode=True),
                transcript,
                config.timeout_sec,
            )
        except (SandboxUnavailableError, SandboxSpaceError):
            raise
        except (SandboxError, TimeoutError) as error:
            reason = (
                error.message if isinstance(error, SandboxError) else f"it took longer than {config.timeout_sec:g} s"
            )
            raise _pull_error(reason)(
                f"the image {reference} is not on this host and cannot be pulled: {reason}",
                key="docker_image",
                remedy="check the name, log in to its registry (`docker login`), or put the image on this "
                "host (`docker pull`, `docker load`)",
            ) from error
        if found := await self.find(reference, built=False):
            return found
        raise ImagePullError(f"the image {reference} was pulled but is not on this host", key="docker_image")

    # --- Dockerfiles ---------------------------------------------------------------------------------

    async def _make(self, context: Context, tag: str, digest: str, config: ImageConfig, log: Path | None) -> ImageRef:
        if found := await self.find(tag, built=True):
            return found
        transcript = Progress(log)
        features = context.buildkit_features()
        archive = await asyncio.to_thread(context.archive)
        try:
            if features:
                await self._by_program(context, archive, tag, digest, config.timeout_sec, transcript, features)
            else:
                await self._by_daemon(context, archive, tag, digest, config.timeout_sec, transcript)
        except TimeoutError as error:
            raise ImageBuildError(
                f"the build took longer than {config.timeout_sec:g} s",
                file=context.shown,
                remedy="raise build_timeout_sec, or make the build smaller",
                log_tail=transcript.tail,
            ) from error
        finally:
            archive.close()
        if found := await self.find(tag, built=True):
            return found
        raise ImageBuildError("the build left no image", file=context.shown, log_tail=transcript.tail)

    async def _by_daemon(
        self,
        context: Context,
        archive: IO[bytes],
        tag: str,
        digest: str,
        timeout: float,
        transcript: Progress,
    ) -> None:
        def start(client: RecordingClient) -> Any:
            return client.build(
                fileobj=archive,
                custom_context=True,
                dockerfile=context.dockerfile,
                tag=tag,
                rm=True,
                forcerm=True,
                labels={DIGEST_LABEL: digest},
                decode=True,
            )

        try:
            await self._follow(start, transcript, timeout)
        except SandboxUnavailableError:
            raise
        except SandboxError as error:
            if error.retryable and not _NO_BASE.search(error.message):
                raise
            raise _build_error(context, error.message, transcript) from error

    async def _follow(self, start: Callable[[RecordingClient], Any], transcript: Progress, timeout: float) -> None:
        """Read the daemon's progress to its end in a thread; on a timeout or a cancellation hang up.

        The daemon ends a build or a pull whose client is gone. Raises `SandboxError` with its reason.
        """
        hang_up = threading.Event()
        begun: list[Any] = []

        def read(client: RecordingClient) -> None:
            lines = start(client)
            begun.append(client.last.response)
            if hang_up.is_set():
                client.last.response.close()
                return
            for line in lines:
                transcript.add(line)

        work = asyncio.ensure_future(self._engine.follow(read))
        try:
            is_done = await awake_wait(work, timeout)
        finally:
            if not work.done():
                hang_up.set()
                for response in begun:
                    _hang_up(response)
                work.add_done_callback(lambda task: task.cancelled() or task.exception())
        if not is_done:
            await self._engine.require_answer()
            raise TimeoutError
        work.result()
        # A command of the Dockerfile is quoted in what is said of its failure.
        if "returned a non-zero code" in transcript.error:
            raise SandboxError(transcript.error)
        if transcript.error:
            raise_if_full(transcript.error)
            raise (SandboxBusyError if is_busy(transcript.error) else SandboxError)(transcript.error)

    async def _by_program(
        self,
        context: Context,
        archive: IO[bytes],
        tag: str,
        digest: str,
        timeout: float,
        transcript: Transcript,
        features: list[str],
    ) -> None:
        program = shutil.which("docker")
        if program is None or not await _has_buildkit(program):
            raise ImageBuildError(
                f"it uses {', '.join(features)}, which needs BuildKit, and there is no `docker buildx` here",
                file=context.shown,
                remedy="install the docker command line with its buildx plugin, or write the step without it",
            )
        process = await asyncio.create_subprocess_exec(
            *(program, "build", "--progress=plain", "--file", context.dockerfile, "--tag", tag),
            *("--label", f"{DIGEST_LABEL}={digest}", "-"),
            stdin=archive,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "DOCKER_BUILDKIT": "1"},
        )
        assert process.stdout is not None
        try:
            async with awake_timeout(timeout):
                while piece := await process.stdout.read(64 * 1024):
                    transcript.write(piece.decode(errors="replace"))
                code = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if code and any(part in transcript.tail for part in _NO_DAEMON):
            raise DaemonUnavailableError("the Docker daemon went away during a build", log_tail=transcript.tail)
        if code:
            failure = next((line for line in reversed(transcript.tail.splitlines()) if line.startswith("ERROR: ")), "")
            if "did not complete successfully" not in failure:
                raise_if_full(failure)
            raise _build_error(context, f"docker build ended with exit status {code}", transcript)


class Progress(Transcript):
    """A transcript of the daemon's progress objects. error: what the daemon says went wrong."""

    def __init__(self, log: Path | None) -> None:
        super().__init__(log)
        self.error = ""

    def add(self, line: dict[str, Any]) -> None:
        if "error" in line:
            self.error = str(line["error"])
            self.write(f"{self.error}\n")
        elif "stream" in line:
            self.write(str(line["stream"]))
        elif "status" in line and "progress" not in line:
            self.write(f"{line['id']}: {line['status']}\n" if line.get("id") else f"{line['status']}\n")


async def _has_buildkit(program: str) -> bool:
    """Whether the docker program can build with BuildKit: by its plugin, or, before version 23, by itself."""
    if (await _answer(program, "buildx", "version"))[0] == 0:
        return True
    version = re.search(r"version (\d+)\.", (await _answer(program, "--version"))[1])
    return version is not None and 18 < int(version.group(1)) < 23


async def _answer(program: str, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode(errors="replace")


def _build_error(context: Context, reason: str, transcript: Transcript) -> SandboxError:
    if _NO_BASE.search(reason) or (reason.startswith("docker build") and _NO_BASE.search(transcript.tail)):
        bases = re.findall(r"^FROM\s+(?:--\S+\s+)*(\S+)", context.text, re.I | re.M)
        return _pull_error(reason)(
            f"an image that the build starts from cannot be had ({', '.join(bases)}): {reason}",
            file=context.shown,
            key="FROM",
            remedy="check the name, log in to its registry, or put the image on this host (`docker pull`, "
            "`docker load`)",
            log_tail=transcript.tail,
        )
    return ImageBuildError(
        reason,
        file=context.shown,
        remedy="mend the step that failed; the whole log is kept with the results",
        log_tail=transcript.tail,
    )


def _pull_error(reason: str) -> type[ImagePullError]:
    """Return the type of a failed pull: a registry that is away may be back, an image that it has not is missing."""
    may_pass = is_busy(reason) or any(part in reason.lower() for part in _REGISTRY_BUSY)
    return RegistryUnavailableError if may_pass else ImagePullError


def _hang_up(response: Any) -> None:
    """End a response that another thread is reading: closing would not wake it, shutting down does."""
    with contextlib.suppress(Exception):
        response.raw._fp.fp.raw._sock.shutdown(socket.SHUT_RDWR)


def _name_and_tag(reference: str) -> tuple[str, str | None]:
    """Split off the tag; without one, `latest`, since the daemon would otherwise pull every tag."""
    if "@" in reference:
        return reference, None
    head, colon, tag = reference.rpartition(":")
    if colon and "/" not in tag:
        return head, tag
    return reference, "latest"
