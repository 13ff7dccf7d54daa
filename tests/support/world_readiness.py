"""Setup commands and the healthcheck on a real sandbox: what the activities ask of every provider."""

from __future__ import annotations

import pytest
import pytest_asyncio

from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_config import Healthcheck, SandboxConfig, SetupCommand
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.contracts.task import Task
from benchflow.errors import ReadinessError, SandboxSetupError
from benchflow.hosting.sandbox_readiness import check_health, run_setup_commands
from benchflow.secrets import Secrets
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures, nap, napping


def task_with(*commands: SetupCommand) -> Task:
    return Task(
        name="task",
        layout="split",
        config_file="task.toml",
        instruction="do it",
        sandbox=SandboxConfig(setup_commands=list(commands), env={"KEY": "${KEY}"}),
    )


SECRETS = Secrets({"KEY": "value of the key"}, "in this test")


async def run_commands(sandbox: Sandbox, task: Task) -> None:
    """Run the setup commands of a task."""
    env = SECRETS.resolve(task.sandbox.env)
    await run_setup_commands(sandbox, task.sandbox.setup_commands, env, SECRETS, file=task.config_file)


class WorldReadiness(SandboxFixtures):
    """`run_setup_commands` and `check_health`."""

    @pytest_asyncio.fixture
    async def episode(self, sandbox: Sandbox, provider: SandboxProvider, room: str) -> Sandbox:
        """The shared sandbox in an episode of the test's own, which knows of no commands."""
        return await provider.attach(sandbox.ref.model_copy(update={"episode": room[1:]}))

    async def test_setup_commands_run_in_order_as_they_are_written(self, episode: Sandbox, room: str) -> None:
        task = task_with(
            SetupCommand(command=f'echo "$KEY" >{room}/first; mkdir -m 777 {room}/place'),
            SetupCommand(command='cat ../first >second; echo "$MORE $(id -un)" >>second', cwd=f"{room}/place",
                         user="nobody", env={"MORE": "more"}),
        )  # fmt: skip
        await run_commands(episode, task)
        assert await episode.read_bytes(f"{room}/place/second") == b"value of the key\nmore nobody\n"

    async def test_setup_commands_run_once_however_often_they_are_asked_for(self, episode: Sandbox, room: str) -> None:
        task = task_with(SetupCommand(command=f"echo ran >>{room}/count"))
        for _ in range(3):
            await run_commands(episode, task)
        assert await episode.read_bytes(f"{room}/count") == b"ran\n"

    async def test_a_setup_command_that_fails_is_told_with_its_last_words(self, episode: Sandbox) -> None:
        task = task_with(SetupCommand(command="true"), SetupCommand(command="echo no such thing >&2; exit 3"))
        with pytest.raises(SandboxSetupError, match="setup command 2 failed") as caught:
            await run_commands(episode, task)
        assert caught.value.log_tail == "no such thing\n"

    async def test_a_setup_command_that_takes_too_long_is_killed(self, episode: Sandbox) -> None:
        length = nap()
        task = task_with(SetupCommand(command=f"setsid sleep {length} & sleep {length}", timeout_sec=0.5))
        with pytest.raises(SandboxSetupError, match="longer than"):
            await run_commands(episode, task)
        assert await napping(episode, length) == []

    async def test_a_world_is_healthy_as_soon_as_its_command_succeeds(self, episode: Sandbox, room: str) -> None:
        await episode.exec(["sh", "-c", f"(sleep 0.5; touch {room}/up) >/dev/null 2>&1 &"])
        check = Healthcheck(command=f'test -e {room}/up && test "$KEY" = k', interval_sec=0.1, retries=600)
        await check_health(episode, check, {"KEY": "k"})
        assert await episode.read_bytes(f"{room}/up") == b""

    async def test_a_world_that_stays_ill_is_told_with_its_last_words(self, episode: Sandbox) -> None:
        check = Healthcheck(command="echo ill >&2; exit 4", interval_sec=0.05, retries=2)
        with pytest.raises(ReadinessError, match="exit status 4") as caught:
            await check_health(episode, check, {})
        assert caught.value.log_tail == "ill\n"

    async def test_a_healthcheck_that_hangs_is_killed_each_time(self, episode: Sandbox) -> None:
        length = nap()
        check = Healthcheck(command=f"setsid sleep {length}", interval_sec=0.05, timeout_sec=0.3, retries=1)
        with pytest.raises(ReadinessError, match="timed out"):
            await check_health(episode, check, {})
        assert await napping(episode, length) == []
