"""New scores of a tree that another host has made, as they are brought to the stored rollouts."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from support.stored_jobs import MOMENT, store_job, write_task

from benchflow.contracts.branch import BranchOrigin
from benchflow.contracts.checkpoint import Checkpoint, FilesLayer
from benchflow.contracts.images import ImageRef
from benchflow.contracts.rescoring import RescoredRollout
from benchflow.paths import RolloutPaths
from benchflow.results.rescored import deliver, get_rescored_paths, lay_out_delivered, read_record, write_record
from benchflow.results.stored_rollouts import StoredRollout, read_children, read_rollout

CHAINS = ("", "n1.0", "n1.0/n2.1")


def add_child(root: RolloutPaths, chain: str) -> None:
    """Add a child that has a result."""
    place = root.child(chain)
    place.root.mkdir(parents=True)
    shutil.copy(root.result, place.result)
    node = chain.rpartition(".")[0]
    checkpoint = Checkpoint(
        id="c", rollout="r", node=node, provider="noop", host_id="h", queue="q", workdir="/", created_at=MOMENT,
        fence="f", steps_done=1, files=FilesLayer(image=ImageRef(reference="i"), digest="d", seconds=0.0),
    )  # fmt: skip
    origin = BranchOrigin(
        root="r", run_id="run", parent="p", chain=chain, node=node, number=0, depth=1, budget=0, checkpoint=checkpoint
    )
    config = json.loads(root.config.read_bytes()) | {"branch": origin.model_dump(mode="json")}
    place.config.write_text(json.dumps(config))


async def stored_tree(tmp_path: Path) -> list[StoredRollout]:
    """Return a stored rollout with a child, and a child of that."""
    job = await store_job([write_task(tmp_path / "tasks", "one")], tmp_path / "jobs", sandbox="noop")
    [root] = job.glob("one__*")
    for chain in CHAINS[1:]:
        add_child(RolloutPaths(root), chain)
    tree = [read_rollout(root)]
    for one in tree:
        tree += read_children(one)
    assert [one.spec.chain for one in tree] == [*CHAINS]
    return tree


def write_score(rollout: StoredRollout) -> None:
    """Write a new score, whose verifier has left a file that is named as the engine's own."""
    record = RescoredRollout(
        rollout_name=f"of {rollout.spec.chain}", task_name="one", agent="oracle", scoring="s", recorded_digest="d",
        outcome="changed", finished_at=MOMENT, stored_finished_at=rollout.result.finished_at,
    )  # fmt: skip
    place = get_rescored_paths(rollout.paths, "new")
    place.verifier.mkdir(parents=True)
    (place.verifier / "result.json").write_text("{}")
    write_record(place, record)


async def test_the_scores_of_a_tree_come_to_where_they_were_made_from(tmp_path: Path, state: Path) -> None:
    tree, delivered = await stored_tree(tmp_path), tmp_path / "delivered"
    for rollout in tree:
        write_score(rollout)
        deliver(rollout, "new", delivered)
        shutil.rmtree(rollout.paths.root / "rescored")

    lay_out_delivered(delivered, tree[0], "new")

    for rollout in tree:
        place = get_rescored_paths(rollout.paths, "new")
        record = read_record(place)
        assert record is not None and record.rollout_name == f"of {rollout.spec.chain}"
        assert sorted(path.name for path in place.root.iterdir()) == ["result.json", "verifier"]
        assert (place.verifier / "result.json").read_text() == "{}"
    assert not delivered.exists()


@pytest.mark.parametrize("chain", CHAINS)
async def test_a_score_of_a_result_from_before_a_rollback_is_left_out(chain: str, tmp_path: Path, state: Path) -> None:
    tree, delivered = await stored_tree(tmp_path), tmp_path / "delivered"
    for rollout in tree:
        write_score(rollout)
        deliver(rollout, "new", delivered)
        shutil.rmtree(rollout.paths.root / "rescored")
    undone = next(rollout for rollout in tree if rollout.spec.chain == chain)
    later = undone.result.finished_at + timedelta(minutes=1)
    undone.paths.result.write_text(undone.result.model_copy(update={"finished_at": later}).model_dump_json())

    lay_out_delivered(delivered, read_rollout(tree[0].paths.root), "new")

    found = {rollout.spec.chain: read_record(get_rescored_paths(rollout.paths, "new")) is not None for rollout in tree}
    assert found == {each: each != chain for each in CHAINS}
