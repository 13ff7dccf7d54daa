"""Builds with the `docker` program, for Dockerfiles that need BuildKit, which the `docker` library can't use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from typing import IO

from benchflow.errors import DaemonUnavailableError, ImageBuildError, SandboxError
from benchflow.planes.sandbox.build_context import Context
from benchflow.planes.sandbox.docker.translation import raise_if_full
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.planes.sandbox.transcript import Transcript

_NO_DAEMON = ("Cannot connect to the Docker daemon", "error during connect", "error reading from server: EOF")
"""Parts of the messages of the `docker` program when the daemon goes away."""


async def build_by_program(
    context: Context,
    archive: IO[bytes],
    tag: str,
    labels: Mapping[str, str],
    timeout: float,
    transcript: Transcript,
    *,
    features: list[str],
    has_cache: bool,
) -> None:
    """Build a context and tag the image.

    Args:
        context: Build context.
        archive: Its files, as an archive.
        tag: Name of the image.
        labels: Labels of the image.
        timeout: Seconds.
        transcript: Receives the program's output.
        features: Features of the Dockerfile that need BuildKit, for the error.
        has_cache: Whether cached steps may be reused.

    Raises:
        ImageBuildError: There is no BuildKit.
        DaemonUnavailableError: The daemon went away.
        SandboxSpaceError: The daemon's disk is full.
        SandboxError: The build failed. The message has the exit status; the transcript, the reason.
        TimeoutError: It took longer than `timeout`.
    """
    program = shutil.which("docker")
    if program is None or not await _has_buildkit(program):
        raise ImageBuildError(
            f"it uses {', '.join(features)}, which needs BuildKit, and there is no `docker buildx` here",
            file=context.shown,
            remedy="install the docker command line with its buildx plugin, or write the step without it",
        )
    process = await asyncio.create_subprocess_exec(
        *(program, "build", "--progress=plain", "--file", context.dockerfile, "--tag", tag),
        *(word for name, value in labels.items() for word in ("--label", f"{name}={value}")),
        *([] if has_cache else ["--no-cache"]),
        "-",
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
        raise SandboxError(f"docker build ended with exit status {code}")


async def _has_buildkit(program: str) -> bool:
    """Return whether `docker` can build with BuildKit: by the buildx plugin or, in versions 19 to 22, by itself."""
    if (await _run(program, "buildx", "version"))[0] == 0:
        return True
    version = re.search(r"version (\d+)\.", (await _run(program, "--version"))[1])
    return version is not None and 18 < int(version.group(1)) < 23


async def _run(program: str, *arguments: str) -> tuple[int, str]:
    """Run the `docker` program and return its exit status and stdout."""
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode(errors="replace")
