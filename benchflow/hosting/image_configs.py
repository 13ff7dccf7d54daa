"""Make the configurations of the images that sandboxes start from: the task's image, and its world's."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchflow.contracts.ids import short_hash
from benchflow.contracts.images import ImageConfig
from benchflow.contracts.task import Task
from benchflow.store import compute_file_digest
from benchflow.tasks import digest_tree

NO_SKILL_EXCLUDES = ("skills",)
"""Directories left out of the build context, since the agent is not to have the task's skills."""


async def make_image_config(
    task: Task,
    directory: Path,
    external: Path | None,
    hidden: tuple[str, ...],
    *,
    files_target: str | None = None,
    rebuild: str | None = None,
) -> ImageConfig:
    """Return the configuration of a task's image: a ready one, with the task's files added, or a Dockerfile's.

    Its digest covers the files, by which the image is cached.

    Args:
        task: The task.
        directory: Directory of the task's files.
        external: Build context on this host outside of the task; None for the task's `environment/`.
        hidden: Paths of this host that no step of a build may see.
        files_target: Directory for the files beside a ready image; None for the image's working directory.
        rebuild: The job's request to build it anew; None without one.
    """
    timeout = task.sandbox.build_timeout_sec
    if task.sandbox.docker_image is not None:
        config = ImageConfig(image=task.sandbox.docker_image, timeout_sec=timeout, rebuild=rebuild)
        files = await asyncio.to_thread(_find_loose_files, task, directory)
        if files is None:
            return config
        tree = await asyncio.to_thread(digest_tree, files, exclude=NO_SKILL_EXCLUDES)
        return config.model_copy(
            update={
                "context": str(files),
                "exclude": NO_SKILL_EXCLUDES,
                "digest": short_hash(tree, 32),
                "files_target": files_target,
                # If nothing names a workspace, it is /app, if that exists. The split layout has its tests in `/`.
                "files_fallback": "/app" if task.layout == "native" else "/",
            }
        )
    assert task.dockerfile is not None  # a task without an image is refused when it is read
    dockerfile = directory / task.dockerfile
    context = external or directory / "environment"

    def digest() -> str:
        tree = digest_tree(context, exclude=NO_SKILL_EXCLUDES)
        return short_hash(f"{tree}/{compute_file_digest(dockerfile)}", 32)

    return ImageConfig(
        context=str(context),
        dockerfile=str(dockerfile),
        exclude=NO_SKILL_EXCLUDES,
        digest=await asyncio.to_thread(digest),
        timeout_sec=timeout,
        hidden=hidden,
        rebuild=rebuild,
    )


def _find_loose_files(task: Task, directory: Path) -> Path | None:
    """Return the directory whose files are added to a ready image's workspace; None if there are none besides skills.

    A Dockerfile or a compose file uses the files itself. A `.gitkeep` alone only makes git track the directory.
    """
    if task.environment_dir is None or task.dockerfile is not None or task.compose_file is not None:
        return None
    files = directory / task.environment_dir
    names = {path.name for path in files.iterdir()} - {*NO_SKILL_EXCLUDES, ".gitkeep"}
    return files if names else None


async def make_world_image_config(
    directory: Path, timeout_sec: float, hidden: tuple[str, ...], *, rebuild: str | None = None
) -> ImageConfig:
    """Return the configuration of the image that a world's manifest has a Dockerfile for.

    Args:
        directory: The `image/` beside the manifest, on this host.
        timeout_sec: Maximum number of seconds for the build.
        hidden: Paths of this host that no step of the build may see.
        rebuild: The job's request to build it anew; None without one.
    """
    digest = await asyncio.to_thread(digest_tree, directory)
    return ImageConfig(
        context=str(directory),
        dockerfile=str(directory / "Dockerfile"),
        digest=short_hash(digest, 32),
        timeout_sec=timeout_sec,
        hidden=hidden,
        entrypoint=True,
        rebuild=rebuild,
    )
