"""What is refused when a rollout that is to branch is submitted."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from benchflow.branching.branch_checks import check
from benchflow.contracts.activities import Connected
from benchflow.contracts.branch import (
    AfterSteps,
    BranchConfig,
    ChildSpec,
    CustomPolicy,
    EverySteps,
    Group,
    OnAskUser,
    Policy,
    TreeGrpo,
    Unbranched,
)
from benchflow.contracts.resuming import Rung
from benchflow.contracts.rollout_records import Answer
from benchflow.errors import ConfigError

STEPS = 5


@pytest.mark.parametrize(
    "config",
    [
        BranchConfig(policy=AfterSteps(steps=(4,))),
        BranchConfig(policy=Unbranched(), checkpoint="every_n", every=2, portable=True),
        BranchConfig(policy=AfterSteps(steps=(1, 2, 3)), max_depth=3, horizon=4),
        BranchConfig(policy=AfterSteps(steps=(1, 2, 3)), then="best", horizon=1),
        BranchConfig(policy=AfterSteps(steps=(3, 1, 3)), max_depth=2, horizon=4),
        BranchConfig(policy=AfterSteps(steps=(2, 1), n=(90, 4)), max_depth=2),
        BranchConfig(policy=AfterSteps(steps=(1, 2), n=(1, 2)), max_depth=2, children=(ChildSpec(), ChildSpec(seed=1))),
        BranchConfig(policy=EverySteps(every=4), then="child:1"),
        BranchConfig(policy=AfterSteps(steps=(0, 2, 4)), then="itself"),
        BranchConfig(policy=EverySteps(every=1, n=3), children=(ChildSpec(seed=1), ChildSpec(seed=2), ChildSpec())),
        BranchConfig(policy=OnAskUser(most=8), then="sample", max_children=4),
        BranchConfig(policy=Group(n=64), aggregate="max", horizon=5),
        BranchConfig(policy=TreeGrpo(m=4, n=2, l=3, k=7), checkpoint="per_turn"),
        BranchConfig(policy=TreeGrpo(m=2, n=2, l=9, k=5), max_children=10),
    ],
    ids=lambda config: config.policy.kind,
)
def test_what_can_be_is_accepted(config: BranchConfig) -> None:
    check(config, total_steps=STEPS)


def refused(policy: Policy, key: str, message: str, **others: Any) -> Any:
    return pytest.param(BranchConfig(policy=policy, **others), key, message, id=f"{policy.kind}-{key}-{message[:24]}")


TWO = (ChildSpec(), ChildSpec())


@pytest.mark.parametrize(
    ("config", "key", "message"),
    [
        refused(AfterSteps(steps=(1, 5)), "policy", "has 5 steps, so nothing is left to branch for after 5"),
        refused(EverySteps(every=5), "policy", "nothing is left"),
        refused(Group(at=7), "policy", "after 7"),
        refused(AfterSteps(steps=(1, 3)), "max_depth", "2 depths"),
        refused(AfterSteps(steps=(1, 3), n=(2,)), "policy.n", "1 counts are given for 2 places", max_depth=2),
        refused(AfterSteps(steps=(1, 1), n=(2, 3)), "policy.n", "2 counts are given for 2 places"),
        refused(AfterSteps(steps=(1,), n=()), "policy.n", "0 counts"),
        refused(AfterSteps(steps=(1, 2), n=(2, 3)), "children", "policy has 3", children=TWO, max_depth=2),
        refused(AfterSteps(steps=(2, 1), n=(2, 65)), "max_children", "alone has 65", max_depth=2),
        refused(AfterSteps(steps=(1, 2), n=(3, 2)), "then", "no child 2: their numbers are 0 to 1", then="child:2"),
        refused(Group(at=2), "horizon", "no child has more than 3 steps", horizon=4),
        refused(AfterSteps(steps=(2, 4)), "horizon", "more than 3 steps", horizon=4, then="best"),
        refused(Group(), "children", "2 are given, but the policy has 8", children=TWO),
        refused(OnAskUser(), "children", "differ only", children=TWO),
        refused(TreeGrpo(), "children", "differ only", children=TWO),
        refused(Group(n=2), "children", "answer", children=(ChildSpec(answer=Answer(question="q")), ChildSpec())),
        refused(Group(n=8), "max_children", "8 children, of at most 7", max_children=7),
        refused(Group(n=2), "then", "no child 2: their numbers are 0 to 1", then="child:2"),
        refused(OnAskUser(most=3), "then", "no child 3", then="child:3"),
        refused(OnAskUser(), "then", "nobody is left to go on", then="itself"),
        refused(TreeGrpo(), "then", "none is gone on from", then="best"),
        refused(TreeGrpo(n=2, k=2), "policy.k", "at most 2 leaves"),
        refused(TreeGrpo(m=4, n=2, l=2, k=9), "max_children", "20 chains, of at most 19", max_children=19),
        refused(TreeGrpo(), "checkpoint", "any node", checkpoint="every_n"),
        refused(Unbranched(), "checkpoint", "keeps none, unless"),
        refused(Unbranched(), "then", "there are none", checkpoint="per_turn", then="best"),
        refused(Group(), "every", "they are not counted", every=2),
        refused(Group(), "aggregate", "there is no aggregate", aggregate="median"),
        refused(Group(), "aggregate", "cannot be imported", aggregate="no_such_module_here:f"),
        refused(CustomPolicy(policy="nowhere"), "policy.policy", "no installed package"),
        refused(CustomPolicy(policy=f"{__name__}:Mine"), "children", "of your own", children=TWO),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(config: BranchConfig, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check(config, total_steps=STEPS)
    assert (caught.value.key, bool(caught.value.remedy)) == (f"branch.{key}", True)


class Mine:
    def decide(self, tree: object, node: object, steps_left: int) -> None:
        return None


def test_a_users_policy_decides_everything_itself() -> None:
    check(BranchConfig(policy=CustomPolicy(policy=f"{__name__}:Mine")), total_steps=STEPS)


@pytest.mark.parametrize(
    ("least", "rungs", "is_enough"),
    [
        ("fresh", {"fresh"}, True),
        ("load", {"load", "fresh"}, True),
        ("replay", {"load", "fresh"}, True),
        ("load", {"replay", "fresh"}, False),
        ("replay", {"fresh"}, False),
    ],
)
def test_an_agent_that_cannot_go_on_well_enough_is_refused(least: Rung, rungs: set[Rung], is_enough: bool) -> None:
    config = BranchConfig(policy=Group(), min_session_rung=least)
    if is_enough:
        check(config, total_steps=STEPS, rungs=rungs)
        return
    with pytest.raises(ConfigError, match="cannot go on") as caught:
        check(config, total_steps=STEPS, rungs=rungs)
    assert caught.value.key == "branch.min_session_rung"


def test_a_copy_of_the_agents_process_is_refused_with_the_reason() -> None:
    with pytest.raises(ValidationError, match="no copy can share"):
        BranchConfig.model_validate({"policy": {"kind": "group", "n": 2}, "min_session_rung": "process"})


def test_what_earlier_versions_wrote_of_a_rollout_without_a_session_is_read() -> None:
    assert Connected.model_validate({"session": None, "rung": "process"}).rung is None


@pytest.mark.parametrize(
    ("least", "rungs", "can_ask"),
    [
        ("fresh", {"replay", "load", "fresh"}, True),
        ("replay", {"load", "replay", "fresh"}, True),
        ("fresh", {"load", "fresh"}, False),
        ("load", {"load", "replay", "fresh"}, False),
    ],
)
def test_an_agent_that_cannot_be_brought_back_to_its_question_is_refused(
    least: Rung, rungs: set[Rung], can_ask: bool
) -> None:
    config = BranchConfig(policy=OnAskUser(), min_session_rung=least)
    if can_ask:
        check(config, total_steps=STEPS, rungs=rungs)
        return
    with pytest.raises(ConfigError, match="brought back to its question"):
        check(config, total_steps=STEPS, rungs=rungs)
