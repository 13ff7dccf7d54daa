"""A stack for each test, in a state directory of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from support import lasting_task
from support.agent_task import MARK, declare_agent
from support.embedded import EmbeddedStack
from support.local_world import free_subnet
from support.options import set_options
from support.outages import HEARTBEAT_TIMEOUT_SEC, small_disk
from support.worlds import DOCKER, LOCAL, make_world

from benchflow.contracts.job import AgentSpec
from benchflow.contracts.operator_options import WorkerOptions, WorkflowOptions
from benchflow.paths import StatePaths
from benchflow.planes.agent.registry import find_agent
from benchflow.planes.agent.toolbox import Toolbox, ensure_toolbox
from benchflow.planes.sandbox import close_providers
from benchflow.planes.sandbox.local.network import SUBNET_VARIABLE
from benchflow.testing.scripted_model import ScriptedModel


@pytest.fixture
def state_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="bf-", dir="/tmp"))
    for name in [*os.environ]:
        if name.startswith(("TEMPORAL_", "BENCHFLOW_ST", "BENCHFLOW_UI", "BENCHFLOW_HOST", "BENCHFLOW_WORK")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(root))
    yield root
    shutil.rmtree(root)


@pytest.fixture(params=[DOCKER, LOCAL])
def sandbox(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The provider whose sandboxes a test is about; one that says nothing of it runs over all of them."""
    if request.param == "local":
        monkeypatch.setenv(SUBNET_VARIABLE, free_subnet())
    return str(request.param)


@pytest.fixture(autouse=True)
def quick(state_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have deaths noticed within moments: how soon they are is not what these tests are about."""
    set_options(monkeypatch, WorkerOptions(dead_worker_poll_sec=0.2, heartbeat_every_sec=1, sticky_timeout_sec=0.5))


@pytest.fixture
def handed_over(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no timeout of the server begin anything again, so that a test ends only if the next worker goes on."""
    set_options(monkeypatch, WorkflowOptions(heartbeat_timeout_sec=3600))


@pytest.fixture
def often_swept(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have jobs ask every second after rollouts that stay silent, which otherwise takes minutes.

    A worker reaps when it starts, and not again while a test looks.
    """
    set_options(monkeypatch, WorkflowOptions(sweep_every_sec=1, sweep_after_sec=1))
    set_options(monkeypatch, WorkerOptions(reap_every_sec=600))


@pytest.fixture
def demo_agent(
    kept: StatePaths, runtime: Toolbox, state_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent of the user's own, and what holds its stdio."""
    StatePaths(state_root).toolboxes.symlink_to(kept.toolboxes)
    declare_agent(tmp_path / "agents")
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", str(tmp_path / "agents"))


@pytest.fixture
def outages_noticed_soon(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server, and the SDK, take an activity for lost within seconds, and what is over removed as soon."""
    limits = WorkflowOptions(heartbeat_timeout_sec=HEARTBEAT_TIMEOUT_SEC, sweep_every_sec=1, sweep_after_sec=1)
    set_options(monkeypatch, limits)
    set_options(monkeypatch, WorkerOptions(capacity=32, reap_every_sec=1))


@pytest.fixture
def lasting_agent(
    kept: StatePaths, runtime: Toolbox, state_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AgentSpec]:
    """An agent of the user's own that calls a scripted model."""
    StatePaths(state_root).toolboxes.symlink_to(kept.toolboxes)
    lasting_task.declare_agent(tmp_path / "agents")
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", str(tmp_path / "agents"))
    with ScriptedModel(lasting_task.reply) as model:
        yield lasting_task.agent_of(model)


@pytest.fixture(scope="session")
def policy(kept: StatePaths) -> Toolbox:
    toolbox = asyncio.run(ensure_toolbox(find_agent("policy"), kept))
    assert toolbox is not None
    return toolbox


@pytest.fixture
def policy_agent(kept: StatePaths, runtime: Toolbox, policy: Toolbox, state_root: Path) -> None:
    """The policy agent, installed where a test's stack finds it."""
    StatePaths(state_root).toolboxes.symlink_to(kept.toolboxes)


@pytest.fixture
def disk(state_root: Path, tmp_path: Path) -> Iterator[None]:
    """Have the server's database on a disk that can be filled. Only root can mount one."""
    if os.geteuid() != 0:
        yield
        return
    with small_disk(StatePaths(state_root).database, tmp_path / "disk"):
        yield


@pytest_asyncio.fixture
async def no_images_left(state_root: Path, sandbox: str) -> AsyncIterator[None]:
    """Set up before the stack, so that its sandboxes are gone when their images are removed."""
    yield
    world = make_world(sandbox, state_root)
    await world.remove_built(MARK)
    await world.close()


@pytest_asyncio.fixture
async def stack(state_root: Path, sandbox: str) -> AsyncIterator[EmbeddedStack]:
    made = EmbeddedStack(state_root, sandbox)
    await made.start()
    yield made
    await made.close()
    # A client's provider stays with the state directory that it was made for.
    await close_providers(made.id)
