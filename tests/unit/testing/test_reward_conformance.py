"""The suite for reward functions, over built-in ones and one of another package; and that it finds what is wrong."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from benchflow.contracts.reward import Evidence, RewardEvent, RewardFunc, RolloutNode
from benchflow.testing.reward_conformance import RewardConformance

WHEN = datetime(2026, 1, 2, tzinfo=UTC)


class TestPoliteness(RewardConformance):
    reward_path = "support.own_rewards:Politeness"


class TestKnownTools(RewardConformance):
    reward_path = "known-tools"
    options = {"tools": ["ls"]}


class TestStringMatch(RewardConformance):
    reward_path = "string-match"
    options = {"expected": "There are 3 files, thank you."}


# --- what it finds ---------------------------------------------------------------------------------------


class Broken:
    """A function that does one thing wrong."""

    def __init__(self, value: Callable[[RolloutNode], float]) -> None:
        self._value = value

    async def score(self, node: RolloutNode) -> RewardEvent:
        return RewardEvent(value=self._value(node), source="broken", ts=WHEN)


def changed(node: RolloutNode) -> float:
    for event in node.events:
        event["seen"] = True
    return 1.0


BROKEN: dict[str, tuple[str, Callable[[RolloutNode], float]]] = {
    "no events": (
        "test_every_node_has_a_value_or_a_reason_that_it_has_none",
        lambda node: float(len(node.events[0]) > 0),
    ),
    "chance": (
        "test_the_same_node_is_worth_the_same_again_and_to_another_object",
        lambda node: random.SystemRandom().random(),
    ),
    "changes": ("test_scoring_changes_no_node", changed),
    "out of range": ("test_some_node_has_a_value", lambda node: 7.0),
}


@pytest.mark.parametrize(("test", "value"), BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_fails_the_test_that_is_about_it(test: str, value: Callable[[RolloutNode], float]) -> None:
    class Suite(RewardConformance):
        reward_path = "support.own_rewards:Politeness"

    suite, function = Suite(), Broken(value)
    assert isinstance(function, RewardFunc)
    nodes = RewardConformance.nodes.__wrapped__(suite, Evidence(instruction="Go."))  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        asyncio.run(getattr(suite, test)(function, nodes))
