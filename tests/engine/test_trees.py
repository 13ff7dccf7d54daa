"""Rollouts that branch: who begins where, what a state is worth, how trees grow, and what is kept of their states.

A turn leaves a number in its sandbox that no other turn draws: it tells from where a child began.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.asked import ask, question
from support.freezes import freeze
from support.in_process_worker import InProcessWorker
from temporalio import workflow

import benchflow as bf
from benchflow.contracts import ids
from benchflow.contracts.rollout_records import Failure, RolloutResult, TurnResult, Usage
from benchflow.errors import ConfigError, MissingArtifactError
from benchflow.hosting.hosted_turn import HostedTurn
from benchflow.hosting.reporting import HostedReport
from benchflow.paths import RolloutPaths
from benchflow.testing.waiting import until
from benchflow.trajectories.journal import NodeWriter
from benchflow.trajectories.state_values import compute_tree_grpo
from benchflow.workflow_executions import FailingTask
from benchflow.workflows.branching import MAX_STARTS
from benchflow.workflows.workflow_cancellation import run_to_end


@pytest.fixture(autouse=True)
def drawn(worker: InProcessWorker) -> None:
    worker.provider.draws = True


async def grown(worker: InProcessWorker, policy: dict[str, Any], *, steps: int = 3, **branch: Any) -> RolloutResult:
    """The result of one rollout whose last step is its reward."""
    job = await worker.submit(worker.stepped(steps, final=True), branch={"policy": policy} | branch)
    (result,) = await worker.results(job)
    assert result.error is None
    # Nothing is kept of states that nobody needs any more.
    assert worker.provider.images == {} and list(worker.context.paths.checkpoints.glob("*.json")) == []
    assert not worker.provider.open
    return result


def nodes_of(result: RolloutResult) -> dict[str, dict[str, Any]]:
    assert result.directory is not None
    tree = json.loads((Path(result.directory) / "tree.json").read_bytes())
    return {node["id"]: node for node in tree["nodes"]}


def left_by(worker: InProcessWorker, result: RolloutResult, chain: str = "") -> tuple[float, ...]:
    """What was in the last sandbox of a rollout, or of one of its chains: a number for each turn that led there."""
    if chain:
        place = RolloutPaths(Path(str(result.directory))).child(chain)
        result = RolloutResult.model_validate_json(place.result.read_bytes())
    return worker.provider.drawn[result.sandbox["name"]]


def count_turns(worker: InProcessWorker) -> None:
    """Have each turn use ten tokens, half a dollar and two tool calls."""
    act = HostedTurn._act

    async def using(hosted: HostedTurn, writer: NodeWriter) -> TurnResult:
        usage = Usage(input_tokens=10, output_tokens=1, cost=0.5, currency="USD")
        return (await act(hosted, writer)).model_copy(update={"usage": usage, "n_tool_calls": 2})

    worker.patch.setattr(HostedTurn, "_act", using)


async def test_children_go_on_from_one_state_and_its_value_is_their_mean(worker: InProcessWorker) -> None:
    result = await grown(worker, {"kind": "after_steps", "steps": [1], "n": 3})
    nodes = nodes_of(result)
    assert set(nodes) == {"n0", "n1"} | {f"n1.{child}/n{step}" for child in range(3) for step in (2, 3)}
    leaves = [nodes[f"n1.{child}/n3"] for child in range(3)]
    value = statistics.fmean(leaf["rewards"]["reward"] for leaf in leaves)
    assert result.reward == pytest.approx(value) == nodes["n1"]["value"]
    assert result.reward_kind == "value"
    assert (nodes["n1"]["n"], nodes["n1"]["failed"], nodes["n1"]["pending"]) == (3, {}, [])
    left = [left_by(worker, result, f"n1.{child}") for child in range(3)]
    # The first is the parent's, the others are each child's own.
    assert {len(drawn) for drawn in left} == {3} and len({drawn[0] for drawn in left}) == 1
    assert len({drawn[1] for drawn in left}) == len({drawn[2] for drawn in left}) == 3
    assert [drawn[2] for drawn in left] == [leaf["rewards"]["reward"] for leaf in leaves]


@pytest.mark.long
async def test_more_children_than_are_started_at_once_all_end(worker: InProcessWorker) -> None:
    result = await grown(worker, {"kind": "after_steps", "steps": [1], "n": MAX_STARTS + 6}, steps=2, max_children=100)
    nodes = nodes_of(result)
    assert (nodes["n1"]["n"], nodes["n1"]["failed"], nodes["n1"]["pending"]) == (MAX_STARTS + 6, {}, [])
    assert len(nodes) == 2 + MAX_STARTS + 6


async def test_children_branch_again(worker: InProcessWorker) -> None:
    result = await grown(worker, {"kind": "after_steps", "steps": [0, 1], "n": 2}, steps=2, max_depth=2)
    nodes = nodes_of(result)
    leaves = [node for node in nodes.values() if node["id"].endswith("/n2")]
    assert len(leaves) == 4
    value = statistics.fmean(leaf["rewards"]["reward"] for leaf in leaves)
    assert result.reward == pytest.approx(value) == nodes["n0"]["value"]
    for name in ("n0.0/n1", "n0.1/n1"):
        below = [leaf["rewards"]["reward"] for leaf in leaves if leaf["id"].startswith(name)]
        assert nodes[name]["value"] == pytest.approx(statistics.fmean(below))
    # Each may run for longer than all that begins below it, and so ends its children in time.
    root = str(result.workflow_id)
    chains = [root, ids.child_id(root, "n0.0"), ids.child_id(root, "n0.0/n1.0")]
    root_sec, child_sec, leaf_sec = [await run_timeout_sec(worker, chain) for chain in chains]
    assert root_sec > 2 * child_sec > 4 * leaf_sec > 0


async def run_timeout_sec(worker: InProcessWorker, workflow_id: str) -> float:
    """Return after how many seconds the server ends a workflow."""
    description = await worker.context.client.get_workflow_handle(workflow_id).describe()
    return description.raw_description.execution_config.workflow_run_timeout.ToTimedelta().total_seconds()


async def test_children_who_answer_for_themselves_have_their_parents_slot(worker: InProcessWorker) -> None:
    """Every slot of a host would be held by a parent whose children wait for one."""
    worker.context.slots.limit = 1
    ask(worker, [question("q", "yes", "no")], step=1)
    result = await grown(worker, {"kind": "ask_user"})
    assert len(nodes_of(result)) == 1 + 1 + 1 + 2 * 2
    assert worker.context.slots.taken() == []


async def test_a_child_whose_workflow_task_fails_again_and_again_is_ended_and_the_others_count(
    worker: InProcessWorker,
) -> None:
    worker.patch.setenv("BENCHFLOW_WORKFLOW_STUCK_ATTEMPTS", "2")
    worker.options(stuck_after_sec=0, sweep_every_sec=0.3, sweep_after_sec=0)

    async def broken(work: Any, on_cancel: Callable[[], None] = lambda: None) -> Any:
        if not workflow.info().workflow_id.endswith(ids.child_id("", "n1.0")):
            return await run_to_end(work, on_cancel)
        if asyncio.iscoroutine(work):
            work.close()
        raise KeyError("broken")

    # Both of a rollout's tries to end go through it.
    worker.patch.setattr("benchflow.workflows.workflow_cancellation.run_to_end", broken)
    is_shown, is_stuck = asyncio.Event(), FailingTask.is_stuck
    # It is ended once it was seen.
    worker.patch.setattr(FailingTask, "is_stuck", lambda *given: is_shown.is_set() and is_stuck(*given))
    policy = {"kind": "after_steps", "steps": [1], "n": 2}
    job = await worker.submit(worker.stepped(2, final=True), branch={"policy": policy})
    trouble = await until(lambda: job.trouble(job.spec.rollout_id(job.id, 0)), seconds=20)
    is_shown.set()
    (result,) = await worker.results(job)
    assert "workflow task of a child" in str(trouble) and "broken" in str(trouble)
    assert (result.status, result.error) == ("failed", None)
    nodes = nodes_of(result)
    assert result.reward == pytest.approx(nodes["n1.1/n2"]["rewards"]["reward"]) == nodes["n1"]["value"]
    assert {chain: failure["category"] for chain, failure in nodes["n1"]["failed"].items()} == {"n1.0": "terminated"}


async def test_a_child_of_an_earlier_run_that_has_not_ended_is_waited_for(worker: InProcessWorker) -> None:
    """So often, and not so long: in an outage, it can't end either."""
    report_sec = 1.5
    worker.options(report_total_sec=report_sec)
    worker.patch.setattr("benchflow.workflows.children.EARLIER_RUN_SEC", 0.2)
    worker.provider.held = True
    policy = {"kind": "after_steps", "steps": [1], "n": 2}
    job = await worker.submit(worker.stepped(2, final=True), branch={"policy": policy})
    root = job.spec.rollout_id(job.id, 0)
    await worker.in_turn(1)
    client = worker.context.client
    earlier = await client.start_workflow("any", id=ids.child_id(root, "n1.0"), task_queue="benchflow-nobody")
    # The other child does not end before.
    worker.provider.release()

    async def n_met() -> int:
        events = await worker.events(job, root.removeprefix(job.id))
        return events.count("EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED")

    await until(n_met)
    freeze(report_sec)
    before = await n_met()

    async def has_met_it_again() -> bool:
        return await n_met() > before

    await until(has_met_it_again)
    await earlier.terminate()
    worker.provider.release_all()
    (result,) = await worker.results(job)
    node = nodes_of(result)["n1"]
    assert (node["n"], node["failed"]) == (2, {})


async def test_a_trajectory_that_an_agents_failure_has_cut_short_says_so_wherever_it_was_run(
    worker: InProcessWorker,
) -> None:
    """In a child, from which its parent continues."""
    act = HostedTurn._act

    async def failing(hosted: HostedTurn, writer: NodeWriter) -> TurnResult:
        turn = await act(hosted, writer)
        if hosted._step.index != 1:
            return turn
        failure = Failure(type="AgentTimeoutError", category="agent_timeout", message="it did not answer")
        return turn.model_copy(update={"stop_reason": "timeout", "failure": failure})

    worker.patch.setattr(HostedTurn, "_act", failing)
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}, "then": "best"}
    (result,) = await worker.results(await worker.submit(worker.stepped(2), branch=branch))
    assert result.error is not None
    assert (result.error.category, result.is_truncated) == ("agent_timeout", True)


async def test_a_parent_goes_on_from_the_best_of_its_children(worker: InProcessWorker) -> None:
    count_turns(worker)
    policy = {"kind": "after_steps", "steps": [1], "n": 3}
    result = await grown(worker, policy, horizon=1, then="best")
    nodes = nodes_of(result)
    children = [f"n1.{number}/n2" for number in range(3)]
    assert set(nodes) == {"n0", "n1", "n3", *children}
    best = max(children, key=lambda name: nodes[name]["returns"])
    assert nodes["n3"]["parent"] == best
    assert nodes["n1"]["value"] == pytest.approx(statistics.fmean(nodes[name]["returns"] for name in children))
    assert (result.reward_kind, result.reward) == ("measured", nodes["n3"]["rewards"]["reward"])
    assert left_by(worker, result)[:2] == left_by(worker, result, best.partition("/")[0])
    assert [step.step.name for step in result.steps] == ["s0", "s1", "s2"]
    # The turn of the child from which the rollout continues is counted once, as that of the others.
    assert (result.n_input_tokens, result.cost_usd, result.n_tool_calls) == (50, 2.5, 10)


async def test_a_parent_goes_on_from_a_child_that_has_gone_on_from_one_of_its_own(worker: InProcessWorker) -> None:
    count_turns(worker)
    policy = {"kind": "after_steps", "steps": [1, 2], "n": 2}
    result = await grown(worker, policy, max_depth=2, then="best")
    nodes = nodes_of(result)
    below = [f"n1.{child}/n2.{number}/n3" for child in range(2) for number in range(2)]
    assert set(nodes) == {"n0", "n1", "n1.0/n2", "n1.1/n2", *below}
    assert [step.step.name for step in result.steps] == ["s0", "s1", "s2"]
    # Each of the seven turns once.
    assert (result.n_input_tokens, result.cost_usd, result.n_tool_calls) == (70, 3.5, 14)


@pytest.mark.long
async def test_a_parent_goes_on_from_the_child_that_is_named(worker: InProcessWorker) -> None:
    result = await grown(worker, {"kind": "every_n", "every": 1, "n": 2}, horizon=1, then="child:1")
    nodes = nodes_of(result)
    # Where the second child has ended, which is where its parent goes on, it branches again.
    assert set(nodes) == {"n0", "n1", "n1.0/n2", "n1.1/n2", "n1.1/n2.0/n3", "n1.1/n2.1/n3"}
    assert result.reward == nodes["n1.1/n2.1/n3"]["rewards"]["reward"]


async def test_trees_of_tree_grpo_grow_from_their_own_nodes(worker: InProcessWorker) -> None:
    result = await grown(worker, {"kind": "tree_grpo", "m": 2, "n": 2, "l": 1, "k": 3})
    nodes = nodes_of(result)
    parents = {node["parent"] for node in nodes.values()}
    leaves = [node for node in nodes.values() if node["id"] not in parents]
    assert len(leaves) == 6
    by_tree = {
        tree: {leaf["id"]: leaf["returns"] for leaf in leaves if leaf["tree"] == tree} for tree in ("n0.0", "n0.1")
    }
    assert [len(returns) for returns in by_tree.values()] == [3, 3]
    assert {leaf["id"]: leaf["advantages"]["tree_grpo"] for leaf in leaves} == pytest.approx(compute_tree_grpo(by_tree))
    # What has begun in the middle of a chain has what led there.
    assert {len(left_by(worker, result, leaf["id"].rpartition("/")[0])) for leaf in leaves} == {3}


# --- from Python ---------------------------------------------------------------------------------------------


async def test_a_rollout_is_branched_from_python(worker: InProcessWorker) -> None:
    config = bf.RolloutConfig(task_path=worker.task(), environment="hall", jobs_dir=worker.root / "jobs")
    result = await (await bf.Rollout.create(config)).branch(n=2, aggregate="max")
    assert (result.error, result.reward_kind) == (None, "value")
    tree = bf.load_tree(str(result.directory))
    assert [leaf.id for leaf in tree.leaves] == ["n0.0/n1", "n0.1/n1"]
    assert result.reward == max(leaf.returns or 0 for leaf in tree.leaves)


async def test_what_cannot_be_branched_from_python_is_refused(worker: InProcessWorker) -> None:
    jobs = worker.root / "jobs"
    config = bf.RolloutConfig(task_path=worker.stepped(2), environment="hall", jobs_dir=jobs)
    rollout = await bf.Rollout.create(config)
    with pytest.raises(ConfigError, match="2 steps"):
        await rollout.branch(n=2, at=2)
    with pytest.raises(ConfigError, match="greater than or equal to 1"):
        await rollout.branch(n=0)
    with pytest.raises(ConfigError, match="not a known key"):
        await rollout.branch(n=2, atonce=3)
    with pytest.raises(ConfigError, match="they are not counted"):
        await rollout.branch(n=2, every=2)
    twice = config.model_copy(update={"branch": bf.BranchConfig(policy=bf.Group(n=2))})
    with pytest.raises(ConfigError, match="as its configuration says"):
        await (await bf.Rollout.create(twice)).branch(n=2)
    assert not jobs.exists()


async def test_a_child_whose_results_are_gone_costs_its_parent_a_warning_and_no_reward(worker: InProcessWorker) -> None:
    worker.options(retry_initial_sec=0.02, retry_max_sec=0.02)

    async def is_gone(*given: object) -> None:
        raise MissingArtifactError("there is nothing of this name in the store")

    worker.patch.setattr(HostedReport, "_fetch_child", is_gone)
    result = await grown(worker, {"kind": "after_steps", "steps": [1], "n": 2}, portable=True)
    assert (result.reward_kind, result.error, result.attempt) == ("value", None, 1) and result.rewards
    told = [warning for warning in result.warnings if warning.startswith("the results of the child")]
    assert len(told) == 2, result.warnings
