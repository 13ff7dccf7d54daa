"""How a sandbox of a task is made: its image, its specification, and when it is ready.

It is the same for the agent's sandbox, for a verifier's clean room, and for a rollout that is scored again, so that a
verifier meets the same world wherever it runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.environment import EnvironmentRef
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.provider import SandboxProvider
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_config import SandboxConfig
from benchflow.contracts.task import Task
from benchflow.contracts.verifier import VerifierConfig
from benchflow.errors import ImagePullError, SandboxStartError
from benchflow.hosting import images
from benchflow.hosting.readiness import check_health, health_limit, run_setup_commands
from benchflow.planes.agent.account import AGENT_USER
from benchflow.planes.reward.hardening import HardeningBaseline, take_baseline
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.secrets import Secrets, is_literal


@dataclass(frozen=True)
class Blueprint:
    """What a sandbox is made from."""

    task: Task
    """The task as this sandbox is to be made."""

    directory: Path
    """Directory of the task's files."""

    external: Path | None
    """A build context that is not the task's `environment/`."""

    environment: EnvironmentRef | None
    """The world that it is set in."""

    frozen: Callable[[ArtifactRef], Awaitable[Path]]
    """Finds a packed directory on this host."""

    provider: SandboxProvider
    hidden: tuple[str, ...]
    """Paths that a sandbox which sees its host must not see, besides those that its provider hides anyway."""

    rebuild: str | None = None
    """Request of the job to build its images anew."""

    table: SandboxConfig | None = None
    """The task's own table, where a clean room has another: its image is the same, with files in the same place."""

    def of_verifier(self, step: str | None, config: VerifierConfig, workspace: str | None) -> Blueprint:
        """Return the blueprint of a step's clean room.

        Args:
            step: The step's name; None for the only one.
            config: Its verifier's.
            workspace: Where the agent had it, and where it will lie unless the room's table says otherwise.

        An image that the table names, or a Dockerfile in the verifier's directory, takes the place of the task's (or
        its world's), with which the task's setup commands go, too. A table takes the place of the task's whole table.
        """
        own, given = config.sandbox, self.task.sandbox
        build = self.task.verifier_build_of(step)
        has_image = bool((own and own.docker_image) or build)
        changed: dict[str, Any] = {
            # In `/` only its scripts start: the agent's work would have to take the place of all that the image has.
            "workdir": (own.workdir if own and not own.works_in_root else None) or workspace,
            "network_mode": config.network_mode or (own or given).network_mode,
        }
        if own is not None and not has_image:
            changed["docker_image"] = given.docker_image
            changed["setup_commands"] = [*given.setup_commands, *own.setup_commands]
        if not has_image:
            task = self.task.model_copy(update={"sandbox": (own or given).model_copy(update=changed)})
            return replace(self, task=task, table=self.table or given)
        if own is None:
            changed |= {"docker_image": None, "setup_commands": [], "healthcheck": None}
        sandbox = (own or given).model_copy(update=changed)
        external = self.directory / Path(build).parent if build else None
        # The files of `environment/` are of the image that is not used.
        task = self.task.model_copy(update={"sandbox": sandbox, "dockerfile": build, "environment_dir": None})
        return replace(self, task=task, external=external, environment=None)

    # --- its image -------------------------------------------------------------------------------------------

    async def image(self, *, log: Path | None = None) -> ImageRef:
        """Return the image that the sandbox starts from: the task's, or the world's; built if it is not there."""
        environment = self.environment
        if environment is None or not environment.manifest.has_image:
            return await self.provider.build(await self._own_image(), log=log)
        manifest = environment.manifest
        if manifest.image is not None:
            with _named_by(environment):
                return await self.provider.build(await self.world_image_config(environment), log=log)
        config = await self._own_image()
        assert manifest.base_image is not None
        if environment.image is not None:
            below = await self.world_image_config(environment)
            made = await self.provider.build(below, log=log.with_name("base-image.log") if log else None)
            config = config.model_copy(update={"bases": {manifest.base_image: made.reference}})
        return await self.provider.build(config, log=log)

    async def _own_image(self) -> ImageConfig:
        target = (self.table or self.task.sandbox).workdir
        return await images.image_config(
            self.task, self.directory, self.external, self.hidden, files_target=target, rebuild=self.rebuild
        )

    async def world_image_config(self, environment: EnvironmentRef) -> ImageConfig:
        """Return the configuration of the manifest's image: made from its `image/`, or one that is there."""
        timeout = self.task.sandbox.build_timeout_sec
        if environment.image is None:
            manifest = environment.manifest
            return ImageConfig(image=manifest.image or manifest.base_image, timeout_sec=timeout)
        directory = await self.frozen(environment.image)
        return await images.world_image_config(directory, timeout, self.hidden, rebuild=self.rebuild)

    # --- the sandbox -----------------------------------------------------------------------------------------

    def spec(self, name: str, image: ImageRef, labels: dict[str, str]) -> SandboxSpec:
        """Return the specification of the sandbox."""
        config = self.task.sandbox
        return SandboxSpec(
            name=name,
            image=image,
            labels=labels,
            env={key: value for key, value in config.env.items() if is_literal(value)},
            workdir=config.workdir,
            network_mode=config.network_mode,
            cpus=config.cpus,
            memory_mb=config.memory_mb,
            # Where it cannot be enforced, that is recorded when the rollout is planned.
            storage_mb=config.storage_mb if self.provider.capabilities().storage_limit else None,
            hidden=self.hidden,
            # That of a world's image is for the world's own program.
            image_user=None if self.environment is not None and self.environment.manifest.has_image else image.user,
        )

    async def start_alone(
        self, name: str, labels: dict[str, str], limit: float, *, base: ImageRef | None = None, **where: Any
    ) -> Sandbox:
        """Find or start a sandbox where no agent will be.

        A world's services are not started: a verifier is shown the state that was kept.

        Args:
            name: The sandbox's.
            labels: Its labels.
            limit: Seconds of its start.
            base: What it begins with instead of the image: a later state of that.
            where: For `provider.start`.
        """
        spec = self.spec(name, await self.image(), labels)
        if base is not None:
            spec = spec.model_copy(update={"image": base})
        if self.environment is not None:
            spec = spec.model_copy(update={"entrypoint": "none"})
        return await start_within(self.provider.start(spec, **where), limit)

    async def set_up(self, sandbox: Sandbox, env: dict[str, str], secrets: Secrets) -> None:
        """Run the setup commands. env: of the task's commands. Raises `SetupCommandError`."""
        commands = self.task.sandbox.setup_commands
        await run_setup_commands(sandbox, commands, env, secrets, file=self.task.config_file)

    async def make_ready(
        self, sandbox: Sandbox, env: dict[str, str], secrets: Secrets, *, is_set_up: bool = False
    ) -> None:
        """Make a sandbox ready where no agent will be.

        Args:
            sandbox: The sandbox.
            env: Environment of the task's commands.
            secrets: For what the commands name.
            is_set_up: True if it began with what the setup commands have left.
        """
        if not is_set_up:
            await self.set_up(sandbox, env, secrets)
        if self.task.sandbox.healthcheck is not None:
            await check_health(sandbox, self.task.sandbox.healthcheck, env)
        # The processes that run by now are the task's own and stay, as they do when an agent comes.
        await sandbox.mark_baseline()

    async def room_baseline(self, sandbox: Sandbox, user: str | int | None) -> HardeningBaseline:
        """Return what a fresh sandbox is before the agent's work is put into it. user: that the verifier's table names.

        Nobody acts there, so that no program has to be checked for changes.
        """
        default = self.task.verifies_as(sandbox.ref.image_user)
        return await take_baseline(sandbox, agent=AGENT_USER, verifier=user, default=default)

    def ready_sec(self, start_sec: float) -> float:
        """Return the most seconds until it is ready, from its image on. start_sec: of its start."""
        config = self.task.sandbox
        builds = config.build_timeout_sec * (2 if self.environment is not None else 1)
        health = health_limit(config.healthcheck) if config.healthcheck is not None else 0.0
        return builds + start_sec + sum(command.timeout_sec for command in config.setup_commands) + health


async def start_within(starting: Awaitable[Sandbox], limit: float) -> Sandbox:
    """Wait for a sandbox that is being started. Raises `SandboxStartError` after `limit` seconds."""
    try:
        async with awake_timeout(limit):
            return await starting
    except TimeoutError as error:
        raise SandboxStartError(
            f"the sandbox did not start within {limit:g} s",
            key="sandbox_setup_timeout",
            remedy="raise sandbox_setup_timeout, or see what keeps the host busy",
        ) from error


@contextlib.contextmanager
def _named_by(environment: EnvironmentRef) -> Iterator[None]:
    """Say in the error for an image that can't be had that the manifest names it."""
    try:
        yield
    except ImagePullError as error:
        error.file, error.key = environment.source, "environment.image"
        error.remedy = f"put its Dockerfile into image/ beside the manifest, or {error.remedy}"
        raise
