"""A new sandbox for a stored rollout, as its first one was before the agent came, and gone when it has served.

No worker knows these sandboxes. What a process that was killed leaves is found by its labels and removed by the next.
"""

from __future__ import annotations

import asyncio
import os
import secrets as randomness
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow.activities.world import check_health, image_config, run_setup_commands, world_image_config
from benchflow.contracts.environment import EnvironmentRef
from benchflow.contracts.sandbox import ImageConfig, ImageRef, Sandbox, SandboxProvider, SandboxSpec
from benchflow.contracts.task import VerifierConfig
from benchflow.errors import BenchFlowError, SandboxStartError
from benchflow.paths import StatePaths
from benchflow.planes.sandbox.local.helper.process import start_time
from benchflow.planes.sandbox.local.machine import OWNER_LABEL, owned_by_this_process
from benchflow.rescoring.stored import StoredRollout
from benchflow.rescoring.tasks import FoundTask, unpacked
from benchflow.secrets import Secrets, is_literal
from benchflow.tasks import require_supported

OWNER = "bench-rescore"
"""Whose these sandboxes are, in place of a stack."""

LIFETIME_SEC = 6 * 3600.0
"""When a sandbox that is still there is nobody's any more, whoever started it."""

_DEADLINE = "benchflow.deadline"


@dataclass(frozen=True)
class Setting:
    """What a rollout's verifier is run in."""

    rollout: StoredRollout
    found: FoundTask
    provider: SandboxProvider
    secrets: Secrets
    state: StatePaths

    def env(self, config: VerifierConfig | None = None) -> dict[str, str]:
        """The variables of a command, as at the first scoring. config: of the verifier whose command it is."""
        world = self.rollout.spec.task.environment
        task = self.found.task
        told = world.manifest.task_env(task.name, "exec") if world is not None else {}
        return self.secrets.resolve(told, task.sandbox.env, config.env if config is not None else {})


@asynccontextmanager
async def started(setting: Setting) -> AsyncIterator[Sandbox]:
    """The sandbox: set up and healthy, without anything that an agent did. It is removed in any case."""
    task, provider = setting.found.task, setting.provider
    require_supported(task, provider.capabilities())
    setting.secrets.check(task)
    hidden = _hidden(setting)
    image = await _build(setting, hidden)
    spec = _spec(setting, image, hidden)
    limit = setting.rollout.spec.run.sandbox_setup_timeout
    try:
        try:
            sandbox = await asyncio.wait_for(provider.start(spec, host_id="", queue=""), limit)
        except TimeoutError as error:
            raise SandboxStartError(
                f"the sandbox did not start within {limit:g} s", remedy="see what keeps this host busy"
            ) from error
        await run_setup_commands(sandbox, task, setting.env(), setting.secrets)
        if task.sandbox.healthcheck is not None:
            await check_health(sandbox, task.sandbox.healthcheck, setting.env())
        # What runs by now is the task's own and stays, as it did when the agent came.
        await sandbox.mark_baseline()
        yield sandbox
    finally:
        await asyncio.shield(provider.remove(spec.name))


async def remove_left(provider: SandboxProvider) -> None:
    """Remove what processes that were killed have left."""
    try:
        for sandbox in await provider.owned(OWNER):
            if _is_abandoned(sandbox.labels):
                await provider.remove(sandbox.name)
    except BenchFlowError:
        # Whether the provider works is for the first sandbox to say, if one is needed at all.
        return


def _is_abandoned(labels: dict[str, str]) -> bool:
    if time.time() > float(labels.get(_DEADLINE) or 0):
        return True
    pid, _, began = labels.get(OWNER_LABEL, "").partition(":")
    return not pid.isdecimal() or str(start_time(int(pid))) != began


def _hidden(setting: Setting) -> tuple[str, ...]:
    """What a sandbox that sees its host must not see of it, as at the first scoring."""
    found, rollout = setting.found, setting.rollout
    jobs_dir = rollout.paths.root.absolute().parent.parent
    places = (found.directory, found.context, rollout.spec.task.source, jobs_dir)
    return tuple(str(place) for place in places if place and Path(place).exists())


def _spec(setting: Setting, image: ImageRef, hidden: tuple[str, ...]) -> SandboxSpec:
    config, provider = setting.found.task.sandbox, setting.provider
    world = setting.rollout.spec.task.environment
    return SandboxSpec(
        name=f"bf-rescore-{os.getpid()}-{randomness.token_hex(6)}",
        image=image,
        labels={
            "benchflow.stack": OWNER,
            _DEADLINE: str(int(time.time() + LIFETIME_SEC)),
            **owned_by_this_process(),
        },
        env={key: value for key, value in config.env.items() if is_literal(value)},
        workdir=config.workdir,
        network_mode=config.network_mode,
        cpus=config.cpus,
        memory_mb=config.memory_mb,
        storage_mb=config.storage_mb if provider.capabilities().storage_limit else None,
        hidden=hidden,
        # A world's services are not started: what its state was is shown to the verifier as it was kept.
        entrypoint="none" if world is not None else "wraps",
    )


async def _build(setting: Setting, hidden: tuple[str, ...]) -> ImageRef:
    """The image that the rollout began with: the task's, or the world's."""
    found, provider = setting.found, setting.provider
    world = setting.rollout.spec.task.environment
    if world is not None and world.manifest.image is not None:
        return await provider.build(await _image_of(world, setting, hidden))
    config = await image_config(found.task, found.directory, found.context, hidden)
    if world is not None and world.image is not None and world.manifest.base_image is not None:
        below = await provider.build(await _image_of(world, setting, hidden))
        config = config.model_copy(update={"bases": {world.manifest.base_image: below.reference}})
    return await provider.build(config)


async def _image_of(world: EnvironmentRef, setting: Setting, hidden: tuple[str, ...]) -> ImageConfig:
    """The image that a manifest names: made from what was frozen with it, or one that is here."""
    timeout = setting.found.task.sandbox.build_timeout_sec
    if world.image is None:
        return ImageConfig(image=world.manifest.image, timeout_sec=timeout)
    return await world_image_config(await unpacked(world.image, setting.state), timeout, hidden)
