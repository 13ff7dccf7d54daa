"""Branches of a rollout without a workflow: which children may begin, node values, nodes after a restore."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import TemporalError

from benchflow.contracts.activities import RolloutPlan
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.branch import BranchConfig, BranchOrigin, ChildOutcome, ChildSpec, CustomPolicy
from benchflow.contracts.checkpoint import Checkpoint, FilesLayer
from benchflow.contracts.images import ImageRef
from benchflow.contracts.job import AgentSpec, Origin, RolloutSpec, RunConfig, TaskRef
from benchflow.contracts.rollout_records import Node, Step, StepOutcome, TurnResult
from benchflow.contracts.sandbox import SandboxRef
from benchflow.workflows.branching import Branching
from benchflow.workflows.children import make_origin
from benchflow.workflows.rollout_checkpoints import RolloutRestores
from benchflow.workflows.rollout_state import RolloutState

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


def checkpoint_of(node: str, steps_done: int, *, is_portable: bool = False) -> Checkpoint:
    pack = ArtifactRef(uri="file:///p", sha256="0" * 64, size=1) if is_portable else None
    return Checkpoint(
        id=f"bf-{node}",
        rollout="job/j/r/task/oracle/0",
        node=node,
        provider="local",
        host_id="h",
        queue="q",
        workdir="/",
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
        fence="f",
        steps_done=steps_done,
        files=FilesLayer(image=ImageRef(reference="i"), digest="d", seconds=0.0, pack=pack),
    )


def child_of(begun: int, *, depth: int = 1, budget: int = 8, **more: Any) -> BranchOrigin:
    return BranchOrigin(
        root="job/j/r/task/oracle/0",
        run_id="r",
        parent="job/j/r/task/oracle/0",
        chain=f"n{begun}.0",
        node=f"n{begun}",
        number=0,
        depth=depth,
        budget=budget,
        checkpoint=checkpoint_of(f"n{begun}", begun),
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


def branching_of(spec: RolloutSpec, steps: int) -> Branching:
    """Return what decides where a rollout branches that has done so many of its steps, outside of a workflow."""
    state = RolloutState(spec, plan=RolloutPlan(steps=[outcome.step for outcome in done(STEPS)]))
    state.steps = done(steps)
    unused: Any = None
    return Branching(state, unused, unused, unused, unused)


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
    assert await branching_of(spec, steps).choose_children() == ()


async def test_a_users_policy_is_asked_anywhere_else() -> None:
    for spec, steps in ((spec_of(), 0), (spec_of(child_of(1), max_depth=2), 2)):
        with pytest.raises(TemporalError, match="Not in workflow event loop"):
            await branching_of(spec, steps).choose_children()


def test_a_node_waits_for_the_chains_that_begin_there_and_for_no_others() -> None:
    state = RolloutState(spec_of(policy={"kind": "tree_grpo", "m": 2}))
    state.outcomes = [ended("n0.0", 0.25)]
    state.pending = ["n0.1", "n0.0/n9.0"]
    nodes = {node.id: node for node in state.make_tree().nodes}
    assert (nodes["n0"].pending, nodes["n0"].value) == (("n0.1",), 0.25)
    assert (nodes["n0.0/n9"].pending, nodes["n0.0/n9"].value) == (("n0.0/n9.0",), None)


def test_what_an_own_aggregate_has_not_said_of_is_worth_nothing_yet() -> None:
    state = RolloutState(spec_of(aggregate="support.own_branching:stdev"))
    state.outcomes = [ended("n0.0", 0.25), ended("n0.1", 0.75)]
    (root, *_) = state.make_tree().nodes
    assert (root.value, root.n) == (None, 2)


def test_a_child_that_is_given_no_role_takes_its_parents() -> None:
    parent = spec_of(child_of(1, child={"role": "brave"}), max_depth=2)
    given = [{"seed": 3}, {"role": "careful"}]
    roles = [
        make_origin(parent, parent.branch.checkpoint, "n1.0/n2", number, child, [], 2).child.role
        for number, child in enumerate(map(ChildSpec.model_validate, given))
        if parent.branch is not None
    ]
    assert roles == ["brave", "careful"]


def lost(*retained: Checkpoint, **config: Any) -> RolloutState:
    """Return a root that continued from the child n1.0 for two steps, branched at n1 and n3, and loses its host."""
    state = RolloutState(spec_of(**config), plan=RolloutPlan(steps=[outcome.step for outcome in done(STEPS)]))
    state.steps, state.adopted = done(3), {1: "n1.0/n2", 2: "n1.0/n3"}
    state.outcomes, state.pending = [ended("n1.0", 1.0), ended("n1.1", 0.0), ended("n1.0/n3.0", 1.0)], ["n1.0/n3.1"]
    state.retained = list(retained)
    state.session_checkpoints = [checkpoint_of("n0-session", 0), checkpoint_of("n1-session", 1, is_portable=True)]
    state.sandbox = SandboxRef(provider="local", name="s", handle="s", host_id="h", queue="q", workdir="/")
    return state


def restores_of(state: RolloutState) -> tuple[RolloutRestores, list[bool]]:
    """Return what restores a rollout, and whether its sandboxes are discarded with their results kept."""
    kept: list[bool] = []
    sandbox: Any = SimpleNamespace(discard=lambda *, keeps_results: kept.append(keeps_results))
    return RolloutRestores(state, sandbox), kept


def test_a_rollout_that_lost_its_host_starts_at_its_last_portable_checkpoint_without_what_came_after() -> None:
    portable = [checkpoint_of("n0", 0, is_portable=True), checkpoint_of("n1.0/n2", 2, is_portable=True)]
    state = lost(*portable, checkpoint_of("n1.0/n3", 3))
    restores, kept = restores_of(state)
    start = restores.rewind_lost()
    assert start.checkpoint == portable[1] and start.revert is not None and kept == [True]
    assert (start.revert.node, start.revert.undone) == ("n1.0/n2", ["n1.0/n3", "n4"])
    assert (start.revert.sandbox, start.revert.chains) == (None, ["n1.0/n3.0", "n1.0/n3.1"])
    assert (len(state.steps), state.adopted, state.pending) == (2, {1: "n1.0/n2"}, [])
    assert [outcome.chain for outcome in state.outcomes] == ["n1.0", "n1.1"]
    assert (state.retained, [one.node for one in state.release_at_end]) == (portable, ["n1-session"])


def test_a_rollout_that_lost_its_host_with_all_checkpoints_starts_anew() -> None:
    state = lost(checkpoint_of("n0", 0), checkpoint_of("n1.0/n2", 2))
    restores, kept = restores_of(state)
    start = restores.rewind_lost()
    assert (start.checkpoint, start.revert, kept) == (None, None, [False])
    assert (state.steps, state.outcomes, state.pending, state.adopted, state.retained) == ([], [], [], {}, [])


def test_children_stay_that_began_where_a_rollout_that_continues_by_itself_is_restored_after_a_loss() -> None:
    state = lost(checkpoint_of("n1", 1, is_portable=True), then="itself")
    assert restores_of(state)[0].rewind_lost().checkpoint == checkpoint_of("n1", 1, is_portable=True)
    assert [outcome.chain for outcome in state.outcomes] == ["n1.0", "n1.1"]
    state = lost(checkpoint_of("n1", 1, is_portable=True), then="best")
    restores_of(state)[0].rewind_lost()
    assert state.outcomes == []
