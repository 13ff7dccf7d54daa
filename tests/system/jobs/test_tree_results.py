"""What a tree leaves on disk, as those read it who use it: paths across chains, scorers, scoring again, Python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.system_job import SystemTasks
from support.task_writer import BASE_IMAGE, write_step, write_task

import benchflow as bf
from benchflow.contracts.reward import RolloutNode
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.errors import ConfigError, ResultFileError, UsageError, VerifierError
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.planes.sandbox import close_providers
from benchflow.planes.sandbox.owners import OF_A_PROCESS
from benchflow.rescoring import Rescoring, RescoringRequest, rescore
from benchflow.results.summary import write_summary
from benchflow.trajectories.nodes import find_last_node, load_rollout
from benchflow.trajectories.stored import list_nodes_before, read_events_before

SOLVE = "cat /proc/sys/kernel/random/uuid >> /app/who\n"
# What nobody can have but the rollout that has drawn it: between 1/16 and 1.
DRAWN = """
printf '%d\\n' "0x$(tail -n 1 /app/who | cut -c1)" | awk '{print ($1 + 1) / 16}' > /logs/verifier/reward.txt
"""


def two_steps(root: Path, *, test: str = DRAWN) -> Path:
    task = write_task(
        root,
        "two",
        config='multi_step_reward_strategy = "final"\n[[steps]]\nname = "first"\n[[steps]]\nname = "second"\n',
        dockerfile=f"FROM {BASE_IMAGE}\nWORKDIR /app\n",
    )
    for step in ("first", "second"):
        write_step(task, step, solve=SOLVE, test=test)
    return task


def system_tasks(root: Path) -> SystemTasks:
    return {"groups": [two_steps(root), _of_two_keys(root)]}


def _of_two_keys(root: Path) -> Path:
    test = 'echo \'{"correctness": 0.5, "style": 1}\' > /logs/verifier/reward.json\n'
    config = '[[steps]]\nname = "first"\n[[steps]]\nname = "second"\n'
    task = write_task(root, "keyed", config=config, dockerfile=f"FROM {BASE_IMAGE}\nWORKDIR /app\n")
    for step in ("first", "second"):
        write_step(task, step, solve="true\n", test=test)
    return task


@pytest.fixture
def job(groups_job: Path, tmp_path: Path) -> Path:
    """A job with one rollout, of which two children went on after its first step. It is the test's own copy."""
    copy = tmp_path / "jobs" / "groups"
    shutil.copytree(groups_job, copy, ignore=shutil.ignore_patterns("*__*"))
    (rollout,) = groups_job.glob("two__*")
    shutil.copytree(rollout, copy / rollout.name)
    return copy


def rollout_of(job: Path) -> Path:
    return next(job.glob("two__*"))


def result_of(directory: Path) -> RolloutResult:
    return RolloutResult.model_validate_json((directory / "result.json").read_bytes())


pytestmark = [pytest.mark.local, pytest.mark.usefixtures("module_jobs")]


def test_a_rollout_that_branches_refuses_several_keys_without_a_scalar(groups_job: Path) -> None:
    (directory,) = groups_job.glob("keyed__*")
    result = result_of(directory)
    assert (result.status, result.rewards, result.error_category) == ("errored", None, "reward_scalar")
    assert result.verifier_error is not None and result.verifier_error.type == "RewardScalarError"
    assert "correctness, style" in result.verifier_error.message
    assert "reward_key" in str(result.verifier_error.remedy) and "aggregate" in str(result.verifier_error.remedy)
    # Nothing was begun that needs the number.
    assert [outcome.step.name for outcome in result.steps] == ["first"]
    assert not (directory / "children").exists()


def test_a_trajectory_leads_from_the_root_to_a_leaf_through_the_files_of_both(job: Path) -> None:
    tree = bf.load_tree(rollout_of(job))
    assert [leaf.id for leaf in tree.leaves] == ["n1.0/n2", "n1.1/n2"]
    for leaf in tree.leaves:
        events = tree.trajectory(leaf.id)
        assert [event["node"] for event in events] == ["n1", "n1", leaf.id, leaf.id]
        assert [event["seq"] for event in events] == [0, 1, 2, 3]
        assert [event.get("text") for event in events] == ["Do first.", None, "Do second.", None]
    assert tree.value is not None
    assert tree.value.value == pytest.approx(sum(leaf.returns or 0 for leaf in tree.leaves) / 2)
    with pytest.raises(UsageError, match="no node 'n2'") as caught:
        tree.trajectory("n2")
    assert "n1.0/n2, n1.1/n2" in (caught.value.remedy or "")


def test_a_childs_directory_leads_to_the_whole_tree(job: Path) -> None:
    child = bf.load_tree(rollout_of(job) / "children" / "n1.1")
    assert (child.chain, child.paths.root) == ("n1.1", rollout_of(job))
    assert len(child.trajectory("n1.0/n2")) == 4
    with pytest.raises(ResultFileError, match="no tree here"):
        bf.load_tree(job)


def test_what_led_to_a_child_is_known_without_any_tree(job: Path) -> None:
    """A child's scorers ask for it while all of them still run."""
    directory = rollout_of(job)
    events = read_events_before(RolloutPaths(directory / "children" / "n1.0"))
    assert [(event["seq"], event["node"]) for event in events] == [(0, "n1"), (1, "n1")]
    assert read_events_before(RolloutPaths(directory)) == []
    assert list_nodes_before("n1.0/n3.2") == ["n0", "n1", "n1.0/n2", "n1.0/n3"]
    assert list_nodes_before("n0.1/n2.0/n3.4") == ["n0", "n0.1/n1", "n0.1/n2", "n0.1/n2.0/n3"]


def test_where_events_lie_is_told_by_each_chains_own_files(job: Path) -> None:
    told = json.loads((rollout_of(job) / "tree.json").read_bytes())["nodes"]
    assert {node["id"]: node["events"] for node in told}["n1.0/n2"] == [0, 0]
    assert bf.load_tree(rollout_of(job)).node("n1.0/n2").events == (0, 2)


def test_scorers_see_the_path_from_the_root_whichever_directory_they_are_given(job: Path) -> None:
    directory = rollout_of(job)
    whole = load_rollout(directory, whole=True)
    assert list(whole) == ["n0", "n1", "n1.0/n2", "n1.1/n2"]
    own = load_rollout(directory / "children" / "n1.1", whole=True)
    assert list(own) == ["n0", "n1", "n1.1/n2"]
    for leaf in (whole["n1.1/n2"], find_last_node(own)):
        assert [node.rollout.instruction for node in leaf.path[1:]] == ["Do first.", "Do second."]
        assert [event["seq"] for event in leaf.trajectory] == [0, 1, 2, 3]
        assert leaf.rollout.evidence == directory / "children" / "n1.1" / "steps" / "second" / "evidence"
        assert leaf.path[1].rollout.evidence == directory / "steps" / "first" / "evidence"


class Events:
    """How many events led to a node, of four."""

    async def score(self, node: RolloutNode) -> bf.VerifyResult:
        return bf.VerifyResult(reward=len(node.trajectory) / 4)


async def test_a_rubric_scores_a_child_by_its_directory_and_refuses_the_parent(job: Path) -> None:
    rubric = bf.Rubric([Events()])
    assert (await rubric.score(rollout_dir=rollout_of(job) / "children" / "n1.0")).reward == 1.0
    with pytest.raises(VerifierError, match="branched, and ended in 2 children") as caught:
        await rubric.score(rollout_dir=rollout_of(job))
    assert "children/n1.0, children/n1.1" in (caught.value.remedy or "")


async def test_a_rubric_scores_any_node_of_a_tree_by_its_name(job: Path) -> None:
    rubric = bf.Rubric([Events()])
    directory = rollout_of(job)
    for node, seen in {"n0": 0.0, "n1": 0.5, "n1.0/n2": 1.0}.items():
        assert (await rubric.score(node, rollout_dir=directory)).reward == seen
        assert (await rubric.score(node, rollout_dir=directory / "children" / "n1.1")).reward == seen
    with pytest.raises(UsageError, match="no node 'n2'"):
        await rubric.score("n2", rollout_dir=directory)
    with pytest.raises(ConfigError, match="a name is of a node there"):
        await rubric.score("n1")


async def test_the_world_of_a_state_is_there_for_a_rubric_where_it_was_kept(job: Path, tmp_path: Path) -> None:
    # After the first step one line is there, after the second two.
    once = bf.CodeExecRewardFunc(command='[ "$(wc -l < who)" = 1 ]')
    rubric = bf.Rubric([once, Events()], names=["once", "events"])
    try:
        scored = await rubric.score("n1", rollout_dir=rollout_of(job))
    finally:
        await close_providers(OF_A_PROCESS)
    assert scored.items == {"once": 1.0, "events": 0.5}
    copy = rollout_of(without_workspaces(job, tmp_path / "tree"))
    for node, why in (("n1", "the workspace of this rollout was not kept"), ("n0", "the world that the agent left")):
        scored = await rubric.score(node, rollout_dir=copy)
        assert scored.reward is None and why in scored.errors["once"]
        assert "events" in scored.items


def test_a_node_is_given_rewards_which_count_and_change_no_value(job: Path, tmp_path: Path) -> None:
    directory = tmp_path / "given"
    shutil.copytree(rollout_of(job), directory)
    before = bf.load_tree(directory)
    after = before.reward("n1", {"calm": 0.5}).reward("n1.0/n2", {"calm": 1}).reward("n1", {"calm": 0.25, "short": 0.0})
    assert bf.load_tree(directory).tree == after.tree
    node = after.node("n1")
    assert node.rewards == (before.node("n1").rewards or {}) | {"calm": 0.25, "short": 0.0}
    assert node.given == ("calm", "short")
    assert load_rollout(directory)["n1.0/n2"].rewards == after.node("n1.0/n2").rewards
    kept = {"rewards": None, "given": ()}
    assert [each.model_copy(update=kept) for each in after.tree.nodes] == [
        each.model_copy(update=kept) for each in before.tree.nodes
    ]
    # Where nothing was measured, it may be the reward.
    assert after.reward("n0", {"reward": 0.5}).node("n0").rewards == {"reward": 0.5}


def test_what_cannot_be_a_nodes_reward_is_refused_and_nothing_written(job: Path, tmp_path: Path) -> None:
    directory = tmp_path / "given"
    shutil.copytree(rollout_of(job), directory)
    tree, written = bf.load_tree(directory), (directory / "tree.json").read_bytes()
    for node, rewards, message in [
        ("n9", {"calm": 0.5}, "no node 'n9'"),
        ("n1", {"reward": 0.5}, "'reward' of n1 was measured"),
        ("n1", {"calm": float("nan")}, "calm is nan"),
        ("n1", {"fine": 1.0, "calm": True}, "calm is True"),
    ]:
        with pytest.raises(UsageError, match=message):
            tree.reward(node, rewards)
    (directory / "result.json").unlink()
    with pytest.raises(ResultFileError, match="has not ended"):
        tree.reward("n1", {"calm": 0.5})
    assert (directory / "tree.json").read_bytes() == written


def test_a_row_says_of_how_many_children_its_reward_is_made(job: Path) -> None:
    write_summary(JobPaths(job), "tree", 1)
    (row,) = [json.loads(line) for line in (job / "results.jsonl").read_text().splitlines()]
    assert row["reward_kind"] == "value"
    assert (row["value"]["node"], row["value"]["n"], row["value"]["failed"]) == ("n1", 2, {})
    assert row["value"]["value"] == row["reward"]


def test_a_tree_that_grows_is_read_as_far_as_anybody_has_written_it(job: Path, tmp_path: Path) -> None:
    directory = tmp_path / "growing"
    shutil.copytree(rollout_of(job), directory)
    (directory / "result.json").unlink()
    file = directory / "tree.json"
    tree = json.loads(file.read_bytes())
    tree["nodes"] = [node for node in tree["nodes"] if node["chain"] is None]
    tree["nodes"][-1] |= {"pending": ["n1.0", "n1.1"], "n": 0, "value": None}
    file.write_text(json.dumps(tree))
    shutil.rmtree(directory / "children" / "n1.1")
    grown = bf.load_tree(directory)
    assert [node.id for node in grown.tree.nodes] == ["n0", "n1", "n1.0/n2"]
    assert len(grown.trajectory("n1.0/n2")) == 4


# --- scoring again -------------------------------------------------------------------------------------------


async def scored_again(job: Path, **request: Any) -> Rescoring:
    try:
        return await rescore(job, RescoringRequest(include=["two"], **request))
    finally:
        await close_providers(OF_A_PROCESS)


def without_workspaces(job: Path, target: Path) -> Path:
    """A copy of a job, of which nothing can be run again; what its verifiers wrote is read again."""
    shutil.copytree(job, target, ignore=shutil.ignore_patterns("rescored", "workspace.tar"))
    return target


async def test_scored_again_a_tree_has_the_same_value(job: Path, tmp_path: Path) -> None:
    copy = without_workspaces(job, tmp_path / "tree")
    found = await scored_again(copy)
    (record,) = found.rollouts
    assert (record.outcome, record.error) == ("unchanged", None)
    assert not [note for note in record.warnings if "was not run" in note]
    assert record.value is not None
    assert (record.value.n, sorted(record.value.returns)) == (2, ["n1.0", "n1.1"])
    assert (rollout_of(copy) / "children" / "n1.0" / "rescored" / found.name / "result.json").is_file()


async def test_a_leaf_that_cannot_be_scored_again_leaves_no_value(job: Path, tmp_path: Path) -> None:
    """The mean of the others would be the value of something else."""
    copy = without_workspaces(job, tmp_path / "tree")
    (rollout_of(copy) / "children" / "n1.0" / "steps" / "second" / "verifier" / "reward.txt").unlink()
    (record,) = (await scored_again(copy)).rollouts
    assert (record.outcome, record.rewards) == ("failed", None)
    assert record.error is not None and "not kept" in record.error.message


@pytest.mark.long
async def test_by_another_verifier_each_leaf_has_another_reward_and_the_root_their_mean(
    job: Path, tmp_path: Path
) -> None:
    half = DRAWN.replace("/ 16", "/ 32")
    two_steps(tmp_path / "changed", test=half)
    (record,) = (await scored_again(job, tasks=tmp_path / "changed", trust_workspace=True)).rollouts
    assert (record.outcome, record.error) == ("changed", None)
    before = result_of(rollout_of(job)).reward
    assert before is not None
    assert record.reward == pytest.approx(before / 2, abs=1e-5)
