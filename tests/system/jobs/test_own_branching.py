"""Policies and aggregates that users bring, through the whole engine: asked in workers, and held to by the tree."""

from __future__ import annotations

import asyncio
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import own_branching
from support.running import run_tasks
from support.task_writer import BASE_IMAGE, write_step, write_task

from benchflow.contracts.rollout import RolloutResult, RolloutTree
from benchflow.planes.sandbox import close_providers
from benchflow.rescoring import rescore
from benchflow.rescoring.sandboxes import OWNER
from benchflow.trajectories.stored import load_tree

pytestmark = pytest.mark.local

SOLVE = "cat /proc/sys/kernel/random/uuid >> /app/who\n"
POOR = "echo 0.25 > /logs/verifier/reward.txt\n"
# What nobody can have but the rollout that has drawn it: between 1/16 and 1.
DRAWN = """
printf '%d\\n' "0x$(tail -n 1 /app/who | cut -c1)" | awk '{print ($1 + 1) / 16}' > /logs/verifier/reward.txt
"""


@pytest.fixture(scope="module")
def jobs_dir(module_jobs: Path) -> Iterator[Path]:
    """Jobs of a user whose own modules are on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(own_branching.__file__).parents[1]))
        yield module_jobs


def three_steps(root: Path, name: str) -> Path:
    steps = {"first": POOR, "second": DRAWN, "third": DRAWN}
    table = "".join(f'[[steps]]\nname = "{step}"\n' for step in steps)
    config = f'multi_step_reward_strategy = "final"\n{table}'
    task = write_task(root, name, config=config, dockerfile=f"FROM {BASE_IMAGE}\nWORKDIR /app\n")
    for step, test in steps.items():
        write_step(task, step, solve=SOLVE, test=test)
    return task


def run_branched(
    root: Path, jobs_dir: Path, name: str, policy: str, branch: dict[str, Any], **options: Any
) -> RolloutResult:
    """One rollout of a job of this name. options: of the policy."""
    custom = {"kind": "custom", "policy": f"support.own_branching:{policy}", "options": options}
    task = three_steps(root, name)
    return run_tasks([task], jobs_dir, job_name=name, sandbox="local", branch={"policy": custom} | branch)[name]


def worth_of(tree: RolloutTree, chain: str) -> float:
    """What a child has returned: its own value where it branched, else what it has earned."""
    last = [node for node in tree.nodes if node.chain == chain][-1]
    worth = last.value if last.n else last.returns
    assert worth is not None
    return worth


async def test_a_tree_branches_where_its_own_policy_says_and_is_worth_what_its_own_aggregate_says(
    jobs_dir: Path, tmp_path: Path
) -> None:
    branch = {"aggregate": "support.own_branching:stdev", "max_depth": 2}
    result = await asyncio.to_thread(run_branched, tmp_path, jobs_dir, "own", "WherePoor", branch, below=0.5)
    assert result.error is None
    assert result.directory is not None
    tree = load_tree(result.directory)
    branched = {node.id for node in tree.branched}
    # The root's first step is poor, whatever is drawn; a child has a choice where its own first has led.
    children = {node.id: node for node in tree.tree.nodes if node.id in ("n1.0/n2", "n1.1/n2")}
    assert len(children) == 2
    poor = {name for name, node in children.items() if node.rewards and node.rewards["reward"] < 0.5}
    assert branched == {"n1"} | poor
    for node in tree.branched:
        returns = [worth_of(tree.tree, f"{node.id}.{number}") for number in range(2)]
        assert (node.n, node.value) == (2, pytest.approx(statistics.stdev(returns)))
    assert (result.reward, result.reward_kind) == (tree.node("n1").value, "value")
    assert [tree.node(name).role for name in ("n1", "n1.0/n2", "n1.1/n2")] == ["agent", "brave", "careful"]

    copy = jobs_dir.parent / "copied" / "own"
    shutil.copytree(jobs_dir / "own", copy, ignore=shutil.ignore_patterns("workspace.tar"))
    try:
        (record,) = (await rescore(copy)).rollouts
    finally:
        await close_providers(OWNER)
    assert (record.outcome, record.error) == ("unchanged", None)
    assert record.value is not None and record.value.aggregate == "support.own_branching:stdev"


def test_a_policy_that_fails_ends_the_rollout_and_is_named(jobs_dir: Path, tmp_path: Path) -> None:
    result = run_branched(tmp_path, jobs_dir, "faulty", "Faulty", {}, left=2)
    assert (result.status, result.rewards) == ("errored", None)
    assert result.error is not None
    assert (result.error.type, result.error.category) == ("ConfigError", "usage")
    assert "failed at the node n1: RuntimeError: it cannot be" in result.error.message
    assert [step.step.name for step in result.steps] == ["first"]


def test_an_aggregate_that_gives_no_number_ends_the_rollout_and_its_children_have_their_returns(
    jobs_dir: Path, tmp_path: Path
) -> None:
    branch = {"aggregate": "support.own_branching:nothing", "horizon": 1}
    result = run_branched(tmp_path, jobs_dir, "nothing", "WherePoor", branch, below=0.5, roles=["brave"])
    assert (result.status, result.rewards) == ("errored", None)
    assert result.error is not None
    assert (result.error.type, result.error.file) == ("RewardFuncError", "support.own_branching:nothing")
    assert result.directory is not None
    tree = load_tree(result.directory)
    assert [leaf.id for leaf in tree.leaves if leaf.returns is not None] == ["n1.0/n2"]
    assert (tree.node("n1").value, tree.node("n1").n) == (None, 1)
