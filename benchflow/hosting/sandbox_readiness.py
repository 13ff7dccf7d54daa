"""Prepare a sandbox for its agent or verifier: setup commands, a step's `setup.sh`, healthchecks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from benchflow.contracts.rollout_records import Step
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_config import Healthcheck, SetupCommand
from benchflow.errors import ReadinessError, SandboxSetupError
from benchflow.planes.sandbox.timeouts import awake_clock
from benchflow.secrets import Secrets

_COMMAND_SEC = 30.0
"""Seconds for a command beside its own timeout: to start it, and to end it."""

_TAIL = 4000


async def run_setup_commands(
    sandbox: Sandbox, commands: Sequence[SetupCommand], env: dict[str, str], secrets: Secrets, *, file: str
) -> None:
    """Run setup commands in order, each at most once in this sandbox, also if this is called again.

    Args:
        sandbox: The sandbox.
        commands: Setup commands of the task.
        env: Environment of all commands.
        secrets: Values of the variables that the commands' own environments name.
        file: Configuration file of the task, for errors.

    Raises:
        SandboxSetupError: A command failed or timed out; the rest is not run.
    """
    for number, command in enumerate(commands):
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
            raise SandboxSetupError(
                f"setup command {number + 1} {how} (exit status {result.return_code}): {command.command}",
                file=file,
                key=f"setup_commands[{number}]",
                remedy="mend the command, or raise its timeout_sec",
                log_tail=(result.stdout + result.stderr)[-_TAIL:],
            )


async def run_step_setup(
    sandbox: Sandbox, step: Step, env: dict[str, str], timeout: float, *, cwd: str, user: str | int | None
) -> None:
    """Run the `setup.sh` that was uploaded to `cwd` from a step's `workdir/`, at most once in this sandbox.

    Args:
        sandbox: The sandbox.
        step: The step.
        env: Environment of the script.
        timeout: Seconds after which the script is killed.
        cwd: Directory with the script, in which it runs.
        user: User as whom it runs; None for root.

    Raises:
        SandboxSetupError: The script failed or timed out.
    """
    run = "chmod +x ./setup.sh 2>/dev/null; command -v bash >/dev/null && exec bash ./setup.sh; exec sh ./setup.sh"
    result = await sandbox.exec_once(
        f"step-setup-{step.index}", ["sh", "-c", run], env=env, cwd=cwd, user=user, timeout=timeout
    )
    if result.return_code != 0 or result.timed_out:
        how = f"took longer than {timeout:g} s" if result.timed_out else f"ended with {result.return_code}"
        raise SandboxSetupError(
            f"the step's setup.sh {how}",
            file=f"steps/{step.name}/workdir/setup.sh",
            remedy="mend the script",
            log_tail=(result.stdout + result.stderr)[-_TAIL:],
        )


def compute_health_limit(check: Healthcheck) -> float:
    """Return the maximum number of seconds after which a healthcheck has succeeded or failed for good.

    With a shorter timeout, a machine that is slow to start commands would start the check again for ever.
    """
    return check.start_period_sec + (check.retries + 2) * (check.interval_sec + check.timeout_sec + _COMMAND_SEC)


async def check_health(sandbox: Sandbox, check: Healthcheck, env: dict[str, str]) -> None:
    """Wait until the healthcheck's command exits with 0.

    As in Docker, failures within the start period do not count. Unlike there, the first try is made at once, for which
    one more failure is allowed.

    Args:
        sandbox: The sandbox.
        check: The healthcheck.
        env: Environment of the command.

    Raises:
        ReadinessError: The command failed `retries` + 1 times after the start period.
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
