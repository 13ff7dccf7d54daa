"""Build a task's image, and specify, start and set up sandboxes of it.

The agent's sandbox, a verifier's clean room and the sandbox of a rollout that is scored again are made in the same way,
so that a verifier meets the same world wherever it runs.
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
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_config import SandboxConfig
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.contracts.task import Task
from benchflow.contracts.verifier import VerifierConfig
from benchflow.errors import ImagePullError, SandboxStartError
from benchflow.hosting import image_configs
from benchflow.hosting.sandbox_readiness import check_health, compute_health_limit, run_setup_commands
from benchflow.planes.agent.account import AGENT_USER
from benchflow.planes.reward.hardening import HardeningBaseline, take_baseline
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.secrets import Secrets, is_literal


@dataclass(frozen=True)
class Blueprint:
    """Everything that a sandbox of a task is made from."""

    task: Task
    """Task whose sandbox table this sandbox follows; for a clean room it has the verifier's table."""

    directory: Path
    """Directory of the task's files."""

    external: Path | None
    """Build context, if it is not the task's `environment/`."""

    environment: EnvironmentRef | None
    """World that runs in the sandbox; None for a task without one."""

    frozen: Callable[[ArtifactRef], Awaitable[Path]]
    """Returns a packed directory, unpacked on this host."""

    provider: SandboxProvider
    """Provider of the sandbox."""

    hidden: tuple[str, ...]
    """Paths of this host that are hidden from a sandbox that sees its host, besides those that its provider hides."""

    rebuild: str | None = None
    """The job's request to build its images anew; None without one."""

    table: SandboxConfig | None = None
    """The task's own sandbox table, if a clean room has another one: the image is then still built by the task's."""

    def adapt_to_verifier(self, step: str | None, config: VerifierConfig, workspace: str | None) -> Blueprint:
        """Return the blueprint of the clean room of a step's verifier.

        A sandbox table of the verifier replaces the task's table as a whole. An image that it names, or a Dockerfile in
        the verifier's directory, replaces the image of the task or its world, and drops the task's setup commands.

        Args:
            step: Name of the step; None for the only one.
            config: Configuration of the step's verifier.
            workspace: Workspace of the agent's sandbox: also the room's, unless the verifier's table names another.
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

    async def prepare_image(self, *, log: Path | None = None) -> ImageRef:
        """Return the image that the sandbox starts from, the task's or the world's: found, pulled or built.

        Args:
            log: File for the output of the build.

        Raises:
            ImageBuildError: A build failed, or took too long.
            ImagePullError: A ready image can't be had.
        """
        environment = self.environment
        if environment is None or not environment.manifest.has_image:
            return await self.provider.build(await self._make_own_config(), log=log)
        manifest = environment.manifest
        if manifest.image is not None:
            with _named_by(environment):
                return await self.provider.build(await self.make_world_config(environment), log=log)
        config = await self._make_own_config()
        assert manifest.base_image is not None
        if environment.image is not None:
            below = await self.make_world_config(environment)
            made = await self.provider.build(below, log=log.with_name("base-image.log") if log else None)
            config = config.model_copy(update={"bases": {manifest.base_image: made.reference}})
        return await self.provider.build(config, log=log)

    async def _make_own_config(self) -> ImageConfig:
        target = (self.table or self.task.sandbox).workdir
        return await image_configs.make_image_config(
            self.task, self.directory, self.external, self.hidden, files_target=target, rebuild=self.rebuild
        )

    async def make_world_config(self, environment: EnvironmentRef) -> ImageConfig:
        """Return the configuration of the manifest's image: to be built from its `image/`, or a ready one.

        Args:
            environment: Reference to the world. Its packed `image/` is fetched to this host.
        """
        timeout = self.task.sandbox.build_timeout_sec
        if environment.image is None:
            manifest = environment.manifest
            return ImageConfig(image=manifest.image or manifest.base_image, timeout_sec=timeout)
        directory = await self.frozen(environment.image)
        return await image_configs.make_world_image_config(directory, timeout, self.hidden, rebuild=self.rebuild)

    # --- the sandbox -----------------------------------------------------------------------------------------

    def make_spec(self, name: str, image: ImageRef, labels: dict[str, str]) -> SandboxSpec:
        """Return the specification of the sandbox, with the limits and literal variables of the task's table.

        Args:
            name: Name of the sandbox.
            image: Image that it starts from.
            labels: Labels of the sandbox.
        """
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
            # The user of a world's image is for the world's own program.
            image_user=None if self.environment is not None and self.environment.manifest.has_image else image.user,
        )

    async def start_alone(
        self, name: str, labels: dict[str, str], limit: float, *, base: ImageRef | None = None, **where: Any
    ) -> Sandbox:
        """Return the sandbox of a name, found or started, in which no agent will act.

        Services of a world are not started: a verifier is given the captured state.

        Args:
            name: Name of the sandbox.
            labels: Labels of the sandbox.
            limit: Maximum number of seconds for the start; building the image does not count.
            base: Capture of a sandbox of this image, from which it starts instead of the image.
            where: Further arguments of `provider.start`, such as `host_id` and `queue`.

        Raises:
            SandboxStartError: The sandbox does not start in time.
        """
        spec = self.make_spec(name, await self.prepare_image(), labels)
        if base is not None:
            spec = spec.model_copy(update={"image": base})
        if self.environment is not None:
            spec = spec.model_copy(update={"entrypoint": "none"})
        return await await_start(self.provider.start(spec, **where), limit)

    async def set_up(self, sandbox: Sandbox, env: dict[str, str], secrets: Secrets) -> None:
        """Run the task's setup commands in a sandbox, in order and each at most once, also if this is called again.

        Args:
            sandbox: The sandbox.
            env: Environment of the task's commands.
            secrets: Values of the variables that the commands name.

        Raises:
            SandboxSetupError: A command fails, or takes too long.
        """
        commands = self.task.sandbox.setup_commands
        await run_setup_commands(sandbox, commands, env, secrets, file=self.task.config_file)

    async def make_ready(
        self, sandbox: Sandbox, env: dict[str, str], secrets: Secrets, *, is_set_up: bool = False
    ) -> None:
        """Run the setup commands and the healthcheck in a sandbox in which no agent will act.

        Args:
            sandbox: The sandbox.
            env: Environment of the task's commands.
            secrets: Values of the variables that the commands name.
            is_set_up: Whether the sandbox started from a capture after the setup commands, which then are not run.

        Raises:
            SandboxSetupError: A setup command fails, or takes too long.
            ReadinessError: The healthcheck does not succeed.
        """
        if not is_set_up:
            await self.set_up(sandbox, env, secrets)
        if self.task.sandbox.healthcheck is not None:
            await check_health(sandbox, self.task.sandbox.healthcheck, env)
        # The processes that run by now are the task's own and stay, as they do when an agent comes.
        await sandbox.mark_baseline()

    async def take_room_baseline(self, sandbox: Sandbox, user: str | int | None) -> HardeningBaseline:
        """Return the baseline of a clean room, to be taken before the agent's work is put into it.

        No agent acts in the room, so that no program has to be checked for changes.

        Args:
            sandbox: The room's sandbox.
            user: User that the verifier's table names; None for none.

        Raises:
            VerifierError: The sandbox can't be surveyed.
        """
        default = self.task.verifies_as(sandbox.ref.image_user)
        return await take_baseline(sandbox, agent=AGENT_USER, verifier=user, default=default)

    def compute_ready_sec(self, start_sec: float) -> float:
        """Return the maximum number of seconds until the sandbox is ready: image, start, setup commands, healthcheck.

        Args:
            start_sec: Maximum number of seconds for the start of the sandbox.
        """
        config = self.task.sandbox
        builds = config.build_timeout_sec * (2 if self.environment is not None else 1)
        health = compute_health_limit(config.healthcheck) if config.healthcheck is not None else 0.0
        return builds + start_sec + sum(command.timeout_sec for command in config.setup_commands) + health


async def await_start(starting: Awaitable[Sandbox], limit: float) -> Sandbox:
    """Return a sandbox that is being started, as soon as it runs.

    Args:
        starting: Call of `provider.start`.
        limit: Maximum number of seconds; time in which this process is frozen does not count.

    Raises:
        SandboxStartError: The sandbox did not start in time.
    """
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
    """Name the manifest's file and key in an `ImagePullError` of the block."""
    try:
        yield
    except ImagePullError as error:
        error.file, error.key = environment.source, "environment.image"
        error.remedy = f"put its Dockerfile into image/ beside the manifest, or {error.remedy}"
        raise
