"""Rollouts that are put back to a state that they have been in, through the whole engine, in real sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import Result
from support.task_writer import BASE_IMAGE, write_step, write_task
from typer.testing import CliRunner

import benchflow as bf
from benchflow.cli.app import app
from benchflow.contracts.sandbox import Sandbox, SandboxRef
from benchflow.errors import NotRestorableError, SandboxLostError
from benchflow.host import host_id
from benchflow.jobs import Engine
from benchflow.paths import StatePaths
from benchflow.planes.sandbox import get_provider
from benchflow.temporal import stack_id
from benchflow.testing.waiting import until
from benchflow.trajectories.stored import load_tree
from benchflow.workflows.options import host_queue

pytestmark = pytest.mark.local

T = TypeVar("T")

# It is under way until somebody from outside lets it end.
SOLVE = """
echo "{step}" >> /root/log
until [ -e /root/{step}-may-end ]; do sleep 0.05; done
"""
TEST = "cp /root/log /logs/verifier/log\nwc -l < /root/log | awk '{print $1 / 10}' > /logs/verifier/reward.txt\n"


def waiting_task(root: Path, name: str) -> Path:
    table = "".join(f'[[steps]]\nname = "s{number}"\n' for number in range(3))
    config = 'multi_step_reward_strategy = "final"\n' + table
    task = write_task(root, name, config=config, dockerfile=f"FROM {BASE_IMAGE}\nWORKDIR /app\n")
    for number in range(3):
        write_step(task, f"s{number}", solve=SOLVE.format(step=f"s{number}"), test=TEST)
    return task


class Played:
    """A rollout that runs beside the test, and a look into its sandbox."""

    def __init__(self, rollout: bf.Rollout, task: str) -> None:
        self.rollout = rollout
        self._task = task
        self._stack = ""
        self.running = asyncio.create_task(rollout.run())

    async def sandbox(self) -> Sandbox | None:
        """The one that runs now."""
        provider, paths = get_provider("local"), StatePaths.default()
        self._stack = self._stack or await stack_id((await Engine.open()).client)
        for owned in await provider.owned(self._stack):
            if owned.labels["benchflow.task"] == self._task:
                host = host_id(paths)
                ref = SandboxRef(
                    provider="local",
                    name=owned.name,
                    handle=owned.handle,
                    host_id=host,
                    queue=host_queue(host),
                    workdir="/app",
                )
                return await provider.attach(ref)
        return None

    async def log(self) -> list[str]:
        """What the steps have left in the world."""
        try:
            sandbox = await self.sandbox()
            return (await sandbox.read_file("/root/log")).decode().split() if sandbox is not None else []
        except (FileNotFoundError, SandboxLostError):
            # It is not there yet, or just gone.
            return []

    async def comes_to(self, *steps: str) -> None:
        await self.until(lambda: self._has(list(steps)))

    async def _has(self, steps: list[str]) -> bool:
        return await self.log() == steps

    async def until(self, condition: Callable[[], Awaitable[T]]) -> T:
        async def asked() -> T | None:
            assert not self.running.done(), self.running.result()
            # There are two processors for all of it.
            await asyncio.sleep(0.2)
            return await condition()

        found = await until(asked, seconds=120)
        assert found is not None
        return found

    async def let_end(self, step: str) -> None:
        sandbox = await self.sandbox()
        assert sandbox is not None
        await sandbox.write_file(f"/root/{step}-may-end", b"")


async def rollback(*arguments: str) -> Result:
    """`bench rollout rollback`."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["rollout", "rollback", *arguments])


async def test_a_rollout_is_put_back_in_the_middle_of_a_turn_and_after_a_step(
    module_jobs: Path, tmp_path: Path
) -> None:
    branch = bf.BranchConfig.model_validate({"policy": {"kind": "none"}, "checkpoint": "per_turn"})
    config = bf.RolloutConfig(
        task_path=waiting_task(tmp_path, "played"), jobs_dir=module_jobs, environment="local", branch=branch
    )
    played = Played(await bf.Rollout.create(config), "played")
    await played.comes_to("s0")
    await played.let_end("s0")
    await played.comes_to("s0", "s1")
    restored = await played.rollout.restore("n1")
    assert (restored.node, restored.undone) == ("n1", ["n2"])
    await played.comes_to("s0", "s1")
    await played.let_end("s1")
    await played.comes_to("s0", "s1", "s2")
    refused = await rollback(f"{played.rollout.name}/played", "n7", "--jobs-dir", str(module_jobs))
    assert refused.exit_code == 2
    assert "it has not come by n7; those that have one: n0, n1, n2" in refused.stderr
    assert "remedy: name one that `bench tree show` marks" in refused.stderr
    done = await rollback(f"{played.rollout.name}/played", "n0", "--jobs-dir", str(module_jobs))
    assert done.exit_code == 0
    assert done.stdout == "played · oracle is at n0 again; undone: n1, n2, n3\n"
    for number, step in enumerate(("s0", "s1", "s2"), 1):
        await played.comes_to(*(f"s{done}" for done in range(number)))
        await played.let_end(step)
    result = await played.running
    assert (result.error, result.rewards) == (None, {"reward": 0.3})
    assert [(one.node, one.undone) for one in result.rollbacks] == [("n1", ["n2"]), ("n0", ["n1", "n2", "n3"])]
    assert result.directory is not None
    place = Path(result.directory)
    for number in range(3):
        log = (place / "steps" / f"s{number}" / "verifier" / "log").read_text().split()
        assert log == [f"s{done}" for done in range(number + 1)]
    tree = load_tree(place)
    assert [node.id for node in tree.tree.nodes] == ["n0", "n1", "n2", "n3"]
    events = tree.trajectory("n3")
    assert [event["node"] for event in events if event["type"] == "user_message"] == ["n1", "n2", "n3"]
    assert [event["seq"] for event in result.trajectory] == list(range(len(events)))
    # What was undone is kept, apart.
    assert (place / "rollbacks" / "2" / "steps" / "s1" / "verifier" / "log").read_text().split() == ["s0", "s1"]
    assert not (place / "rollbacks" / "1" / "steps" / "s0").exists()
    assert list(StatePaths.default().checkpoints.glob("*.json")) == []
    with pytest.raises(NotRestorableError, match=r"it is over|does not run"):
        await played.rollout.restore("n1")
