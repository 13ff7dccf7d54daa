"""A rollout that is put back to a state that it has been in: from Python in the middle of a turn, and by a command."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.in_process_worker import InProcessWorker
from temporalio.client import WorkflowUpdateFailedError
from typer.testing import CliRunner

import benchflow as bf
from benchflow.activities.leftovers import Leftovers
from benchflow.activities.reaper import Reaper
from benchflow.cli.command_line import app
from benchflow.contracts import ids, temporal_names
from benchflow.contracts.rollback import Restore
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.errors import NotRestorableError, ResultFileError, SandboxError, TaskError
from benchflow.hosting import hosted_checkpoints
from benchflow.hosting.hosted_rollout import HostedRollout
from benchflow.testing.waiting import until
from benchflow.trajectories.stored import load_tree


async def rollback(*arguments: str) -> Result:
    """`bench rollout rollback`."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["rollout", "rollback", *arguments])


async def test_a_rollout_is_put_back_in_the_middle_of_a_turn_and_after_a_step(worker: InProcessWorker) -> None:
    provider, jobs_dir = worker.provider, worker.root / "jobs"
    provider.held = provider.draws = True
    branch = bf.BranchConfig.model_validate({"policy": {"kind": "none"}, "checkpoint": "per_turn"})
    task = worker.stepped(final=True)
    config = bf.RolloutConfig(task_path=task, jobs_dir=jobs_dir, environment="hall", branch=branch)
    played = await bf.Rollout.create(config)
    running = asyncio.create_task(played.run())

    await worker.begun(1)
    provider.release()
    await worker.begun(2)
    restored = await played.restore("n1")
    assert (restored.node, restored.undone) == ("n1", ["n2"])
    await worker.begun(3)
    (first,) = [provider.drawn[name] for name in provider.open]
    assert len(first) == 1
    provider.release()
    await worker.begun(4)
    refused = await rollback(f"{played.name}/play", "n7", "--jobs-dir", str(jobs_dir))
    assert refused.exit_code == 2
    assert "it has not come by n7; those that have one: n0, n1, n2" in refused.stderr
    assert "remedy: name one that `bench tree show` marks" in refused.stderr
    done = await rollback(f"{played.name}/play", "n0", "--jobs-dir", str(jobs_dir))
    assert done.exit_code == 0
    assert done.stdout == "play · oracle is at n0 again; undone: n1, n2, n3\n"
    await worker.begun(5)
    # The world is as it was before anybody had done anything.
    assert [provider.drawn[name] for name in provider.open] == [()]
    provider.release_all()

    result = await running
    assert result.error is None
    assert [(one.node, one.undone) for one in result.rollbacks] == [("n1", ["n2"]), ("n0", ["n1", "n2", "n3"])]
    drawn = provider.drawn[result.sandbox["name"]]
    assert len(drawn) == 3 and drawn[0] != first[0]
    assert [step.verify.reward for step in result.steps if step.verify] == list(drawn)
    place = Path(str(result.directory))
    tree = load_tree(place)
    assert [node.id for node in tree.tree.nodes] == ["n0", "n1", "n2", "n3"]
    events = tree.trajectory("n3")
    assert [event["node"] for event in events if event["type"] == "user_message"] == ["n1", "n2", "n3"]
    assert [event["seq"] for event in result.trajectory] == list(range(len(events)))
    # What was undone is kept, apart.
    assert (place / "rollbacks" / "2" / "steps" / "s1" / "verifier" / "reward.txt").is_file()
    assert not (place / "rollbacks" / "1" / "steps" / "s0").exists()
    assert list(worker.context.paths.checkpoints.glob("*.json")) == []
    with pytest.raises(NotRestorableError, match=r"it is over|does not run"):
        await played.restore("n1")


async def test_a_child_that_is_not_planned_yet_is_not_put_back(worker: InProcessWorker) -> None:
    """The state that it begins with is kept, but there is no work to be stopped."""
    may_plan = asyncio.Event()
    planned: list[str] = []

    read_task = HostedRollout.read_task

    async def read_later(rollout: HostedRollout) -> None:
        planned.append(rollout.spec.id)
        if rollout.spec.chain:
            await may_plan.wait()
        await read_task(rollout)

    worker.patch.setattr(HostedRollout, "read_task", read_later)
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": 1}}
    job = await worker.submit(worker.stepped(2, final=True), branch=branch)
    child = ids.child_id(job.spec.rollout_id(job.id, 0), "n1.0")
    await until(lambda: child in planned)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await worker.context.client.get_workflow_handle(child).execute_update(
            temporal_names.RESTORE, Restore(node="n1")
        )
    assert "it has not begun yet" in str(refused.value.cause)
    may_plan.set()
    (result,) = await worker.results(job)
    assert (result.error, result.reward_kind, worker.provider.turns[child]) == (None, "value", 1)


async def test_a_rollout_that_has_ended_goes_on_from_a_checkpoint_that_was_kept(worker: InProcessWorker) -> None:
    provider = worker.provider
    provider.draws = True
    job = await worker.submit(worker.stepped(final=True), keep="checkpoints")
    (before,) = await worker.results(job)
    assert before.error is None
    first = provider.drawn[before.sandbox["name"]]
    place = Path(str(before.directory))
    tree = load_tree(place).tree
    assert [node.id for node in tree.nodes if node.checkpoint is not None] == ["n0", "n1", "n2"]
    # A round of the reaper lets them be.
    await Reaper(worker.context).reap()
    jobs_dir = str(worker.root / "jobs")
    refused = await rollback(f"{job.name}/play", "n3", "--jobs-dir", jobs_dir)
    assert refused.exit_code == 2
    assert "there is no checkpoint of it; those that have one: n0, n1, n2" in refused.stderr

    done = await rollback(f"{job.name}/play", "n1", "--jobs-dir", jobs_dir)
    assert (done.exit_code, done.stdout) == (0, "play · oracle is at n1 again; undone: n2, n3\n")
    (after,) = await worker.results(job)
    assert after.error is None and after.run_id != before.run_id
    assert [(one.node, one.undone) for one in after.rollbacks] == [("n1", ["n2", "n3"])]
    drawn = provider.drawn[after.sandbox["name"]]
    # The state of the first step is the one that it had; those after it are others.
    assert drawn[0] == first[0] and len(drawn) == 3 and drawn[1:] != first[1:]
    assert [step.verify.reward for step in after.steps if step.verify] == list(drawn)
    assert after.reward == drawn[-1]
    events = load_tree(place).trajectory("n3")
    assert [event["node"] for event in events if event["type"] == "user_message"] == ["n1", "n2", "n3"]
    undone = place / "rollbacks" / "1"
    assert RolloutResult.model_validate_json((undone / "result.json").read_bytes()).reward == first[-1]
    assert (undone / "steps" / "s1" / "verifier" / "reward.txt").is_file()
    rows = [json.loads(line) for line in job.directory.results.read_text().splitlines()]
    assert [row["reward"] for row in rows] == [after.reward]
    # Again, from where it was put back before.
    assert (await rollback(f"{job.name}/play", "n0", "--jobs-dir", jobs_dir)).exit_code == 0
    (last,) = await worker.results(job)
    assert [one.node for one in last.rollbacks] == ["n1", "n0"] and last.error is None


async def test_without_kept_checkpoints_a_rollout_that_has_ended_cannot_go_back(worker: InProcessWorker) -> None:
    branch = {"policy": {"kind": "none"}, "checkpoint": "per_turn"}
    job = await worker.submit(worker.stepped(2, final=True), branch=branch)
    await job.wait()
    refused = await rollback(f"{job.name}/play", "n1", "--jobs-dir", str(worker.root / "jobs"))
    assert refused.exit_code == 2
    assert "does not run, and has kept no checkpoints" in refused.stderr
    assert "--keep checkpoints keeps them" in refused.stderr


async def test_kept_checkpoints_go_with_age(worker: InProcessWorker) -> None:
    job = await worker.submit(worker.stepped(2, final=True), keep="checkpoints")
    await job.wait()
    paths = worker.context.paths
    kept = [*paths.checkpoints.glob("*.json"), *paths.ended.glob("*.json")]
    assert len(kept) == 3
    await Leftovers(worker.context).remove()
    assert [*paths.checkpoints.glob("*.json"), *paths.ended.glob("*.json")] == kept
    worker.context.options = worker.context.options.model_copy(update={"leftovers_retain_days": 0})

    async def all_are_gone() -> bool:
        # What has ended may be listed as running for a moment.
        await Leftovers(worker.context).remove()
        return [*paths.checkpoints.glob("*.json"), *paths.ended.glob("*.json")] == []

    await until(all_are_gone)
    before = (await worker.results(job))[0]
    refused = await rollback(f"{job.name}/play", "n1", "--jobs-dir", str(worker.root / "jobs"))
    assert refused.exit_code == 2 and "nothing is known of how" in refused.stderr
    assert (await worker.results(job))[0] == before


async def test_children_run_again_where_a_rollout_that_has_ended_goes_back_to_where_it_branched(
    worker: InProcessWorker,
) -> None:
    worker.provider.draws = True
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}, "checkpoint": "per_turn"}
    job = await worker.submit(worker.stepped(2, final=True), branch=branch, keep="checkpoints")
    (before,) = await worker.results(job)
    assert (await rollback(f"{job.name}/play", "n1", "--jobs-dir", str(worker.root / "jobs"))).exit_code == 0
    (after,) = await worker.results(job)
    assert after.error is None and before.reward != after.reward
    place = Path(str(after.directory))
    children = sorted(place.glob("children/*/result.json"))
    rewards = [RolloutResult.model_validate_json(file.read_bytes()).reward for file in children]
    assert len(rewards) == 2 and None not in rewards
    assert after.reward == pytest.approx(sum(reward or 0 for reward in rewards) / 2)
    assert len([*place.glob("rollbacks/1/children/*/result.json")]) == 2


async def test_a_roll_back_after_the_end_that_is_not_carried_out_leaves_all_as_it_was(worker: InProcessWorker) -> None:
    job = await worker.submit(worker.stepped(2, final=True), keep="checkpoints")
    (before,) = await worker.results(job)
    place, jobs_dir = Path(str(before.directory)), str(worker.root / "jobs")
    (place / "rescored" / "same").mkdir(parents=True)
    # Whoever can write results says where the checkpoints are.
    edited = json.loads((place / "result.json").read_text())
    edited["sandbox"]["host"] = "../elsewhere"
    (place / "result.json").write_text(json.dumps(edited))
    refused = await rollback(f"{job.name}/play", "n1", "--jobs-dir", jobs_dir)
    assert refused.exit_code == 2 and "the host of its checkpoints, ../elsewhere, does not answer" in refused.stderr
    (place / "result.json").write_text(before.model_dump_json(exclude={"trajectory"}))

    worker.provider.start_error = SandboxError("it is broken")
    failed = await rollback(f"{job.name}/play", "n1", "--jobs-dir", jobs_dir)
    assert failed.exit_code == 1 and "it is broken" in failed.stderr
    again = await worker.results(job)
    assert [(one.run_id, one.reward, one.rollbacks) for one in again] == [(before.run_id, before.reward, [])]
    assert not (place / "rollbacks").exists()

    worker.provider.start_error = None
    assert (await rollback(f"{job.name}/play", "n1", "--jobs-dir", jobs_dir)).exit_code == 0
    (after,) = await worker.results(job)
    assert after.error is None and [one.node for one in after.rollbacks] == ["n1"]
    # What was scored is undone, and so is its other score.
    assert (place / "rollbacks" / "1" / "rescored" / "same").is_dir() and not (place / "rescored").exists()


async def test_an_ended_rollout_stays_as_it_is_whose_roll_back_cannot_be_planned(worker: InProcessWorker) -> None:
    job = await worker.submit(worker.stepped(2, final=True), keep="checkpoints")
    (before,) = await worker.results(job)
    read_task = HostedRollout.read_task

    async def read_nothing(rollout: HostedRollout) -> None:
        raise TaskError("it is not there any more", file="task.toml", remedy="restore it")

    worker.patch.setattr(HostedRollout, "read_task", read_nothing)
    arguments = (f"{job.name}/play", "n1", "--jobs-dir", str(worker.root / "jobs"))
    failed = await rollback(*arguments)
    assert failed.exit_code != 0 and "it is not there any more" in failed.stderr
    assert await worker.results(job) == [before]
    worker.patch.setattr(HostedRollout, "read_task", read_task)
    assert (await rollback(*arguments)).exit_code == 0
    (after,) = await worker.results(job)
    assert after.error is None and [one.node for one in after.rollbacks] == ["n1"]


async def test_a_roll_back_waits_for_the_one_before_it(worker: InProcessWorker) -> None:
    job = await worker.submit(worker.stepped(final=True), keep="checkpoints")
    (before,) = await worker.results(job)
    started = worker.provider.stubborn_start = asyncio.Event()
    jobs_dir = str(worker.root / "jobs")
    first = asyncio.create_task(rollback(f"{job.name}/play", "n2", "--jobs-dir", jobs_dir))
    await until(lambda: worker.provider.starting == 1)
    second = await rollback(f"{job.name}/play", "n1", "--jobs-dir", jobs_dir)
    assert second.exit_code == 2 and "it has not begun yet: ask again in a moment" in second.stderr
    started.set()
    assert (await first).stdout == "play · oracle is at n2 again; undone: n3\n"
    (after,) = await worker.results(job)
    assert after.error is None and after.run_id != before.run_id
    assert [(one.node, one.undone) for one in after.rollbacks] == [("n2", ["n3"])]


@pytest.mark.parametrize("end", ["fails", "cancelled", "terminated"])
async def test_an_ended_rollout_has_a_result_however_its_roll_back_ends(worker: InProcessWorker, end: str) -> None:
    worker.options(sweep_every_sec=1, sweep_after_sec=0)
    job = await worker.submit(worker.stepped(final=True), keep="checkpoints")
    (before,) = await worker.results(job)
    place, arguments = Path(str(before.directory)), (f"{job.name}/play", "n1", "--jobs-dir", str(worker.root / "jobs"))
    is_moving, may_move, move_aside = threading.Event(), threading.Event(), hosted_checkpoints.move_reverted_aside

    def put_aside(*given: Any, **more: Any) -> None:
        is_moving.set()
        assert may_move.wait(60)
        if end == "fails":
            raise ResultFileError("a line is damaged", file="trajectory", remedy="restore it")
        move_aside(*given, **more)

    worker.patch.setattr(hosted_checkpoints, "move_reverted_aside", put_aside)
    rolling = asyncio.create_task(rollback(*arguments))
    await until(is_moving.is_set)
    handle = worker.context.client.get_workflow_handle(before.workflow_id)
    if end == "cancelled":
        await handle.cancel()
    if end == "terminated":
        await handle.terminate()
    may_move.set()
    # A cancellation may be noticed once it is at that node again.
    assert (await rolling).exit_code != 0 or end == "cancelled"
    (failed,) = await worker.results(job)
    assert failed.run_id != before.run_id
    assert failed.status == ("cancelled" if end == "cancelled" else "errored")
    kept = RolloutResult.model_validate_json((place / "rollbacks" / "1" / "result.json").read_bytes())
    assert kept.run_id == before.run_id

    worker.patch.setattr(hosted_checkpoints, "move_reverted_aside", move_aside)
    again = await rollback(*arguments)
    assert again.exit_code == 0, again.stderr
    (after,) = await worker.results(job)
    assert after.error is None and after.reward == before.reward
    events = load_tree(place).trajectory("n3")
    assert [event["node"] for event in events if event["type"] == "user_message"] == ["n1", "n2", "n3"]
    assert RolloutResult.model_validate_json((place / "rollbacks" / "1" / "result.json").read_bytes()) == kept


async def test_each_checkpoint_of_the_tree_of_an_ended_rollout_is_one_that_it_has(worker: InProcessWorker) -> None:
    worker.provider.draws = True
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}, "checkpoint": "per_turn", "then": "best"}
    job = await worker.submit(worker.stepped(3, final=True), branch=branch, keep="checkpoints")
    (before,) = await worker.results(job)
    nodes = {node.id: node.checkpoint for node in load_tree(Path(str(before.directory))).tree.nodes}
    marked = [node for node, checkpoint in nodes.items() if checkpoint is not None]
    kept = {
        json.loads(file.read_text())["checkpoint"]["id"] for file in worker.context.paths.checkpoints.glob("*.json")
    }
    assert "n1" in marked and {nodes[node] for node in marked} <= kept
    for node in reversed(marked):
        done = await rollback(f"{job.name}/play", node, "--jobs-dir", str(worker.root / "jobs"))
        assert done.exit_code == 0, done.stderr
        (after,) = await worker.results(job)
        assert after.error is None and after.rollbacks[-1].node == node
