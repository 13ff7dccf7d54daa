"""A new sandbox for a stored rollout, as its first one was before the agent came, and gone when it has served.

No worker knows these sandboxes. What a process that was killed leaves is found by its labels and removed by the next.
"""

from __future__ import annotations

import os
import secrets as randomness
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow.contracts.sandbox import Sandbox, SandboxProvider
from benchflow.contracts.task import Task, VerifierConfig
from benchflow.errors import BenchFlowError
from benchflow.hosting.blueprint import Blueprint
from benchflow.paths import StatePaths
from benchflow.planes.reward.hardening import HardeningBaseline
from benchflow.planes.reward.verify import config_of
from benchflow.planes.sandbox.cancellation import see_through
from benchflow.planes.sandbox.local.machine import OWNER_LABEL, is_abandoned, owned_by_this_process
from benchflow.rescoring.stored import StoredRollout
from benchflow.rescoring.tasks import FoundTask, unpacked
from benchflow.secrets import Secrets
from benchflow.tasks import require_supported, verified_in

OWNER = "bench-rescore"
"""Whose these sandboxes are, in place of a stack."""


@dataclass(frozen=True)
class Setting:
    """What a rollout's verifier is run in. step: whose verifier it is."""

    rollout: StoredRollout
    found: FoundTask
    step: str | None
    provider: SandboxProvider
    secrets: Secrets
    state: StatePaths

    def env(self, config: VerifierConfig | None = None) -> dict[str, str]:
        """The variables of a command, as at the first scoring. config: of the verifier whose command it is."""
        world = self.rollout.spec.task.environment
        task = self.blueprint.task
        told = world.manifest.task_env(task.name, "exec") if world is not None else {}
        return self.secrets.resolve(told, task.sandbox.env, config.env if config is not None else {})

    @property
    def task(self) -> Task:
        run = self.rollout.spec.run
        return verified_in(self.found.task, run.verify_in, run.reward_key)

    @property
    def blueprint(self) -> Blueprint:
        """What its sandbox is made from: the verifier's own, if the first one had one."""
        found, rollout = self.found, self.rollout
        jobs_dir = rollout.paths.root.absolute().parent.parent
        # What a sandbox that sees its host must not see of it, as at the first scoring.
        places = (found.directory, found.context, rollout.spec.task.source, jobs_dir)
        made = Blueprint(
            self.task,
            found.directory,
            found.context,
            rollout.spec.task.environment,
            lambda pack: unpacked(pack, self.state),
            self.provider,
            hidden=tuple(str(place) for place in places if place and Path(place).exists()),
            rebuild=rollout.spec.run.rebuild,
        )
        if not self.has_clean_room:
            return made
        workspace = rollout.result.sandbox.get("workdir")
        return made.of_verifier(self.step, self.config, workspace)

    @property
    def config(self) -> VerifierConfig:
        return config_of(self.task, self.step)

    @property
    def has_clean_room(self) -> bool:
        return self.config.sandbox_mode == "separate"


class Room:
    """What a clean room was before the agent's work came; None until it is open."""

    def __init__(self) -> None:
        self.before: HardeningBaseline | None = None

    def __call__(self) -> HardeningBaseline | None:
        return self.before


@asynccontextmanager
async def started(setting: Setting) -> AsyncIterator[Sandbox]:
    """The sandbox: set up and healthy, without anything that an agent did. It is removed in any case."""
    blueprint, provider = setting.blueprint, setting.provider
    require_supported(setting.task, provider.capabilities())
    setting.secrets.check(setting.task)
    labels = {
        "benchflow.stack": OWNER,
        **owned_by_this_process(),
    }
    name = f"bf-rescore-{os.getpid()}-{randomness.token_hex(6)}"
    limit = setting.rollout.spec.run.sandbox_setup_timeout
    try:
        sandbox = await blueprint.start_alone(name, labels, limit, host_id="", queue="")
        await blueprint.make_ready(sandbox, setting.env(), setting.secrets)
        yield sandbox
    finally:
        await see_through(provider.remove(name))


async def remove_left(provider: SandboxProvider) -> None:
    """Remove what processes that were killed have left."""
    try:
        for sandbox in await provider.owned(OWNER):
            # However long its process takes, it may use it.
            if is_abandoned(sandbox.labels.get(OWNER_LABEL, "")):
                await provider.remove(sandbox.name)
    except BenchFlowError:
        # Whether the provider works is for the first sandbox to say, if one is needed at all.
        return
