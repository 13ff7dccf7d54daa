"""Two stacks on one machine: whatever happens to one, its neighbour's sandboxes and what they share are not touched."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.counted_task import ENOUGH, SOLVED, write_counted_tasks
from support.embedded import EmbeddedStack
from support.local_world import free_subnet
from support.scored import assert_each_scored_once, assert_nothing_is_left, in_phase, submit_job
from support.worlds import Seen, seldom_on_docker

from benchflow.activities.reaper import Reaper
from benchflow.planes.sandbox import close_providers
from benchflow.planes.sandbox.local.network import SUBNET_VARIABLE
from benchflow.store import Store
from benchflow.testing.waiting import until
from benchflow.worker import make_context

pytestmark = pytest.mark.crash


@pytest_asyncio.fixture
async def neighbour(stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EmbeddedStack]:
    root = Path(tempfile.mkdtemp(prefix="bf-", dir="/tmp"))
    if stack.sandbox == "local":
        monkeypatch.setenv(SUBNET_VARIABLE, free_subnet(os.environ[SUBNET_VARIABLE]))
    made = EmbeddedStack(root, stack.sandbox)
    await made.start()
    yield made
    made.close()
    shutil.rmtree(root)


@seldom_on_docker
async def test_neighbours_leave_each_other_alone(
    stack: EmbeddedStack, neighbour: EmbeddedStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("BENCHFLOW_STATE_DIR", str(neighbour.paths.root))
        tasks = write_counted_tasks(tmp_path / "theirs", 2, stack.sandbox, solve_sec=600)
        theirs = await submit_job(neighbour, tasks, tmp_path / "their-jobs")
        assert stack.id != neighbour.id
        await until(lambda: neighbour.marked(SOLVED, at_least=2))
    # They act until there was a second look at what belongs to them.
    tasks = write_counted_tasks(tmp_path / "tasks", 2, stack.sandbox, held=True)
    job = await submit_job(stack, tasks, tmp_path / "jobs")
    await until(lambda: stack.marked(SOLVED, at_least=2))
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(neighbour.paths.root))
    before = _belongings(stack), _belongings(neighbour)
    assert all(shared for _, shared in before)
    stack.kill("worker")
    # What this process has made so far is of the other one.
    await close_providers(stack.id)
    context = await make_context(theirs.engine.client, neighbour.paths, Store.open())
    assert await Reaper(context).reap() == 0
    await close_providers(context.stack)
    assert (_belongings(stack), _belongings(neighbour)) == before
    stack.world.make_file(ENOUGH)
    # This one's next worker reaps too, and at the end everything of this stack goes, while the neighbour's agents act.
    await job.wait()
    assert_each_scored_once(job, stack)
    assert_nothing_is_left(stack)
    assert len(await in_phase(theirs, "execute")) == 2
    assert _belongings(neighbour) == before[1]
    await theirs.cancel()
    await theirs.wait()
    assert_nothing_is_left(neighbour)


def _belongings(stack: EmbeddedStack) -> tuple[set[Seen], set[str]]:
    return set(stack.world.sandboxes()), stack.world.shared()
