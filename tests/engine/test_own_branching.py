"""Policies and aggregates that users bring, through the whole engine: asked in workers, and held to by the tree."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from support import own_branching
from support.in_process_worker import InProcessWorker

from benchflow.contracts.rollout_records import RolloutResult, RolloutTree
from benchflow.rescoring import rescore
from benchflow.trajectories.stored import load_tree


@pytest.fixture(autouse=True)
def own_modules(worker: InProcessWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a user whose own modules are on the path."""
    worker.provider.draws = True
    monkeypatch.syspath_prepend(Path(own_branching.__file__).parent)


async def branched(worker: InProcessWorker, policy: str, branch: dict[str, Any], **options: Any) -> RolloutResult:
    """The result of a rollout of three steps. options: of the policy."""
    custom = {"kind": "custom", "policy": f"own_branching:{policy}", "options": options}
    job = await worker.submit(worker.stepped(final=True), branch={"policy": custom} | branch)
    (result,) = await worker.results(job)
    return result


def worth_of(tree: RolloutTree, chain: str) -> float:
    """What a child has returned: its own value where it branched, else what it has earned."""
    last = [node for node in tree.nodes if node.chain == chain][-1]
    worth = last.value if last.n else last.returns
    assert worth is not None
    return worth


async def test_a_tree_branches_where_its_own_policy_says_and_is_worth_what_its_own_aggregate_says(
    worker: InProcessWorker,
) -> None:
    # No draw is as much, so that every state is poor from which a step has led on.
    result = await branched(worker, "WherePoor", {"aggregate": "own_branching:stdev", "max_depth": 2}, below=1.0)
    assert result.error is None
    tree = load_tree(str(result.directory))
    assert {node.id for node in tree.branched} == {"n1", "n1.0/n2", "n1.1/n2"}
    for node in tree.branched:
        returns = [worth_of(tree.tree, f"{node.id}.{number}") for number in range(2)]
        assert (node.n, node.value) == (2, pytest.approx(statistics.stdev(returns)))
    assert (result.reward, result.reward_kind) == (tree.node("n1").value, "value")
    assert [tree.node(name).role for name in ("n1", "n1.0/n2", "n1.1/n2")] == ["agent", "brave", "careful"]

    job = Path(str(result.directory)).parent
    copy = shutil.copytree(job, worker.root / "copied" / job.name)
    (record,) = (await rescore(copy)).rollouts
    assert (record.outcome, record.error) == ("unchanged", None)
    assert record.value is not None and record.value.aggregate == "own_branching:stdev"


async def test_a_policy_that_fails_ends_the_rollout_and_is_named(worker: InProcessWorker) -> None:
    result = await branched(worker, "Faulty", {}, left=2)
    assert (result.status, result.rewards) == ("errored", None)
    assert result.error is not None
    assert (result.error.type, result.error.category) == ("ConfigError", "usage")
    assert "failed at the node n1: RuntimeError: it cannot be" in result.error.message
    assert [step.step.name for step in result.steps] == ["s0"]


async def test_an_aggregate_that_gives_no_number_ends_the_rollout_and_its_children_have_their_returns(
    worker: InProcessWorker,
) -> None:
    branch = {"aggregate": "own_branching:nothing", "horizon": 1}
    result = await branched(worker, "WherePoor", branch, below=1.0, roles=["brave"])
    assert (result.status, result.rewards) == ("errored", None)
    assert result.error is not None
    assert (result.error.type, result.error.file) == ("RewardFuncError", "own_branching:nothing")
    tree = load_tree(str(result.directory))
    assert [leaf.id for leaf in tree.leaves if leaf.returns is not None] == ["n1.0/n2"]
    assert (tree.node("n1").value, tree.node("n1").n) == (None, 1)


async def test_a_part_of_the_children_is_worth_nothing_where_the_deadline_ended_the_others(
    worker: InProcessWorker,
) -> None:
    custom = {"kind": "custom", "policy": "own_branching:WherePoor", "options": {"below": 1.0}}
    branch = {"policy": custom, "aggregate": "own_branching:hangs", "horizon": 1}
    job = await worker.submit(worker.stepped(final=True), branch=branch, deadline_sec=3)
    (result,) = await worker.results(job)
    assert (result.status, result.rewards) == ("errored", None)
    assert result.error is not None and result.error.category == "deadline"
