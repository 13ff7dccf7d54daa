"""Making the world ready inside a sandbox: the image it starts from, setup commands, the healthcheck."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from benchflow.contracts.ids import short_hash
from benchflow.contracts.images import ImageConfig
from benchflow.contracts.rollout import Step
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import Healthcheck, Task
from benchflow.errors import ReadinessError, SetupCommandError
from benchflow.planes.sandbox.timeouts import awake_clock
from benchflow.secrets import Secrets
from benchflow.store import file_digest
from benchflow.tasks import digest_tree

_COMMAND_SEC = 30.0
"""What a command may take beside its own time: to be started, and to be ended."""

_TAIL = 4000
NO_SKILL_EXCLUDES = ("skills",)
"""Left out of the build context when the agent is not to have the task's skills."""


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
    """What the image of a manifest's own is made from. directory: the `image/` beside the manifest."""
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


async def run_setup_commands(sandbox: Sandbox, task: Task, env: dict[str, str], secrets: Secrets) -> None:
    """Run the task's setup commands in order, each once. Raises `SetupCommandError` at the first that fails."""
    for number, command in enumerate(task.sandbox.setup_commands):
        result = await sandbox.exec_once(
            f"setup-{number}",
            ["sh", "-c", command.command],
            env=env | secrets.resolve(command.env),
            cwd=command.cwd or sandbox.ref.workdir,
            user=command.user,
            timeout=command.timeout_sec,
        )
        if result.return_code != 0 or result.timed_out:
            how = f"took longer than {command.timeout_sec:g} s" if result.timed_out else "failed"
            raise SetupCommandError(
                f"setup command {number + 1} {how} (exit status {result.return_code}): {command.command}",
                file=task.config_file,
                key=f"setup_commands[{number}]",
                remedy="mend the command, or raise its timeout_sec",
                log_tail=(result.stdout + result.stderr)[-_TAIL:],
            )


async def run_step_setup(
    sandbox: Sandbox, step: Step, env: dict[str, str], timeout: float, *, cwd: str, user: str | int | None
) -> None:
    """Run the `setup.sh` that a step's `workdir/` brought to `cwd`, once. Raises `SetupCommandError`."""
    run = "chmod +x ./setup.sh 2>/dev/null; command -v bash >/dev/null && exec bash ./setup.sh; exec sh ./setup.sh"
    result = await sandbox.exec_once(
        f"step-setup-{step.index}", ["sh", "-c", run], env=env, cwd=cwd, user=user, timeout=timeout
    )
    if result.return_code != 0 or result.timed_out:
        how = f"took longer than {timeout:g} s" if result.timed_out else f"ended with {result.return_code}"
        raise SetupCommandError(
            f"the step's setup.sh {how}",
            file=f"steps/{step.name}/workdir/setup.sh",
            remedy="mend the script",
            log_tail=(result.stdout + result.stderr)[-_TAIL:],
        )


def health_limit(check: Healthcheck) -> float:
    """The most seconds that a healthcheck can take before it is decided. With less, a machine that is slow to start
    commands would begin it again for ever.
    """
    return check.start_period_sec + (check.retries + 2) * (check.interval_sec + check.timeout_sec + _COMMAND_SEC)


async def check_health(sandbox: Sandbox, check: Healthcheck, env: dict[str, str]) -> None:
    """Return as soon as the command exits 0; raise `ReadinessError` after `retries` failures in a row.

    As in Docker, failures within the start period do not count. Unlike there, the first try is made at once, and it
    does not count either.
    """
    async with awake_clock() as clock:
        await _check_until_healthy(sandbox, check, env, clock)


async def _check_until_healthy(
    sandbox: Sandbox, check: Healthcheck, env: dict[str, str], clock: Callable[[], float]
) -> None:
    failures = -1
    while True:
        result = await sandbox.exec(
            ["sh", "-c", check.command], env=env, cwd=sandbox.ref.workdir, timeout=check.timeout_sec
        )
        if result.return_code == 0 and not result.timed_out:
            return
        starting = clock() < check.start_period_sec
        failures += 0 if starting else 1
        if failures >= check.retries:
            how = "timed out" if result.timed_out else f"exit status {result.return_code}"
            raise ReadinessError(
                f"the world did not become healthy: {how} after {check.retries} retries: {check.command}",
                key="healthcheck",
                remedy="mend the service or the command, or give it a longer start_period_sec",
                log_tail=(result.stdout + result.stderr)[-_TAIL:] or None,
            )
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)
