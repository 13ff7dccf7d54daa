"""An agent's updates as lines of a trajectory."""

from __future__ import annotations

from typing import Any

import pytest

from benchflow.contracts.rollout_records import Usage
from benchflow.planes.agent.acp.events import Reading


@pytest.mark.parametrize("update", [None, "text", {}, {"sessionUpdate": ["a"]}, {"sessionUpdate": "tool_call"}])
def test_an_update_that_makes_no_sense_is_kept_as_it_came(update: Any) -> None:
    assert Reading().read_update(update) == [{"type": "update", "update": update}]


def test_usage_that_makes_no_sense_counts_as_nothing() -> None:
    reading = Reading()
    reading.read_result({"usage": {"inputTokens": float("inf"), "outputTokens": "many", "cachedReadTokens": -1}})
    assert reading.usage == Usage()
