"""`Rubric`: reward functions with weights, as the Python API has them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from fractions import Fraction
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from support.own_rewards import BARRIERS, NOW, Meets, Politeness, Says, Scoreless
from support.stored_rollouts import said, store_rollout

import benchflow as bf
from benchflow import (
    CodeExecRewardFunc,
    LLMJudgeRewardFunc,
    RewardEvent,
    RewardFunc,
    RolloutNode,
    Rubric,
    StringMatchRewardFunc,
    TestRewardFunc,
    VerifyResult,
)
from benchflow.errors import BenchFlowError, ConfigError, ResultFileError, TaskError

NODE = RolloutNode(id="n1", events=(said("hello world"),), parent=RolloutNode(id="n0"))


# --- what it is made of ---------------------------------------------------------------------------------


def test_weights_are_normalised_and_alike_where_there_are_none() -> None:
    functions = [Says(1.0), Says(0.0)]
    assert Rubric(functions, [3, 1]).weights == (0.75, 0.25)
    assert Rubric(functions).weights == (0.5, 0.5)
    assert Rubric(functions, [1e308, 1e308]).weights == (0.5, 0.5)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"reward_funcs": []}, "reward_funcs"),
    ({"reward_funcs": [Says(1.0), Scoreless()]}, "reward_funcs[1]"),
    ({"reward_funcs": [Politeness]}, "reward_funcs[0]"),
    ({"reward_funcs": [Says(1.0)], "weights": [1, 2]}, "weights"),
    ({"reward_funcs": [Says(1.0)], "weights": []}, "weights"),
    ({"reward_funcs": [Says(1.0), Says(1.0)], "weights": [1, -1]}, "weights[1]"),
    ({"reward_funcs": [Says(1.0), Says(1.0)], "weights": [0, 0.0]}, "weights"),
    ({"reward_funcs": [Says(1.0)], "weights": [nan]}, "weights[0]"),
    ({"reward_funcs": [Says(1.0)], "weights": [inf]}, "weights[0]"),
    ({"reward_funcs": [Says(1.0)], "weights": [True]}, "weights[0]"),
    ({"reward_funcs": [Says(1.0)], "weights": ["1"]}, "weights[0]"),
    ({"reward_funcs": [Says(1.0), Says(1.0)], "names": ["a"]}, "names"),
    ({"reward_funcs": [Says(1.0), Says(1.0)], "names": ["a", "a"]}, "names"),
    ({"reward_funcs": [Says(1.0)], "names": [""]}, "names"),
]


@pytest.mark.parametrize(("arguments", "key"), WRONG, ids=[f"{number}-{key}" for number, (_, key) in enumerate(WRONG)])
def test_what_does_not_fit_is_named(arguments: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Rubric(**arguments)
    assert caught.value.key == key


def test_functions_are_called_by_their_names_and_each_by_one_of_its_own() -> None:
    functions = [StringMatchRewardFunc("a"), StringMatchRewardFunc("b"), TestRewardFunc(), Politeness()]
    assert Rubric(functions).names == (
        "StringMatchRewardFunc",
        "StringMatchRewardFunc-2",
        "TestRewardFunc",
        "Politeness",
    )
    assert Rubric(functions, names=["a", "b", "c", "d"]).names == ("a", "b", "c", "d")


def test_a_rubric_tells_all_that_it_says() -> None:
    assert repr(Rubric([Says(1.0), Says(0.5)], [1, 3])) == (
        "Rubric(Says=0.25*Says(what=1.0, space='output'), Says-2=0.75*Says(what=0.5, space='output'))"
    )


# --- scoring a node -------------------------------------------------------------------------------------


async def test_the_reward_is_the_weighted_mean_of_what_the_functions_say() -> None:
    rubric = Rubric([StringMatchRewardFunc(expected="hello world"), Politeness()], weights=[0.7, 0.3])
    result: VerifyResult = await rubric.score(NODE)
    assert result.reward == pytest.approx(0.7)
    assert result.items == {"StringMatchRewardFunc": 1.0, "Politeness": 0.0}
    assert [(event.source, event.space, event.value) for event in result.events] == [
        ("StringMatchRewardFunc", "output", 1.0),
        ("Politeness", "action", 0.0),
    ]
    assert (result.errors, result.error) == ({}, None)


async def test_functions_run_beside_each_other() -> None:
    BARRIERS["here"] = asyncio.Barrier(3)
    rubric = Rubric([Meets("here"), Meets("here"), Meets("here")])
    assert (await asyncio.wait_for(rubric.score(NODE), 60)).reward == 1.0


async def test_a_function_that_raises_is_an_error_and_never_a_zero() -> None:
    result = await Rubric([Says(1.0), Says(RuntimeError("broken"))], names=["good", "bad"]).score(NODE)
    assert (result.reward, result.items, result.errors) == (None, {"good": 1.0}, {"bad": "RuntimeError: broken"})
    assert result.error == "bad: RuntimeError: broken"
    assert "reward" not in result.rewards


async def test_a_function_without_weight_may_fail() -> None:
    result = await Rubric([Says(0.5), Says(RuntimeError("broken"))], [1, 0], names=["good", "bad"]).score(NODE)
    assert (result.reward, result.error, list(result.errors)) == (0.5, None, ["bad"])


async def test_what_a_function_reports_besides_is_told_under_its_name() -> None:
    more = VerifyResult(
        reward=0.5, items={"recall": 1.0}, warnings=["odd"], errors={"a": "b"}, metadata={"n": 1}, space="memory"
    )
    result = await Rubric([Says(more, "memory")], names=["skills"]).score(NODE)
    assert result.items == {"skills": 0.5, "skills.recall": 1.0}
    assert (result.warnings, result.metadata, result.space) == (["skills: odd"], {"skills": {"n": 1}}, "memory")
    assert result.errors == {"skills.a": "b"}


async def test_a_users_own_function_needs_no_more_than_score() -> None:
    class Length:
        async def score(self, node: RolloutNode) -> RewardEvent:
            return RewardEvent(value=len(node.answer) / 11, source="length", ts=NOW)

    assert isinstance(Length(), RewardFunc)
    assert (await Rubric([Length()]).score(NODE)).rewards == {"reward": 1.0, "Length": 1.0}


@pytest.mark.parametrize("arguments", [{}, {"node": NODE, "rollout_dir": Path()}])
async def test_exactly_one_thing_is_scored(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not both"):
        await Rubric([Says(1.0)]).score(**arguments)


# --- scoring a stored rollout ---------------------------------------------------------------------------


async def test_a_directory_that_is_no_rollouts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ResultFileError, match="no rollout's directory"):
        await Rubric([Says(1.0)]).score(rollout_dir=tmp_path)


async def test_a_rollout_that_ended_within_a_step_is_not_scored(tmp_path: Path) -> None:
    directory = store_rollout(tmp_path / "small__1", [[said("a")], [said("b")]], names=["draft"])
    with pytest.raises(BenchFlowError, match="ended within a step"):
        await Rubric([Says(1.0)]).score(rollout_dir=directory)


# --- files of rubrics -----------------------------------------------------------------------------------


def test_a_judges_rubric_may_be_the_path_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "style.toml"
    file.write_text("[[criterion]]\nid = 'clear'\ndescription = 'It is clear.'\n")
    from_file = LLMJudgeRewardFunc(file, model="openai/judge")
    assert from_file.rubric == LLMJudgeRewardFunc([{"id": "clear", "description": "It is clear."}]).rubric
    assert LLMJudgeRewardFunc(str(file)).rubric == from_file.rubric
    file.write_text("[[criterion]]\nid = 'clear'\n")
    with pytest.raises(TaskError) as caught:
        LLMJudgeRewardFunc(file)
    assert caught.value.file == str(file)


def test_the_names_are_public() -> None:
    for name in ("Rubric", "RewardFunc", "TestRewardFunc", "StringMatchRewardFunc", "LLMJudgeRewardFunc"):
        assert name in bf.__all__
    assert bf.CodeExecRewardFunc is CodeExecRewardFunc


# --- two thousand rubrics --------------------------------------------------------------------------------


def by_hand(values: Sequence[Any], weights: Sequence[float]) -> float | None:
    """The mean of what counts, None if one of them is no number in [0, 1]."""
    counted = [(Fraction(weight), value) for weight, value in zip(weights, values, strict=True) if weight > 0]
    if not all(isinstance(value, float) and 0 <= value <= 1 for _, value in counted):
        return None
    return float(sum(w * Fraction(value) for w, value in counted) / sum(w for w, _ in counted))


async def test_two_thousand_rubrics_give_the_mean_or_an_error() -> None:
    dice = random.Random(4)
    values = [0.0, 1.0, 0.5, 0.1, 1 / 3, 1e-300]
    odd = [nan, inf, 1.5, -0.5, None, "1", RuntimeError("broken")]
    measured = missing = refused = 0
    for _ in range(2_000):
        count = dice.randrange(1, 6)
        said = [dice.choice(odd if dice.random() < 0.1 else values) for _ in range(count)]
        weights = [
            dice.choice([0.0, 0.0, 1.0, 0.3, 5.0, 1e-9, 1e200, -1.0 if dice.random() < 0.1 else 2.0]) for _ in said
        ]
        if not any(weights) or min(weights) < 0:
            with pytest.raises(ConfigError):
                Rubric([Says(what) for what in said], weights)
            refused += 1
            continue
        rubric = Rubric([Says(what) for what in said], weights)
        result = await rubric.score(NODE)
        expected = by_hand(said, rubric.weights)
        assert result.reward == expected, (said, weights)
        assert (result.error is None) == (expected is not None)
        assert len(result.items) + len(result.errors) == count
        measured, missing = measured + (expected is not None), missing + (expected is None)
    assert min(measured, missing, refused) > 100
