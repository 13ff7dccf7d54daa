"""What a judge answered, read as verdicts: nothing but a number on its scale is one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchflow.contracts.reward import JudgeScale
from benchflow.planes.reward.judge.verdicts import NotAVerdictError, format_task, make_tool_schema, read_verdicts

A = JudgeScale(id="a", description="Is it so?")
B = JudgeScale(id="b", description="How good?", low=1, high=5, is_whole=True)


def scores(text: str, *scales: JudgeScale) -> dict[str, float]:
    return {name: verdict.score for name, verdict in read_verdicts([], text, scales).items()}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"score": 1, "reasoning": "r"}', 1),
        ('{"score": 0.25}', 0.25),
        ('{"score": "1"}', 1),
        ('{"score": true}', 1),
        ('{"verdict": "FAIL"}', 0),
        ('{"verdicts": [{"id": "a", "score": 1}]}', 1),
        ('{"verdicts": [{"score": 1}]}', 1),
        ('{"a": {"score": 1}}', 1),
        ('Well. {"score": 1} So it is.', 1),
        ('```\n{"score": 1}\n```', 1),
    ],
)
def test_one_verdict_may_be_said_in_several_ways(text: str, score: float) -> None:
    assert scores(text, A) == {"a": score}


@pytest.mark.parametrize(
    "text",
    [
        '{"verdicts": [{"id": "a", "score": 1, "reasoning": "x"}, {"id": "b", "score": 5, "reasoning": "y"}]}',
        '{"a": {"score": 1}, "b": {"score": 5.0}}',
        '{"verdicts": {"a": {"score": 1}, "b": {"score": 5}}}',
    ],
)
def test_several_verdicts_may_be_said_in_several_ways(text: str) -> None:
    assert scores(text, A, B) == {"a": 1, "b": 5}


def test_verdicts_of_several_calls_are_put_together() -> None:
    calls: list[tuple[str, Any]] = [
        ("verdict", '{"verdicts": [{"id": "b", "score": 2, "reasoning": "x"}]}'),
        ("verdict", {"id": "a", "score": 1, "reasoning": "y"}),
        ("another_tool", {"id": "a", "score": 0}),
    ]
    assert {name: one.score for name, one in read_verdicts(calls, "", [A, B]).items()} == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON object"),
        ("It is fine.", "no JSON object"),
        ("[1]", "no JSON object"),
        ('{"score": 1', "no JSON object"),
        ('{"score": 1} {"score": 0}', "not valid JSON"),
        ('```\n{"score": 1}\n```\n```\n{"score": 0}\n```', "more than one block"),
        ('{"score": NaN}', "not a number"),
        ('{"score": 1e999}', "must be a number"),
        ('{"score": null}', "no score for 'a'"),
        ('{"score": 2}', "must be a number from 0 to 1"),
        ('{"score": -0.1}', "must be"),
        ('{"score": "4/5"}', "must be"),
        ('{"score": [1]}', "must be"),
        ('{"verdict": "perhaps"}', "must be"),
        ('{"verdicts": [1]}', "not a verdict"),
        ('{"verdicts": []}', "no verdict on 'a'"),
        ('{"a": 1}', "not a verdict"),
        ('{"z": {"score": 1}}', "nothing called 'z'"),
        ('{"verdicts": [{"id": "a", "score": 1}, {"id": "a", "score": 0}]}', "two verdicts"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_verdict_is_refused_and_told_why(text: str, why: str) -> None:
    with pytest.raises(NotAVerdictError, match=why):
        scores(text, A)


@pytest.mark.parametrize("score", ["0", "6", "2.5", "true", '"pass"', "1" + "0" * 400])
def test_a_whole_number_on_a_scale_is_that(score: str) -> None:
    with pytest.raises(NotAVerdictError, match="a whole number from 1 to 5"):
        scores(f'{{"score": {score}}}', B)


def test_a_verdict_that_is_missing_among_several_is_named() -> None:
    with pytest.raises(NotAVerdictError, match="no verdict on 'b'"):
        scores('{"verdicts": [{"id": "a", "score": 1}]}', A, B)


def test_a_single_verdict_is_not_taken_for_one_of_several() -> None:
    with pytest.raises(NotAVerdictError):
        scores('{"score": 1}', A, B)


def test_random_answers_are_scores_on_the_scale_or_refused() -> None:
    chance = random.Random(7)
    taken = 0
    for _ in range(5000):
        text = list(chance.choice(['{"score": 3, "reasoning": ""}', '{"b": {"score": "2.0"}}']))
        for _ in range(chance.randint(1, 3)):
            text[chance.randrange(len(text))] = chance.choice('0123456789.-e{}[],:" ')
        try:
            found = scores("".join(text), B)
        except NotAVerdictError:
            continue
        taken += 1
        assert list(found) == ["b"] and found["b"] in {1, 2, 3, 4, 5}
    assert taken > 100, "some of them are answers"


def test_the_question_and_the_tool_name_what_is_wanted() -> None:
    assert "Is it so?" in format_task([A]) and "Is it so?" in format_task([A, B])
    assert "a whole number from 1 to 5" in format_task([A, B])
    assert list(make_tool_schema([A])["properties"]) == ["reasoning", "score"], "reasons come before the score"
    assert make_tool_schema([A, B])["properties"]["verdicts"]["items"]["properties"]["id"]["enum"] == ["a", "b"]
