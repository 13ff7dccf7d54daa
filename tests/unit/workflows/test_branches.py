"""What a rollout knows of its children, before a workflow is about it: who may begin, and what its nodes are worth."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.exceptions import TemporalError

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.branch import BranchConfig, BranchOrigin, ChildOutcome, ChildSpec, CustomPolicy
from benchflow.contracts.checkpoint import Checkpoint, FilesLayer
from benchflow.contracts.images import ImageRef
from benchflow.contracts.job import AgentSpec, Origin, RolloutSpec, RunConfig, TaskRef
from benchflow.contracts.rollout import Node, Step, StepOutcome, TurnResult
from benchflow.workflows.branching import Branches, chain_nodes
from benchflow.workflows.children import origin_of

OWN = CustomPolicy(policy="support.own_branching:WherePoor", options={"below": 0.5})
STEPS = 4


def spec_of(branch: BranchOrigin | None = None, **config: Any) -> RolloutSpec:
    """config: fields of `BranchConfig`."""
    return RolloutSpec(
        id="job/j/r/task/oracle/0",
        job_id="job/j",
        job_name="j",
        name="task__1",
        index=0,
        task=TaskRef(name="task", digest="d", pack=ArtifactRef(uri="file:///t", sha256="0" * 64, size=1)),
        agent=AgentSpec(name="oracle"),
        repeat=0,
        run=RunConfig(sandbox="local", branch=BranchConfig(**({"policy": OWN} | config))),
        origin=Origin(host_id="h", job_dir="/jobs/j"),
        branch=branch,
    )


def child_of(begun: int, *, depth: int = 1, budget: int = 8, **more: Any) -> BranchOrigin:
    checkpoint = Checkpoint(
        id="bf-1",
        rollout="job/j/r/task/oracle/0",
        node=f"n{begun}",
        provider="local",
        host_id="h",
        queue="q",
        workdir="/",
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
        fence="f",
        steps_done=begun,
        files=FilesLayer(image=ImageRef(reference="i"), digest="d", seconds=0.0),
    )
    return BranchOrigin(
        root="job/j/r/task/oracle/0",
        run_id="r",
        parent="job/j/r/task/oracle/0",
        chain=f"n{begun}.0",
        node=f"n{begun}",
        number=0,
        depth=depth,
        budget=budget,
        checkpoint=checkpoint,
        before=done(begun),
        **more,
    )


def done(count: int) -> list[StepOutcome]:
    return [
        StepOutcome(step=Step(index=index, agent="oracle"), turn=TurnResult(stop_reason="end_turn"))
        for index in range(count)
    ]


def ended(chain: str, reward: float) -> ChildOutcome:
    leaf = f"{chain}/n9"
    return ChildOutcome(
        chain=chain, number=int(chain[-1]), reward=reward, leaf=leaf, nodes=[Node(id=leaf, parent=chain[:-2])]
    )


@pytest.mark.parametrize(
    ("spec", "steps"),
    [
        pytest.param(spec_of(child_of(1)), 2, id="the tree may grow no deeper"),
        pytest.param(spec_of(child_of(1, budget=0), max_depth=2), 2, id="the tree may grow no larger"),
        pytest.param(spec_of(child_of(1), max_depth=2), 1, id="its siblings begin here"),
        pytest.param(spec_of(child_of(1), max_depth=2, horizon=1), 2, id="its horizon is reached"),
        pytest.param(spec_of(), STEPS, id="it is over"),
    ],
)
async def test_a_users_policy_is_not_asked_where_nothing_can_begin(spec: RolloutSpec, steps: int) -> None:
    # Outside of a workflow nobody can be asked.
    assert await Branches(spec).due(done(steps), STEPS) == ()


async def test_a_users_policy_is_asked_anywhere_else() -> None:
    for spec, steps in ((spec_of(), 0), (spec_of(child_of(1), max_depth=2), 2)):
        with pytest.raises(TemporalError, match="Not in workflow event loop"):
            await Branches(spec).due(done(steps), STEPS)


def test_a_node_waits_for_the_chains_that_begin_there_and_for_no_others() -> None:
    branches = Branches(spec_of(policy={"kind": "tree_grpo", "m": 2}))
    branches.outcomes = [ended("n0.0", 0.25)]
    branches.pending = ["n0.1", "n0.0/n9.0"]
    nodes = {node.id: node for node in branches.tree(chain_nodes(branches, [])).nodes}
    assert (nodes["n0"].pending, nodes["n0"].value) == (("n0.1",), 0.25)
    assert (nodes["n0.0/n9"].pending, nodes["n0.0/n9"].value) == (("n0.0/n9.0",), None)


def test_what_an_own_aggregate_has_not_said_of_is_worth_nothing_yet() -> None:
    branches = Branches(spec_of(aggregate="support.own_branching:stdev"))
    branches.outcomes = [ended("n0.0", 0.25), ended("n0.1", 0.75)]
    (root, *_) = branches.tree(chain_nodes(branches, [])).nodes
    assert (root.value, root.n) == (None, 2)


def test_a_child_that_is_given_no_role_takes_its_parents() -> None:
    parent = spec_of(child_of(1, child={"role": "brave"}), max_depth=2)
    given = [{"seed": 3}, {"role": "careful"}]
    roles = [
        origin_of(parent, parent.branch.checkpoint, "n1.0/n2", number, child, [], 2).child.role
        for number, child in enumerate(map(ChildSpec.model_validate, given))
        if parent.branch is not None
    ]
    assert roles == ["brave", "careful"]
