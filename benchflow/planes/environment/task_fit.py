"""Check that a task fits a manifest: the task's own Dockerfile must build FROM the manifest's `base_image`."""

from __future__ import annotations

from pathlib import Path

from benchflow.confined import MAX_TEXT, read_regular
from benchflow.contracts.environment import Manifest
from benchflow.contracts.task import Task
from benchflow.errors import ManifestError, UnsafePathError
from benchflow.planes.sandbox.bases import add_tag
from benchflow.planes.sandbox.local.build.syntax import (
    SyntaxMistakeError,
    UnsupportedSyntaxError,
    check_directives,
    expand,
    parse_flags,
    parse_instructions,
    split_words,
)


def check_task_fits(manifest: Manifest, task: Task, *, source: Path, directory: Path) -> str | None:
    """Return the base image as the task's Dockerfile names it; None if the manifest has no `base_image`.

    Args:
        manifest: The manifest.
        task: The task.
        source: Path of the manifest's file.
        directory: Directory of the task.

    Raises:
        ManifestError: The task has no Dockerfile, or builds FROM another image. It names both files.
    """
    wanted = manifest.base_image
    if wanted is None:
        return None
    definition = directory / task.config_file
    if task.sandbox.docker_image is not None:
        raise ManifestError(
            f"{definition} names a docker_image of its own, and base_image means that tasks build FROM {wanted}",
            file=str(source),
            key="environment.base_image",
            remedy="remove docker_image and add environment/Dockerfile, or write `image` into the manifest",
        )
    if task.dockerfile is None:
        raise ManifestError(
            f"{directory} has no environment/Dockerfile, and base_image means that tasks build FROM {wanted}",
            file=str(source),
            key="environment.base_image",
            remedy=f"add environment/Dockerfile with `FROM {wanted}`, or write `image` into the manifest",
        )
    dockerfile = directory / task.dockerfile
    try:
        base = find_base_image(read_regular(dockerfile, MAX_TEXT).decode("utf-8-sig", errors="replace"))
    except (SyntaxMistakeError, UnsupportedSyntaxError, UnsafePathError, OSError) as error:
        raise ManifestError(
            f"what {dockerfile} builds FROM cannot be told: {error}",
            file=str(source),
            key="environment.base_image",
            remedy=f"mend the Dockerfile, and begin its last stage with `FROM {wanted}`",
        ) from error
    if add_tag(base) != add_tag(wanted):
        raise ManifestError(
            f"{dockerfile} builds FROM {base}, not FROM {wanted}",
            file=str(source),
            key="environment.base_image",
            remedy=f"write `FROM {wanted}` into the Dockerfile, or name {base} in the manifest",
        )
    return base


def find_base_image(dockerfile: str) -> str:
    """Return the base image of a Dockerfile's last stage, as written there, followed through named stages.

    Raises:
        SyntaxMistakeError: The Dockerfile has no FROM, or one that cannot be expanded.
        UnsupportedSyntaxError: The Dockerfile reader does not support an instruction.
    """
    check_directives(dockerfile)
    stages: dict[str, str] = {}
    defaults: dict[str, str] = {}
    base: str | None = None
    for instruction in parse_instructions(dockerfile):
        if instruction.word == "ARG" and base is None:
            for word in split_words(instruction.rest):
                name, given, value = word.partition("=")
                if given:
                    defaults[name] = expand(value, defaults, lambda _: None)
        elif instruction.word == "FROM":
            image, *more = split_words(parse_flags(instruction.rest)[1]) or [""]
            name = expand(image, defaults, _refuse_variable)
            if not name:
                raise SyntaxMistakeError(f"line {instruction.line}: the image's name is empty")
            base = stages.get(name.lower(), name)
            if len(more) == 2 and more[0].upper() == "AS":
                stages[more[1].lower()] = base
    if base is None:
        raise SyntaxMistakeError("it has no FROM")
    return base


def _refuse_variable(name: str) -> None:
    """Raise `SyntaxMistakeError` for a variable of FROM that has no default, as `expand` calls it for an unset one."""
    raise SyntaxMistakeError(f"${name} has no default")
