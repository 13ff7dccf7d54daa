"""A group of rollouts with a shared prefix, on a daemon that keeps its images in containerd's store."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import docker
import pytest
import pytest_asyncio
from support.running import run_job
from support.second_daemon import SecondDaemon, containerd_store_daemon
from support.task_writer import BASE_IMAGE, write_step, write_task

from benchflow import stack
from benchflow.paths import StatePaths
from benchflow.planes.sandbox import close_providers

pytestmark = [pytest.mark.docker, pytest.mark.long]

SOLVE = 'cat /proc/sys/kernel/random/uuid >> /app/who; echo "$TOKEN" >/dev/shm/token\n'
TEST = "cp /app/who /logs/verifier/; echo 1 >/logs/verifier/reward.txt\n"


@pytest_asyncio.fixture
async def daemon(base_image: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SecondDaemon]:
    """The only daemon of this test, and of a stack of its own."""
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "BENCHFLOW_STORE"):
        monkeypatch.delenv(name, raising=False)
    async with containerd_store_daemon() as made:
        monkeypatch.setenv("DOCKER_HOST", made.address)
        # Of this process, which is connected to the machine's own, and must be so again.
        await close_providers("of-no-stack")
        yield made
        stack.stop_stack(StatePaths(state))
        await close_providers("of-no-stack")


async def test_each_of_a_group_goes_on_from_the_state_that_they_share(
    daemon: SecondDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "t0k3n-of-the-w0rld")
    steps = 'multi_step_reward_strategy = "final"\n[[steps]]\nname = "first"\n[[steps]]\nname = "second"\n'
    environment = 'env = { TOKEN = "${TOKEN}" }\n'
    dockerfile = f"FROM {BASE_IMAGE}\nWORKDIR /app\n"
    task = write_task(tmp_path / "tasks", "two", config=steps, environment=environment, dockerfile=dockerfile)
    for step in ("first", "second"):
        write_step(task, step, solve=SOLVE, test=TEST)
    mode = {"kind": "grpo", "n": 4, "at": 1}
    job = await run_job([task], tmp_path / "jobs", job_name="group", sandbox="docker", mode=mode)
    (result,) = job.results()
    assert (result.error, result.reward_kind) == (None, "value")
    found = sorted(file.read_text().split() for file in job.directory.root.rglob("who"))
    # The first step's verification, and each child's of the second.
    prefix = found[0]
    assert len(prefix) == 1 and len({tuple(lines) for lines in found[1:]}) == 4
    assert all(len(lines) == 2 and lines[:1] == prefix for lines in found[1:])
    with contextlib.closing(docker.DockerClient(daemon.address)) as client:
        assert client.containers.list(all=True) == []
        names = [tag.partition(":")[0] for image in client.images.list(all=True) for tag in image.tags]
        assert sorted(set(names)) == ["benchflow/task", "debian"]
