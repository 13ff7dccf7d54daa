"""Reward files of the published contracts: structured keys, several keys without a scalar, and the lenient reading."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.reward import AggregatePolicy, RewardFuncSpec, RewardTable, RolloutNode, VerifyResult
from benchflow.contracts.rewards import combine_steps, reaches
from benchflow.contracts.rollout_records import Step, StepOutcome, TurnResult
from benchflow.contracts.verifier import VerifierConfig
from benchflow.errors import RewardFileError, RewardScalarError
from benchflow.planes.reward import parse_rewards
from benchflow.planes.reward.aggregate import require_scalar
from benchflow.planes.reward.score import score
from benchflow.planes.reward.verifier_end import read_result

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TWO = {"correctness": 0.5, "style": 1}


def read(directory: Path, content: object, *, text: str | None = None, **options: Any) -> VerifyResult:
    (directory / "reward.json").write_text(json.dumps(content))
    if text is not None:
        (directory / "reward.txt").write_text(text)
    return parse_rewards(directory, **{"exit_code": 0, "now": NOW, "is_split": True, **options})


def keyed(**keys: float) -> VerifyResult:
    return VerifyResult(reward=None, items=keys)


# --- structured keys ------------------------------------------------------------------------------------


STRUCTURED = {
    "details": [{"test": "a", "passed": True}],
    "details_path": "/logs/verifier/details.json",
    "rubric": {"clear": "yes"},
    "reason": "because",
    "reasons": ["one", "two"],
    "evidence": {"file": "a.txt"},
    "artifacts": ["a.txt"],
    "errors": [],
    "aggregate": {"method": "mean"},
    "regressions": 3,
    "participants": {"a": "b"},
    "winner": "a",
    "raw": None,
    "debug": True,
}


@pytest.mark.parametrize("name", STRUCTURED)
@pytest.mark.parametrize("is_split", [True, False])
def test_a_structured_key_is_metadata_and_no_metric(tmp_path: Path, name: str, is_split: bool) -> None:
    result = read(tmp_path, {"reward": 0.5, name: STRUCTURED[name], "speed": 2}, is_split=is_split)
    assert result.rewards == {"reward": 0.5, "speed": 2.0}
    assert result.metadata == {name: STRUCTURED[name]}


def test_items_as_a_list_are_metadata_and_as_an_object_metrics(tmp_path: Path) -> None:
    listed = read(tmp_path, {"reward": 1, "items": [{"id": "a", "score": 1}], "metadata": {"note": "x"}})
    assert listed.rewards == {"reward": 1.0}
    assert listed.metadata == {"note": "x", "items": [{"id": "a", "score": 1}]}
    assert read(tmp_path, {"reward": 1, "items": {"a": 1}}).rewards == {"reward": 1.0, "a": 1.0}


def test_a_structured_key_that_metadata_says_otherwise_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RewardFileError, match="contradicts"):
        read(tmp_path, {"reward": 1, "reason": "x", "metadata": {"reason": "y"}})


# --- several keys ---------------------------------------------------------------------------------------


def test_several_keys_without_a_reward_are_kept_per_key_and_are_no_scalar(tmp_path: Path) -> None:
    result = read(tmp_path, TWO | {"details": "x"})
    assert (result.reward, result.error, result.is_keyed, result.is_scored) == (None, None, True, True)
    assert result.rewards == {"correctness": 0.5, "style": 1.0}
    assert [(e.value, e.tag, e.source, e.granularity) for e in result.events] == [
        (0.5, "correctness", "reward.json", "terminal"),
        (1.0, "style", "reward.json", "terminal"),
    ]


def test_a_key_of_several_may_be_any_finite_number(tmp_path: Path) -> None:
    assert read(tmp_path, {"passed": 12, "lost": -3}).rewards == {"passed": 12.0, "lost": -3.0}


def test_an_only_key_is_the_scalar(tmp_path: Path) -> None:
    result = read(tmp_path, {"accuracy": 0.75, "details": []})
    assert result.rewards == {"reward": 0.75, "accuracy": 0.75}
    assert not result.is_keyed
    [event] = result.events
    assert (event.value, event.tag) == (0.75, "accuracy")


def test_metrics_do_not_make_a_key_one_of_several(tmp_path: Path) -> None:
    assert read(tmp_path, {"accuracy": 0.75, "metrics": {"n": 4}}).rewards == {
        "reward": 0.75,
        "accuracy": 0.75,
        "n": 4.0,
    }


def test_a_named_key_is_the_scalar_in_either_layout(tmp_path: Path) -> None:
    for is_split in (True, False):
        result = read(tmp_path, TWO, reward_key="correctness", is_split=is_split)
        assert result.rewards == {"reward": 0.5, "correctness": 0.5, "style": 1.0}


def test_a_reward_that_is_there_is_the_scalar_whatever_key_is_named(tmp_path: Path) -> None:
    assert read(tmp_path, {"reward": 0.25, "style": 1}, reward_key="style").reward == 0.25


def test_a_named_key_that_is_not_there_is_an_error_that_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(RewardFileError, match="correctness, style") as caught:
        read(tmp_path, TWO, reward_key="speed")
    assert caught.value.key == "speed" and "reward_key" in str(caught.value.remedy)


@pytest.mark.parametrize("options", [{}, {"reward_key": "points"}])
def test_a_key_that_is_the_scalar_has_to_be_in_range(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(RewardFileError, match=r"outside the reward range") as caught:
        read(tmp_path, {"points": 7}, **options)
    assert caught.value.key == "points"


def test_an_aggregate_policy_makes_the_scalar_of_several_keys(tmp_path: Path) -> None:
    result = read(tmp_path, TWO, aggregate=AggregatePolicy(method="mean"))
    assert result.rewards == {"reward": 0.75, "correctness": 0.5, "style": 1.0}


def test_the_number_in_reward_txt_is_no_scalar_of_several_keys(tmp_path: Path) -> None:
    # reward.json counts where it exists, as in published runs of the same task.
    result = read(tmp_path, TWO, text="0.75")
    assert result.rewards == {"correctness": 0.5, "style": 1.0} and result.is_keyed
    with pytest.raises(RewardFileError, match=r"says 0\.5 while reward\.txt says 0\.75"):
        read(tmp_path, TWO, text="0.75", reward_key="correctness")


def test_in_the_native_layout_several_keys_are_an_error_that_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(RewardFileError, match="there is no reward") as caught:
        read(tmp_path, TWO, is_split=False)
    assert "reward_key" in str(caught.value.remedy) and "aggregate_policy" in str(caught.value.remedy)


@pytest.mark.parametrize(
    "content", [{}, {"details": "x"}, {"metrics": {"a": 1}}, {"a": "1", "b": 2}, {"a": True, "b": 2}]
)
def test_what_is_no_dict_of_numbers_is_an_error_still(tmp_path: Path, content: object) -> None:
    with pytest.raises(RewardFileError):
        read(tmp_path, content)


def test_a_verifiers_table_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "reward.json").write_text(json.dumps(TWO))
    config = VerifierConfig(reward_key="style")
    result = read_result(tmp_path, config=config, document=None, rubrics={}, exit_code=0)
    assert result.reward == 1.0


# --- lenient --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "rewards"),
    [
        ({"score": 0.5}, {"reward": 0.5}),
        ({"rewards": 0.5}, {"reward": 0.5}),
        ({"rewards": {"reward": 0.5, "style": 1}}, {"reward": 0.5, "style": 1.0}),
        ({"rewards": {"a": 0.5, "b": 1}}, {"a": 0.5, "b": 1.0}),
        ({"reward": 0.5, "score": 7}, {"reward": 0.5, "score": 7.0}),
    ],
)
def test_the_lenient_reading_knows_other_names_of_the_reward(
    tmp_path: Path, content: object, rewards: dict[str, float]
) -> None:
    assert read(tmp_path, content, is_lenient=True).rewards == rewards


def test_the_lenient_reading_drops_metrics_that_are_no_numbers_with_a_warning(tmp_path: Path) -> None:
    content = {"reward": 1, "label": "good", "passed": True, "metrics": {"n": 3, "why": None}}
    with pytest.raises(RewardFileError) as caught:
        read(tmp_path, content)
    assert "BENCHFLOW_REWARD_LENIENT" in str(caught.value.remedy)
    result = read(tmp_path, content, is_lenient=True)
    assert result.rewards == {"reward": 1.0, "n": 3.0}
    assert [name for name in ("label", "passed", "metrics.why") if name in result.warnings[0]] == [
        "label",
        "passed",
        "metrics.why",
    ]


@pytest.mark.parametrize(
    "content",
    [
        {"reward": "1"},
        {"reward": True},
        {"score": "1"},
        {"rewards": [1]},
        {"reward": 1, "rewards": {"reward": 0}},
    ],
)
def test_the_lenient_reading_takes_no_reward_that_is_no_number(tmp_path: Path, content: object) -> None:
    with pytest.raises(RewardFileError):
        read(tmp_path, content, is_lenient=True)


# --- what needs a scalar --------------------------------------------------------------------------------


def test_what_needs_a_scalar_refuses_several_keys_and_says_what_to_do() -> None:
    require_scalar(VerifyResult(reward=0.5), "a job that branches")
    with pytest.raises(RewardScalarError, match="correctness, style") as caught:
        require_scalar(keyed(correctness=0.5, style=1.0), "a job that branches")
    assert "reward_key" in str(caught.value.remedy) and "aggregate" in str(caught.value.remedy)
    assert caught.value.category.startswith("reward") and not caught.value.retryable


# --- the task's reward table ----------------------------------------------------------------------------


async def scored(verified: VerifyResult, table: RewardTable) -> VerifyResult:
    async def output() -> VerifyResult:
        return verified

    return await score(RolloutNode(id="n1"), output, table, now=NOW)


async def test_the_aggregate_of_the_reward_table_makes_the_scalar() -> None:
    weighted = RewardTable(aggregate=AggregatePolicy(weights={"correctness": 3.0, "style": 1.0}))
    assert (await scored(keyed(correctness=0.5, style=1.0), weighted)).reward == 0.625
    alike = RewardTable(aggregate=AggregatePolicy(method="mean"))
    assert (await scored(keyed(correctness=0.5, style=1.0), alike)).reward == 0.75


async def test_functions_stand_beside_several_keys_and_nothing_is_an_error_of_theirs() -> None:
    table = RewardTable(funcs=[RewardFuncSpec(type="forbidden-tools", name="tidy", options={"tools": ["rm"]})])
    result = await scored(keyed(correctness=0.5, style=1.0), table)
    assert (result.reward, result.error, result.errors, result.is_scored) == (None, None, {}, True)
    assert result.items["action"] == 1.0 and "output" not in result.items


async def test_an_aggregate_that_weighs_the_output_of_several_keys_says_why_there_is_none() -> None:
    table = RewardTable(aggregate=AggregatePolicy(weights={"output": 1.0}))
    result = await scored(keyed(correctness=0.5, style=1.0), table)
    assert result.reward is None and not result.is_scored
    assert "correctness, style" in str(result.error)


# --- steps ----------------------------------------------------------------------------------------------


def outcome(index: int, verify: VerifyResult) -> StepOutcome:
    step = Step(index=index, agent="oracle")
    return StepOutcome(step=step, turn=TurnResult(stop_reason="end_turn"), verify=verify)


def test_steps_of_several_keys_are_combined_per_key() -> None:
    steps = [outcome(0, keyed(a=1.0, b=0.0)), outcome(1, keyed(a=0.5, c=1.0))]
    assert combine_steps(steps, "mean", None) == ({"a": 0.75, "b": 0.0, "c": 0.5}, None)
    assert combine_steps(steps, "final", None) == ({"a": 0.5, "c": 1.0}, None)


def test_a_key_that_a_step_did_not_report_counts_as_0_there_also_the_scalar(tmp_path: Path) -> None:
    steps = [outcome(0, VerifyResult(reward=1.0)), outcome(1, keyed(a=1.0, b=0.5))]
    assert combine_steps(steps, "mean", None) == ({"reward": 0.5, "a": 0.5, "b": 0.25}, None)
    only = read(tmp_path, {"accuracy": 0.5})
    assert combine_steps([outcome(0, VerifyResult(reward=1.0)), outcome(1, only)], "mean", None) == (
        {"reward": 0.5, "accuracy": 0.25},
        None,
    )


def test_an_only_key_is_the_scalar_of_a_rollout_whose_steps_all_have_it(tmp_path: Path) -> None:
    accuracy = [outcome(index, read(tmp_path, {"accuracy": value})) for index, value in enumerate((1.0, 0.5))]
    assert combine_steps(accuracy, "mean", None) == ({"reward": 0.75, "accuracy": 0.75}, None)
    speed = outcome(1, read(tmp_path, {"speed": 0.5}))
    assert combine_steps([accuracy[0], speed], "mean", None) == ({"accuracy": 0.5, "speed": 0.25}, None)
    assert combine_steps([accuracy[0], speed], "final", None) == ({"reward": 0.5, "speed": 0.5}, None)


def test_a_key_that_a_failed_function_did_not_measure_has_no_mean() -> None:
    failed = VerifyResult(reward=1.0, errors={"style": "it broke"})
    steps = [outcome(0, VerifyResult(reward=0.5, items={"style": 1.0})), outcome(1, failed)]
    assert combine_steps(steps, "mean", None) == ({"reward": 0.75}, None)


async def test_an_aggregate_makes_a_scalar_of_its_own_of_an_only_key(tmp_path: Path) -> None:
    table = RewardTable(aggregate=AggregatePolicy(weights={"accuracy": 1.0}))
    made = await scored(read(tmp_path, {"accuracy": 0.5}), table)
    assert made.reported["reward"] == 0.5
    assert combine_steps([outcome(0, made), outcome(1, VerifyResult(reward=1.0))], "mean", None)[0] == {
        "reward": 0.75,
        "accuracy": 0.25,
        "output": 0.25,
    }


def test_a_threshold_of_one_number_is_for_a_scalar_and_no_only_key(tmp_path: Path) -> None:
    only = read(tmp_path, {"accuracy": 0.5})
    assert not reaches(only, 0.25) and reaches(only, {"accuracy": 0.5})
    require_scalar(only, "a job that branches")
    with pytest.raises(RewardScalarError, match="reported accuracy"):
        require_scalar(only, "min_reward", of_only_key=False)
    named = read(tmp_path, {"accuracy": 0.5}, reward_key="accuracy")
    assert reaches(named, 0.25)
    require_scalar(named, "min_reward", of_only_key=False)


def test_a_step_has_to_reach_each_key_that_is_asked_for() -> None:
    assert reaches(keyed(a=0.5, b=1.0), {"a": 0.5, "b": 0.9})
    assert not reaches(keyed(a=0.4, b=1.0), {"a": 0.5})
    # What nobody measured is no 0, which would be enough here.
    assert not reaches(keyed(a=0.4, b=1.0), {"c": 0.0})
    assert not reaches(keyed(a=1.0, b=1.0), 0.0)
