"""Users' own code, asked by the activities for it: what it says is handed on, and what it does wrong is named."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from benchflow.activities.deciding import DecidingActivities, run_in_thread
from benchflow.contracts.activities import AggregateInput, DecideInput
from benchflow.contracts.branch import CustomPolicy
from benchflow.contracts.job import AgentSpec
from benchflow.contracts.rollout_records import Node, RolloutTree
from benchflow.errors import BenchFlowError, ConfigError, RewardFuncError

TREE = RolloutTree(
    rollout="r", root="n0", nodes=[Node(id="n0"), Node(id="n1", parent="n0", step=0, rewards={"reward": 0.2})]
)
ACTIVITIES = DecidingActivities()


async def aggregate_of(name: str, *returns: float) -> float:
    asks = AggregateInput(aggregate=f"support.own_branching:{name}", returns=list(returns))
    return (await ActivityEnvironment().run(ACTIVITIES.aggregate, asks)).value


async def roles_at(node: str, *, most: int = 64, **options: Any) -> list[str | None]:
    policy = CustomPolicy(policy="support.own_branching:WherePoor", options=options)
    left = 3 - [each.id for each in TREE.nodes].index(node)
    asks = DecideInput(policy=policy, agent=AgentSpec(name="oracle"), tree=TREE, node=node, steps_left=left, most=most)
    return [child.role for child in (await ActivityEnvironment().run(ACTIVITIES.decide, asks)).children]


async def test_a_policy_is_asked_with_the_tree_that_led_to_the_node() -> None:
    assert await roles_at("n1", below=0.5) == ["brave", "careful"]
    assert await roles_at("n0", below=0.5) == await roles_at("n1", below=0.1) == []


async def test_what_a_policy_does_wrong_is_no_matter_of_another_try() -> None:
    with pytest.raises(ConfigError, match="unexpected keyword argument 'under'") as caught:
        await roles_at("n1", under=0.5)
    assert not caught.value.retryable
    with pytest.raises(ConfigError, match="wants 2 children at the node n1, of at most 1 in the whole tree"):
        await roles_at("n1", below=0.5, most=1)
    with pytest.raises(ConfigError, match="agent 'oracle' uses no seed") as caught:
        await roles_at("n1", below=0.5, seed=7)
    assert caught.value.key == "branch.policy: child 0 of n1.seed"


async def test_an_aggregate_is_asked_with_the_returns() -> None:
    assert await aggregate_of("stdev", 0.0, 1.0) == pytest.approx(0.5**0.5)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("stdev", RewardFuncError, "StatisticsError"),
        ("nothing", RewardFuncError, "no finite number: nan"),
        ("leaves", ConfigError, "SystemExit: 3"),
        ("missing", ConfigError, "has no attribute 'missing'"),
    ],
)
async def test_an_aggregate_that_gives_nothing_is_named(name: str, kind: type[BenchFlowError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        await aggregate_of(name, 0.5)
    assert (caught.value.file, caught.value.key) == (f"support.own_branching:{name}", "branch.aggregate")


async def test_what_never_answers_is_waited_for_no_longer_than_may_be() -> None:
    never = threading.Event()
    try:
        with pytest.raises(ConfigError, match=r"has not answered for 0\.05 s"):
            await run_in_thread(never.wait, "mine:It", "branch.policy.policy", patience=0.05)
    finally:
        never.set()
