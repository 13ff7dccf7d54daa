"""Worlds of a job's tasks: manifests read, and checked against the tasks, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.config import RunOptions
from benchflow.contracts.environment import EnvironmentRef, Manifest
from benchflow.contracts.ids import short_hash
from benchflow.contracts.job import AgentSpec
from benchflow.contracts.task import Task
from benchflow.errors import ConfigError, ManifestError
from benchflow.planes.environment.environment_code import describe_environment, digest_environment, load_environment
from benchflow.planes.environment.environment_manifest import digest_manifest, read_manifest
from benchflow.planes.environment.task_fit import check_task_fits
from benchflow.store import compute_file_digest
from benchflow.tasks import digest_tree, find_manifest

IMAGE = "image"
"""Directory beside a manifest with the build context of the image that the manifest names, if it comes with one."""


@dataclass(frozen=True)
class TaskWorld:
    """An environment: a manifest that was read, or the declarations of a class."""

    manifest: Manifest

    source: Path
    """File of the manifest; for an environment in code, its name."""

    code: str | None = None
    """Name of an environment in code."""

    code_root: str | None = None
    """Directory in which its module is looked up."""

    code_digest: str = ""
    """Digest of the class."""

    @classmethod
    def in_code(cls, code: str, root: Path) -> TaskWorld:
        """Import an environment in code, as its file is now. Raise `ConfigError` if that fails."""
        found = load_environment(code, str(root))
        declared = describe_environment(found, code)
        digest = digest_environment(found, declared)
        return cls(declared, Path(code), code, str(root.absolute()) if ":" in code else None, digest)

    @cached_property
    def image(self) -> Path | None:
        """Return the build context of the image that the manifest names; None if it comes with none.

        Raises:
            ManifestError: The directory is a link that leads out of the manifest's directory.
        """
        directory = self.source.absolute().parent / IMAGE
        if self.code is not None or not (directory / "Dockerfile").is_file():
            return None
        if not directory.resolve().is_relative_to(directory.parent.resolve()):
            raise ManifestError(
                "is a link that leads out of the directory of its manifest",
                file=str(directory),
                remedy="copy what it points to there",
            )
        return directory

    def ref(self, image: ArtifactRef | None) -> EnvironmentRef:
        """Return the reference by which a job's specification contains the world.

        Args:
            image: Packed build context of its image, if it has one.
        """
        if self.code is not None:
            return EnvironmentRef(
                manifest=self.manifest,
                digest=self.code_digest,
                source=self.code,
                code=self.code,
                code_root=self.code_root,
            )
        files = digest_tree(self.image) if self.image else None
        digest = digest_manifest(self.manifest, files)
        return EnvironmentRef(manifest=self.manifest, digest=digest, source=str(self.source.absolute()), image=image)


def load_given_world(config: RunOptions) -> TaskWorld | None:
    """Return the environment in code that a configuration names for all tasks; None for none.

    Raises:
        ConfigError: Options contradict each other, or the environment cannot be imported.
    """
    name, path = config.environment_name, config.environment_import_path
    given = [
        key for key in ("environment_manifest", "environment_name", "environment_import_path") if getattr(config, key)
    ]
    if len(given) > 1:
        raise ConfigError(
            f"is the world of all tasks, and so is {given[0]}", key=given[1], remedy="give one of the two"
        )
    if path is not None and not all(path.partition(":")):
        raise ConfigError(
            f"{path!r} is no import path", key="environment_import_path", remedy="write package.module:Class"
        )
    if name is not None and ":" in name:
        raise ConfigError(
            f"{name!r} is no entry point", key="environment_name", remedy="give module:Class as an import path"
        )
    if config.environment_root is not None and path is None:
        raise ConfigError(
            "is for an environment by import path, and none is given",
            key="environment_root",
            remedy="give environment_import_path, or leave it out",
        )
    code = path or name
    return TaskWorld.in_code(code, config.environment_root or Path.cwd()) if code is not None else None


def compute_image_digest(directory: Path, task: Task) -> str:
    """Return the digest of the files that a task's image is built from; empty if the task has no Dockerfile."""
    if task.dockerfile is None:
        return ""
    context = directory / (task.environment_dir or "environment")
    return short_hash(f"{digest_tree(context)}/{compute_file_digest(directory / task.dockerfile)}", 32)


class TaskWorlds:
    """Worlds of a job's tasks.

    `found` has them by task name, as `add` finds them.
    """

    def __init__(self, option: Path | None, given: TaskWorld | None = None) -> None:
        """Make it from the options that apply to all tasks.

        Args:
            option: Manifest file for all tasks.
            given: Environment in code for all tasks.
        """
        self._option = option
        self._given = given
        self._read: dict[Path, TaskWorld] = {}
        self._base: dict[str, str] = {}
        self.found: dict[str, TaskWorld] = {}

    @property
    def has_image(self) -> bool:
        """Return whether the world for all tasks names their image."""
        return self._option is not None or (self._given is not None and self._given.manifest.has_image)

    def add(self, path: Path, task: Task) -> set[str]:
        """Find the world of a task and check that they fit.

        Args:
            path: Directory of the task.
            task: The task.

        Returns:
            Names of the variables that the world is given; empty if the task has no world.

        Raises:
            ManifestError: The manifest is wrong, or does not fit the task.
        """
        if self._given is not None:
            return self._add_given(path, task, self._given)
        source = find_manifest(path, task, self._option)
        if source is None:
            return set()
        if source not in self._read:
            self._read[source] = TaskWorld(read_manifest(source), source)
        world = self._read[source]
        check_task_fits(world.manifest, task, source=source, directory=path)
        self.found[task.name] = world
        if world.manifest.base_image is not None and task.dockerfile is not None:
            self._base[task.name] = compute_image_digest(path, task)
        return set(world.manifest.forward_env.keys)

    def _add_given(self, path: Path, task: Task, world: TaskWorld) -> set[str]:
        self.found[task.name] = world
        if not world.manifest.has_image:
            self._base[task.name] = compute_image_digest(path, task) or task.sandbox.docker_image or ""
        return set(world.manifest.forward_env.keys)

    def shared(self, agents: Sequence[AgentSpec]) -> TaskWorld | None:
        """Return the persistent world that all rollouts of the job share; None if no world is persistent.

        Raises:
            ManifestError: The world is persistent, but the job's rollouts cannot share it.
        """
        worlds = {world.source: world for world in self.found.values()}
        shared = next((world for world in worlds.values() if world.manifest.isolation == "persistent"), None)
        if shared is None:
            return None
        problem = self._why_not(shared, len(worlds), agents)
        if problem is not None:
            raise ManifestError(
                f'isolation = "persistent" means one sandbox for the whole job, and {problem[0]}',
                file=str(shared.source),
                key="environment.isolation",
                remedy=problem[1],
            )
        return shared

    def _why_not(self, world: TaskWorld, n_worlds: int, agents: Sequence[AgentSpec]) -> tuple[str, str] | None:
        """Return the reason why rollouts cannot share a persistent world, and a remedy; None if they can."""
        chosen = world.manifest.task_selection
        if n_worlds > 1:
            return "its tasks have several manifests", "submit the tasks of each manifest by themselves"
        if len(agents) > 1:
            return f"{len(agents)} agents would act in it", "submit a job for each agent"
        if len(set(self._base.values())) > 1:
            return "its tasks have images of their own", "give all tasks one Dockerfile, or name an `image`"
        if len(self.found) > 1 and (chosen.mechanism, chosen.inject_into) == ("env_var", "entrypoint"):
            return "its entrypoint would learn of the first task only", 'write inject_into = "exec"'
        return None
