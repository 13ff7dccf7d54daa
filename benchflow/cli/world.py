"""What `bench env check` tries a world in: the manifest and the task read, the image, the sandbox, the variables."""

from __future__ import annotations

import asyncio
import os
import secrets as randomness
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxProvider, SandboxSpec
from benchflow.contracts.task import SandboxConfig, Task
from benchflow.errors import BenchFlowError, ImagePullError
from benchflow.hosting.images import image_config, world_image_config
from benchflow.hosting.readiness import run_setup_commands
from benchflow.jobs.worlds import World, image_digest
from benchflow.paths import StatePaths
from benchflow.planes.agent.oracle import run_oracle
from benchflow.planes.environment.fit import check_task_fits
from benchflow.planes.environment.manifest import read_manifest
from benchflow.planes.environment.proofs import record_proofs
from benchflow.planes.environment.trial import EnvironmentCheck, Setting, try_world
from benchflow.planes.environment.verifier_urls import urls_of_verifier
from benchflow.planes.environment.writing import parse_post
from benchflow.planes.sandbox import close_providers, get_provider
from benchflow.planes.sandbox.choice import AUTO, choose
from benchflow.planes.sandbox.local.machine import OWNER_LABEL, is_abandoned, owned_by_this_process
from benchflow.secrets import Secrets, is_literal
from benchflow.tasks import load_task, require_supported

R = TypeVar("R")

OWNER = "bench-env-check"
"""Whose these sandboxes are, in place of a stack: no worker knows them."""

LIFETIME_SEC = 3600.0
"""When a sandbox that is still there has been left by a check that was killed."""

NO_TASK = "check"
"""The task's id that a world is told where no task was given."""

ORACLE_SEC = 600.0
"""Limit of an oracle that has none of its own, in seconds."""

_DEADLINE = "benchflow.deadline"


def setting_of(manifest: Path, task_directory: Path | None, sandbox: str, write: Sequence[str]) -> Setting:
    """Everything that can be said before a sandbox is started. Raises the typed error of the first thing wrong."""
    posts = tuple(parse_post(each) for each in write)
    task_directory = task_directory.absolute() if task_directory is not None else None
    world = World(read_manifest(manifest), manifest)
    task = None
    if task_directory is not None:
        task = load_task(task_directory, has_manifest=True)
        check_task_fits(world.manifest, task, source=manifest, directory=task_directory)
    provider = get_provider(choose().sandbox if sandbox == AUTO else sandbox)
    secrets = Secrets(os.environ, "here")
    secrets.check_world(world.ref(None))
    if task is not None:
        require_supported(task, provider.capabilities())
        secrets.check(task)
    wanted = task.sandbox if task is not None else SandboxConfig()
    forwarded = secrets.forwarded(world.manifest)
    hidden = (str(task_directory.absolute()),) if task_directory is not None else ()
    declared = world.manifest.state.observe if world.manifest.state is not None else ()
    seen = urls_of_verifier(world.manifest, task, task_directory) if task is not None and task_directory else ()
    return Setting(
        manifest=world.manifest,
        source=str(manifest),
        provider=provider,
        build=lambda: _build(provider, world, task, task_directory, hidden),
        wanted=SandboxSpec(
            name=f"bf-env-check-{randomness.token_hex(6)}",
            image=ImageRef(reference=""),
            labels={
                "benchflow.stack": OWNER,
                _DEADLINE: str(int(time.time() + LIFETIME_SEC)),
                **owned_by_this_process(),
            },
            env={key: value for key, value in wanted.env.items() if is_literal(value)},
            workdir=wanted.workdir,
            network_mode=wanted.network_mode,
            cpus=wanted.cpus,
            memory_mb=wanted.memory_mb,
            storage_mb=wanted.storage_mb if provider.capabilities().storage_limit else None,
            hidden=hidden,
        ),
        task=task.name if task is not None else NO_TASK,
        env=secrets.resolve(wanted.env) | forwarded,
        secrets=forwarded if world.manifest.owns_lifecycle else {},
        prepare=_setup_of(task, world, secrets) if task is not None else None,
        posts=posts,
        observe=declared or seen,
        is_declared=bool(declared),
        has_task=task is not None,
        solve=_oracle_of(task, task_directory, world, secrets) if task is not None and task_directory else None,
    )


def _oracle_of(
    task: Task, directory: Path, world: World, secrets: Secrets
) -> Callable[[Sandbox], Awaitable[str]] | None:
    """Return what runs the oracles of a task, one step after another, and says how they ended. None: it has none."""
    found = [task.oracle_dir_of(step.name) for step in task.steps] if task.steps else [task.oracle_dir]
    sources = [directory / source for source in found if source is not None]
    if not sources:
        return None
    env = secrets.resolve(world.manifest.task_env(task.name, "exec"), task.sandbox.env, task.oracle.env)
    limit = task.oracle.timeout_sec or ORACLE_SEC

    async def solve(sandbox: Sandbox) -> str:
        for number, source in enumerate(sources):
            target = "/solution" if source.name == "solution" else "/oracle"
            turn, _ = await run_oracle(
                sandbox, key=f"oracle-{number}", source=source, target=target, env=env, timeout=limit
            )
            if turn.failure is not None:
                return f"the oracle of {task.name} was run: {turn.failure.message}"
        return f"the oracle of {task.name} was run"

    return solve


def _setup_of(task: Task, world: World, secrets: Secrets) -> Callable[[Sandbox], Awaitable[None]]:
    """The task's own setup commands, which a rollout runs before its world is started."""
    env = secrets.resolve(world.manifest.task_env(task.name, "exec"), task.sandbox.env)

    async def prepare(sandbox: Sandbox) -> None:
        await run_setup_commands(sandbox, task.sandbox.setup_commands, env, secrets, file=task.config_file)

    return prepare


def run_to_its_end(work: Coroutine[Any, Any, R]) -> R:
    """Carry it out; a request to end (SIGTERM) is an interrupt, after which it may tidy up."""

    async def whole() -> R:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(whole())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def tried(setting: Setting, tell: Callable[[str], None], task: Path | None = None) -> EnvironmentCheck:
    """Try the world, write down what is known of its copies, and let go of its provider.

    Args:
        setting: What it is tried in.
        tell: Is told what is tried now.
        task: The directory of the task whose world it is, if any.
    """
    try:
        await _remove_left(setting.provider)
        found = await try_world(setting, tell)
        world = World(setting.manifest, Path(setting.source))
        of = (
            {"task": setting.task, "task_image": image_digest(task, load_task(task, has_manifest=True))} if task else {}
        )
        proofs = [proof.model_copy(update=of) for proof in found.urls]
        record_proofs(StatePaths.default(), world.ref(None).digest, proofs)
        return found
    finally:
        await close_providers(OWNER)


async def _remove_left(provider: SandboxProvider) -> None:
    """What checks that were killed have left."""
    try:
        for sandbox in await provider.owned(OWNER):
            is_late = time.time() > float(sandbox.labels.get(_DEADLINE) or 0)
            # A clock may be set, and a host asleep, while a check goes on.
            if is_late and is_abandoned(sandbox.labels.get(OWNER_LABEL, "")):
                await provider.remove(sandbox.name)
                await provider.remove_snapshots(f"{sandbox.name}-")
    except BenchFlowError:
        # Whether the provider works is for the trial to say.
        return


async def _build(
    provider: SandboxProvider, world: World, task: Task | None, directory: Path | None, hidden: tuple[str, ...]
) -> ImageRef:
    """The image that a rollout's sandbox would start from; without a task, the one that the manifest names."""
    own = await _own_image(world, hidden)
    if world.manifest.image is not None or task is None or directory is None:
        try:
            return await provider.build(own)
        except ImagePullError as error:
            error.file = str(world.source)
            error.key = "environment.image" if world.manifest.image is not None else "environment.base_image"
            raise
    external = Path(task.context_root) if task.context_root is not None else None
    config = await image_config(task, directory, external, hidden, files_target=task.sandbox.workdir)
    if own.context is not None and world.manifest.base_image is not None:
        made = await provider.build(own)
        config = config.model_copy(update={"bases": {world.manifest.base_image: made.reference}})
    return await provider.build(config)


async def _own_image(world: World, hidden: tuple[str, ...]) -> ImageConfig:
    directory = world.image
    if directory is None:
        return ImageConfig(image=world.manifest.image or world.manifest.base_image, entrypoint=True)
    return await world_image_config(directory, SandboxConfig().build_timeout_sec, hidden)
