"""A stack for each test, in a state directory of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.agent_task import MARK, declare_agent
from support.embedded import EmbeddedStack
from support.local_world import free_subnet
from support.worlds import DOCKER, LOCAL, make_world

from benchflow.contracts.options import WorkerOptions, WorkflowOptions
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import Toolbox
from benchflow.planes.sandbox import close_providers
from benchflow.planes.sandbox.local.network import SUBNET_VARIABLE


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


def set_options(patch: pytest.MonkeyPatch, options: WorkerOptions | WorkflowOptions) -> None:
    """Put the options that were given into the environment, from which workers and `submit` read them."""
    for name in options.model_fields_set:
        patch.setenv(options.variables()[name], str(getattr(options, name)))


@pytest.fixture(autouse=True)
def quick(state_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that poll for the dead every half second: how soon it is noticed is not what these tests are about."""
    set_options(monkeypatch, WorkerOptions(dead_worker_poll_sec=0.5, heartbeat_every_sec=1))


@pytest.fixture
def often_swept(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs ask every second after rollouts that stay silent, which otherwise takes minutes."""
    set_options(monkeypatch, WorkflowOptions(sweep_every_sec=1, sweep_after_sec=1))


@pytest.fixture
def often_swept_seldom_reaped(often_swept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, and of terminated rollouts all is left until a worker starts: none reaps just while a test looks."""
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
def no_images_left(state_root: Path, sandbox: str) -> Iterator[None]:
    """Set up before the stack, so that its sandboxes are gone when their images are removed."""
    yield
    world = make_world(sandbox, state_root)
    world.remove_built(MARK)
    world.close()


@pytest_asyncio.fixture
async def stack(state_root: Path, sandbox: str) -> AsyncIterator[EmbeddedStack]:
    made = EmbeddedStack(state_root, sandbox)
    await made.start()
    yield made
    made.close()
    # A client's provider stays with the state directory that it was made for.
    await close_providers(made.id)
