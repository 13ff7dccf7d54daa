"""Configurations of the images that sandboxes start from: the task's own, and that of its world."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchflow.contracts.ids import short_hash
from benchflow.contracts.images import ImageConfig
from benchflow.contracts.task import Task
from benchflow.store import file_digest
from benchflow.tasks import digest_tree

NO_SKILL_EXCLUDES = ("skills",)
"""Directories left out of the build context, since the agent is not to have the task's skills."""


async def image_config(
    task: Task,
    directory: Path,
    external: Path | None,
    hidden: tuple[str, ...],
    *,
    files_target: str | None = None,
    rebuild: str | None = None,
) -> ImageConfig:
    """Return what the task's image is made from.

    Args:
        task: The task.
        directory: Of its files.
        external: A build context outside of the task, on this host.
        hidden: Paths of this host that no step of a build may see.
        files_target: Directory for the files beside a ready image; None for the image's working directory.
        rebuild: The request to build it anew, if there is one.
    """
    timeout = task.sandbox.build_timeout_sec
    if task.sandbox.docker_image is not None:
        config = ImageConfig(image=task.sandbox.docker_image, timeout_sec=timeout, rebuild=rebuild)
        files = await asyncio.to_thread(_loose_files, task, directory)
        if files is None:
            return config
        tree = await asyncio.to_thread(digest_tree, files, exclude=NO_SKILL_EXCLUDES)
        return config.model_copy(
            update={
                "context": str(files),
                "exclude": NO_SKILL_EXCLUDES,
                "digest": short_hash(tree, 32),
                "files_target": files_target,
                # Where nothing names a workspace, it is /app, if that exists. The split layout has its tests in `/`.
                "files_fallback": "/app" if task.layout == "native" else "/",
            }
        )
    assert task.dockerfile is not None  # a task without an image is refused when it is read
    dockerfile = directory / task.dockerfile
    context = external or directory / "environment"

    def digest() -> str:
        tree = digest_tree(context, exclude=NO_SKILL_EXCLUDES)
        return short_hash(f"{tree}/{file_digest(dockerfile)}", 32)

    return ImageConfig(
        context=str(context),
        dockerfile=str(dockerfile),
        exclude=NO_SKILL_EXCLUDES,
        digest=await asyncio.to_thread(digest),
        timeout_sec=timeout,
        hidden=hidden,
        rebuild=rebuild,
    )


def _loose_files(task: Task, directory: Path) -> Path | None:
    """Return the directory whose files go into the workspace, if there are some besides skills.

    What builds an image or starts containers uses them itself. A `.gitkeep` alone only has git keep the directory.
    """
    if task.environment_dir is None or task.dockerfile is not None or task.compose_file is not None:
        return None
    files = directory / task.environment_dir
    names = {path.name for path in files.iterdir()} - {*NO_SKILL_EXCLUDES, ".gitkeep"}
    return files if names else None


async def world_image_config(
    directory: Path, timeout_sec: float, hidden: tuple[str, ...], *, rebuild: str | None = None
) -> ImageConfig:
    """Return what a manifest's own image is made from. directory: the `image/` beside the manifest."""
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
