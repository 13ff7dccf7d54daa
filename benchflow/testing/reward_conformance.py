"""Conformance tests for reward functions.

    # test_my_reward.py
    from benchflow.testing.reward_conformance import RewardConformance

    class TestMyReward(RewardConformance):
        reward_path = "my_package.rewards:Politeness"
        options = {"language": "de"}

Run it with `pytest -o asyncio_mode=auto test_my_reward.py`; pytest and pytest-asyncio must be installed. The nodes are
those of a rollout of two turns with a tool call, of one in which the agent sends nothing, and of the state before any
turn. Override the fixture `nodes` to give others, such as those of stored results (`benchflow.load_tree`). A function
that needs a judge or an environment gets them by overriding the fixture `evidence`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, get_args

import pytest

from benchflow.contracts.reward import Evidence, RewardFunc, RewardFuncSpec, RolloutNode, Space
from benchflow.planes.reward.functions import make_function
from benchflow.planes.reward.score import UNIT, Scored, run_function

FILE = "the suite"
"""Name of the task file, for errors of the function's options."""

NAME = "under-test"
"""Name of the function in its spec."""

Line = dict[str, Any]
"""A line of the trajectory."""


def turn(number: int, prompt: str, *lines: Line) -> tuple[Line, ...]:
    """Return trajectory lines of a turn: the user message `prompt`, then `lines`, numbered from `number` * 100."""
    said = [{"type": "user_message", "text": prompt}, *lines]
    return tuple({"seq": number * 100 + at, "role": "agent"} | line for at, line in enumerate(said))


CALL: tuple[Line, ...] = (
    {"type": "tool_call", "tool_call_id": "c1", "kind": "execute", "title": "ls", "raw_input": {"command": ["ls"]}},
    {"type": "tool_call_update", "tool_call_id": "c1", "status": "completed", "raw_output": {"return_code": 0}},
)
"""Trajectory lines of a tool call."""


class RewardConformance:
    """The whole suite. Subclass it under a name that pytest collects, and set `reward_path`."""

    reward_path: ClassVar[str]
    """`module:Class`, the name of an entry point, or of a built-in function."""

    options: ClassVar[dict[str, Any]] = {}
    """Options of the function: its own keys in a row of a task's `reward.funcs`."""

    reward_range: ClassVar[tuple[float, float]] = UNIT
    """Lowest and highest value that it may return."""

    @pytest.fixture
    def function(self) -> RewardFunc:
        """Return the function, created as from a row of a task's `reward.funcs`."""
        spec = RewardFuncSpec(type=self.reward_path, name=NAME, options=self.options)
        return make_function(spec, file=FILE, allowed=(self.reward_path.partition(":")[0],))

    @pytest.fixture
    def evidence(self) -> Evidence:
        """Return the evidence of the rollout, with which the nodes are made. Override it to add a judge."""
        return Evidence(task="a-task", instruction="List the files, and say how many there are.", workspace="/app")

    @pytest.fixture
    def nodes(self, evidence: Evidence) -> Sequence[RolloutNode]:
        """Return the nodes that the function scores. Override it to score others."""
        root = RolloutNode(id="n0", rollout=evidence)
        look = turn(1, evidence.instruction, {"type": "agent_thought", "text": "I look."}, *CALL)
        first = RolloutNode(id="n1", parent=root, step=0, role="agent", events=look, rollout=evidence)
        answer = turn(2, "Please say it.", {"type": "agent_message", "text": "There are 3 files, thank you."})
        second = RolloutNode(id="n2", parent=first, step=1, role="agent", events=answer, rollout=evidence)
        silent = RolloutNode(id="n3", parent=root, step=0, role="agent", events=turn(1, "Go."), rollout=evidence)
        root.children.extend([first, silent])
        first.children.append(second)
        return [second, first, silent, root]

    def test_it_says_which_space_it_scores(self, function: RewardFunc) -> None:
        assert getattr(function, "space", "output") in get_args(Space)

    async def test_every_node_has_a_value_or_a_reason_that_it_has_none(
        self, function: RewardFunc, nodes: Sequence[RolloutNode]
    ) -> None:
        for node in nodes:
            scored = await self._scored(function, node)
            low, high = self.reward_range
            assert scored.value is None or low <= scored.value <= high, f"{node.id}: {scored.value}"
            assert scored.value is not None or _is_told(scored.error), f"{node.id}: {scored.error}"

    async def test_some_node_has_a_value(self, function: RewardFunc, nodes: Sequence[RolloutNode]) -> None:
        scored = [await self._scored(function, node) for node in nodes]
        assert any(one.value is not None for one in scored), [one.error for one in scored]

    async def test_events_are_of_its_space_and_of_steps_that_there_are(
        self, function: RewardFunc, nodes: Sequence[RolloutNode]
    ) -> None:
        for node in nodes:
            scored = await self._scored(function, node)
            if scored.result is None:
                continue
            assert scored.result.space == getattr(function, "space", scored.result.space)
            steps = {one.step for one in node.path}
            assert all(event.step is None or event.step in steps for event in scored.result.events), node.id

    async def test_the_same_node_is_worth_the_same_again_and_to_another_object(
        self, function: RewardFunc, nodes: Sequence[RolloutNode]
    ) -> None:
        spec = RewardFuncSpec(type=self.reward_path, name=NAME, options=self.options)
        other = make_function(spec, file=FILE, allowed=(self.reward_path.partition(":")[0],))
        for node in nodes:
            first, again = await self._scored(function, node), await self._scored(function, node)
            elsewhere = await self._scored(other, node)
            assert (first.value, first.error) == (again.value, again.error) == (elsewhere.value, elsewhere.error)

    async def test_scoring_changes_no_node(self, function: RewardFunc, nodes: Sequence[RolloutNode]) -> None:
        before = copy.deepcopy([node.events for node in nodes])
        for node in nodes:
            await self._scored(function, node)
        assert [node.events for node in nodes] == before

    async def _scored(self, function: RewardFunc, node: RolloutNode) -> Scored:
        """Return the score of a node."""
        return await run_function(function, NAME, node, reward_range=self.reward_range)


def _is_told(error: str) -> bool:
    """Return whether an error message was raised on purpose, and is not that of a bug such as a `KeyError`."""
    kinds = (
        "AttributeError",
        "IndexError",
        "KeyError",
        "NameError",
        "TypeError",
        "UnboundLocalError",
        "ZeroDivisionError",
    )
    return bool(error) and not error.startswith(kinds)
