"""Which nodes keep a checkpoint, for how long; and going back to one while children run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.in_process_worker import InProcessWorker

from benchflow.errors import NotRestorableError
from benchflow.jobs.rollback_request import roll_back_running
from benchflow.paths import JobPaths
from benchflow.testing.waiting import until

SELDOM = pytest.mark.soak
ROLLOUT = "/r/play/oracle/0"
BRANCH: dict[str, Any] = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}}


def kept(worker: InProcessWorker) -> list[str]:
    """The nodes of which this host keeps a checkpoint."""
    files = worker.context.paths.checkpoints.glob("*.json")
    notes = [json.loads(file.read_bytes())["checkpoint"] for file in files]
    return sorted(note["node"] for note in notes if note is not None)


def marked(job: JobPaths) -> set[str]:
    """The nodes that the files of a rollout, and of its children, show with a checkpoint."""
    found = set()
    for file in job.root.rglob("tree.json"):
        found |= {node["id"] for node in json.loads(file.read_bytes())["nodes"] if node["checkpoint"]}
    return found


@pytest.mark.parametrize(
    ("keeping", "nodes"),
    [
        pytest.param({"checkpoint": "per_turn"}, {"n0", "n1", "n1.0/n2", "n1.1/n2"}, id="per_turn"),
        pytest.param(
            {"checkpoint": "every_n", "every": 2}, {"n0", "n1.0/n2", "n1.1/n2"}, id="every_n", marks=pytest.mark.soak
        ),
        pytest.param({"checkpoint": "branch"}, {"n1"}, id="branch", marks=pytest.mark.soak),
        pytest.param({"checkpoint": "none"}, set(), id="none", marks=pytest.mark.soak),
    ],
)
async def test_the_nodes_that_were_asked_for_keep_a_checkpoint_until_the_root_has_ended(
    worker: InProcessWorker, keeping: dict[str, Any], nodes: set[str]
) -> None:
    worker.provider.held = True
    job = await worker.submit(worker.stepped(), branch=BRANCH | keeping)
    await worker.begun(1)
    worker.provider.release()
    await worker.begun(3)
    worker.provider.release()
    await worker.begun(5)
    # All children are at their last step. A node that branches has one for them, whatever is kept.
    assert kept(worker) == sorted({"n1", *nodes})

    async def are_shown() -> bool:
        return marked(job.directory) == nodes

    await until(are_shown)
    worker.provider.release_all()
    (result,) = await worker.results(job)
    assert (result.error, result.reward) == (None, 1.0)
    assert (kept(worker), worker.provider.images, marked(job.directory)) == ([], {}, set())


async def test_children_that_run_are_undone_with_the_rollout(worker: InProcessWorker) -> None:
    worker.provider.held = True
    job = await worker.submit(worker.stepped(), branch=BRANCH | {"checkpoint": "per_turn"})
    client, root = job.engine.client, job.id + ROLLOUT
    await worker.begun(1)
    worker.provider.release()
    await worker.begun(3)
    first, second = worker.provider.in_turn
    worker.provider.release(first)
    await worker.begun(4)
    with pytest.raises(NotRestorableError, match=r"the child n1\.7 does not run"):
        await roll_back_running(client, root, "n1.7/n2")
    with pytest.raises(NotRestorableError, match="it has not come by n2; those that have one: n0, n1"):
        await roll_back_running(client, root, "n2")
    restored = await roll_back_running(client, root, "n0")
    assert (restored.rollout, restored.undone) == (root, ["n1", "n2"])
    await worker.begun(5)
    worker.provider.release_all()
    (result,) = await worker.results(job)
    assert (result.error, result.reward, result.reward_kind) == (None, 1.0, "value")
    # The root's step, and the two of each child; before that its step, and three that its children had begun.
    assert sum(worker.provider.turns.values()) == 4 + 5
    assert worker.provider.turns[second] == 3
    assert result.directory is not None
    place = Path(result.directory)
    assert sorted(child.name for child in (place / "children").iterdir()) == ["n1.0", "n1.1"]
    assert sorted(child.name for child in (place / "rollbacks" / "1" / "children").iterdir()) == ["n1.0", "n1.1"]
    assert [one.node for one in result.rollbacks] == ["n0"]
    assert (kept(worker), worker.provider.images) == ([], {})
