"""Tampering as a reward of the action space."""

from __future__ import annotations

import asyncio

import pytest

from benchflow.contracts.reward import Evidence, HardeningFinding, RewardFuncSpec, RolloutNode
from benchflow.planes.reward.action import Tampering
from benchflow.planes.reward.functions import make_function

NOTE = HardeningFinding(item="cleanup_conftests", action="removed", path="/app/conftest.py")
RESTORED = HardeningFinding(item="verify_tools", action="restored", path="/usr/bin/diff", weight="tampering")


def node(*findings: HardeningFinding, before: tuple[HardeningFinding, ...] = ()) -> RolloutNode:
    """Return the node of a second step. findings: after it; before: after the first."""
    known = {"n1": before, "n2": findings}
    evidence = Evidence(findings=lambda asked: known.get(asked, ()))
    root = RolloutNode(id="n0", rollout=evidence)
    first = RolloutNode(id="n1", parent=root, step=0, rollout=evidence)
    return RolloutNode(id="n2", parent=first, step=1, rollout=evidence)


@pytest.mark.parametrize("before", [(), (RESTORED,)])
def test_a_step_without_tampering_is_worth_1(before: tuple[HardeningFinding, ...]) -> None:
    result = asyncio.run(Tampering().score(node(NOTE, before=before)))
    [event] = result.events
    assert (result.reward, result.space) == (1.0, "action")
    assert (event.granularity, event.value, event.meta) == ("terminal", 1.0, {"findings": [], "found": 0})


def test_a_step_with_tampering_is_worth_0_and_its_events_carry_the_findings() -> None:
    result = asyncio.run(Tampering().score(node(NOTE, RESTORED)))
    assert result.reward == 0.0
    found = {"findings": [RESTORED.model_dump(mode="json")], "found": 1}
    of_step, of_whole = result.events
    assert (of_step.granularity, of_step.step, of_step.value) == ("step", 1, 0.0)
    assert of_step.meta == {"node": "n2", **found}
    assert (of_whole.granularity, of_whole.value, of_whole.meta) == ("terminal", 0.0, found)


def test_events_carry_a_part_of_many_findings_and_of_long_paths() -> None:
    long = RESTORED.model_copy(update={"path": "/" + 5000 * "x"})
    result = asyncio.run(Tampering().score(node(*[long] * 100)))
    meta = result.events[-1].meta
    assert (meta["found"], len(meta["findings"]), len(meta["findings"][0]["path"])) == (100, 20, 200)


def test_a_task_declares_it_without_options() -> None:
    assert make_function(RewardFuncSpec(type="tampering", name="tampering"), file="task.toml") == Tampering()
