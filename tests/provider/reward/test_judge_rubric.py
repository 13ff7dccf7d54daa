"""A rubric judged: which questions are asked, and which numbers come of the answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.reward import Criterion, JudgeRubric, JudgeSettings, VerifyResult
from benchflow.errors import JudgeError
from benchflow.planes.reward.judge import (
    JudgedDocument,
    Material,
    ModelJudge,
    cut_reasoning,
    judge_as_role,
    judge_rubric,
)
from benchflow.planes.reward.judge.criteria import normalise_score
from benchflow.testing.scripted_model import ScriptedModel

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DOCUMENTS = [JudgedDocument("report.md", "The report of the agent."), JudgedDocument("data.csv", "1;2;3")]
CRITERIA: list[dict[str, Any]] = [
    {"id": "complete", "description": "Everything is there.", "weight": 3, "files": ["report.md"]},
    {"id": "clear", "description": "It reads well.", "type": "likert", "points": 5},
    {"id": "share", "description": "How much is right?", "type": "numeric", "max": 10, "space": "reasoning"},
]


def says(score: object, description: str, **more: Any) -> dict[str, Any]:
    arguments = {"score": score, "reasoning": f"Because of {description}"}
    return {"when": {"anywhere": description}, "tools": [{"name": "verdict", "arguments": arguments}], **more}


EACH = [says(1, "Everything is there."), says(4, "It reads well."), says(2.5, "How much is right?")]


def rubric(**tables: Any) -> JudgeRubric:
    return JudgeRubric.model_validate({"criteria": CRITERIA} | tables)


async def judged(
    model: ScriptedModel, tmp_path: Path, rubric: JudgeRubric, context: str = "", **options: Any
) -> VerifyResult:
    settings = JudgeSettings(model="openai/scripted", base_url=model.openai_base_url, retries=1)
    material = Material(options.pop("documents", DOCUMENTS), "org/t", "Write it.", context)
    judge = ModelJudge(settings, "key", tmp_path, pause=0.01)
    return await judge_rubric(rubric, material, judge=judge, now=NOW, **options)


async def test_each_criterion_is_asked_by_itself_and_scored_on_its_scale(tmp_path: Path) -> None:
    async with ScriptedModel(EACH) as model:
        result = await judged(model, tmp_path, rubric(), context="The reader is a child.")
        texts = [json.dumps(call.body) for call in model.calls]
    assert result.items == {"complete": 1.0, "clear": 0.75, "share": 0.25}
    assert result.reward == pytest.approx((3 * 1 + 0.75 + 0.25) / 5)
    assert [(event.tag, event.space, event.value) for event in result.events] == [
        ("complete", "output", 1.0),
        ("clear", "output", 0.75),
        ("share", "reasoning", 0.25),
    ]
    assert result.events[1].meta == {
        "score": 4.0,
        "reasoning": "Because of It reads well.",
        "transcript": "llm-judge.clear.json",
    }
    assert {event.ts for event in result.events} == {NOW} and {event.source for event in result.events} == {"llm-judge"}
    assert all("The reader is a child." in text and "never an instruction" in text for text in texts)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"llm-judge.{name}.json" for name in ("clear", "complete", "share")
    ]


async def test_a_criterion_is_judged_by_its_own_files(tmp_path: Path) -> None:
    async with ScriptedModel(EACH) as model:
        await judged(model, tmp_path, rubric())
        bodies = [json.dumps(call.body) for call in model.calls]
    [complete] = [body for body in bodies if "Everything is there." in body]
    [clear] = [body for body in bodies if "It reads well." in body]
    assert "The report of the agent." in complete and "1;2;3" not in complete
    assert "The report of the agent." in clear and "1;2;3" in clear


async def test_what_the_questions_took_is_summed_up(tmp_path: Path) -> None:
    async with ScriptedModel(EACH) as model:
        first = await judged(model, tmp_path, rubric())
        again = await judged(model, tmp_path, rubric())
        assert len(model.calls) == 3
    spent = {"model": "openai/scripted", "questions": 3, "calls": 3, "input_tokens": 300, "output_tokens": 60}
    assert first.metadata["judge"] == spent | {"recorded": 0, "cost_usd": None}
    assert again.metadata["judge"] == spent | {"recorded": 3, "cost_usd": None}
    assert (again.reward, again.events) == (first.reward, first.events)


async def test_a_changed_criterion_is_the_only_one_that_is_asked_again(tmp_path: Path) -> None:
    async with ScriptedModel([*EACH, says(1, "It reads very well.")]) as model:
        await judged(model, tmp_path, rubric())
        changed = [CRITERIA[0], CRITERIA[1] | {"description": "It reads very well."}, CRITERIA[2]]
        result = await judged(model, tmp_path, rubric(criteria=changed))
        assert len(model.calls) == 4
    assert result.items == {"complete": 1.0, "clear": 0.0, "share": 0.25}


async def test_a_batched_rubric_is_one_call(tmp_path: Path) -> None:
    scores = {"complete": 0, "clear": 5, "share": 10}
    verdicts = [{"id": name, "score": score, "reasoning": name} for name, score in scores.items()]
    reply = {"tools": [{"name": "verdict", "arguments": {"verdicts": verdicts}}]}
    async with ScriptedModel([reply]) as model:
        result = await judged(model, tmp_path, rubric(judge={"mode": "batched"}))
        [call] = model.calls
    assert result.items == {"complete": 0.0, "clear": 1.0, "share": 1.0}
    assert result.metadata["judge"]["calls"] == 1 and result.metadata["judge"]["input_tokens"] == 100
    assert "1;2;3" in json.dumps(call.body) and "By these documents alone: report.md" in json.dumps(call.body)
    assert [path.name for path in tmp_path.iterdir()] == ["llm-judge.rubric.json"]


async def test_a_batched_answer_that_lacks_a_verdict_is_asked_for_again(tmp_path: Path) -> None:
    verdicts = [{"id": criterion["id"], "score": 1, "reasoning": ""} for criterion in CRITERIA]
    replies = [{"tools": [{"name": "verdict", "arguments": {"verdicts": some}}]} for some in (verdicts[:2], verdicts)]
    async with ScriptedModel(replies) as model:
        result = await judged(model, tmp_path, rubric(judge={"mode": "batched"}))
        assert "no verdict on 'share'" in json.dumps(model.calls[1].body)
    assert result.items["share"] == 0.1


async def test_the_rubric_says_what_becomes_of_its_criteria(tmp_path: Path) -> None:
    rewards = []
    async with ScriptedModel(EACH) as model:
        for scoring in (
            {"aggregation": "all_pass", "threshold": 0.75},
            {"aggregation": "all_pass", "threshold": 0.25},
            {"aggregation": "any_pass"},
            {"aggregation": "threshold", "threshold": 0.8},
            {"aggregation": "threshold", "threshold": 0.81},
        ):
            rewards.append((await judged(model, tmp_path, rubric(scoring=scoring))).reward)
        assert len(model.calls) == 3, "what was answered is not asked again"
    assert rewards == [0.0, 1.0, 1.0, 1.0, 0.0]


async def test_a_criterion_that_weighs_nothing_is_told_and_not_counted(tmp_path: Path) -> None:
    criteria = [CRITERIA[0], CRITERIA[1], CRITERIA[2] | {"weight": 0}]
    async with ScriptedModel(EACH) as model:
        result = await judged(
            model, tmp_path, rubric(criteria=criteria, scoring={"aggregation": "all_pass", "threshold": 0.5})
        )
    assert (result.reward, result.items["share"]) == (1.0, 0.25)


@pytest.mark.parametrize("mode", ["individual", pytest.param("batched", marks=pytest.mark.long)])
async def test_one_criterion_without_a_verdict_fails_the_whole_and_is_named(mode: str, tmp_path: Path) -> None:
    bad = {"when": {"anywhere": "It reads well."}, "error": {"status": 500}, "times": "always"}
    async with ScriptedModel([bad, EACH[0], EACH[2]]) as model:
        with pytest.raises(JudgeError, match="clear") as caught:
            await judged(model, tmp_path, rubric(judge={"mode": mode}))
    assert "status 500" in str(caught.value.log_tail)


async def test_a_retry_asks_only_what_failed(tmp_path: Path) -> None:
    bad = {"when": {"anywhere": "It reads well."}, "error": {"status": 500}, "times": 2}
    async with ScriptedModel([bad, *EACH]) as model:
        with pytest.raises(JudgeError):
            await judged(model, tmp_path, rubric())
        result = await judged(model, tmp_path, rubric())
        assert len(model.calls) == 5, "two, twice the one that failed, and that once more"
    assert result.metadata["judge"]["recorded"] == 2


@pytest.mark.long
async def test_the_rubric_says_how_long_a_call_may_take(tmp_path: Path) -> None:
    slow = says(1, "Everything is there.", delay=30, times="always")
    async with ScriptedModel([slow]) as model:
        with pytest.raises(JudgeError, match=r"within 0\.4 s|timed out|Timeout"):
            await judged(model, tmp_path, rubric(criteria=CRITERIA[:1], judge={"timeout": 0.4}))


async def test_a_role_gives_one_score(tmp_path: Path) -> None:
    async with ScriptedModel([says(0.6, "You are a critic.")]) as model:
        settings = JudgeSettings(model="openai/scripted", base_url=model.openai_base_url)
        judge = ModelJudge(settings, "key", tmp_path)
        result = await judge_as_role(
            "You are a critic.", judge=judge, documents=DOCUMENTS, instruction="Write it.", now=NOW
        )
        assert "The report of the agent." in json.dumps(model.calls[0].body)
    assert result.reward == 0.6 and result.rewards == {"reward": 0.6}
    [event] = result.events
    assert (event.value, event.source, event.meta["reasoning"]) == (0.6, "agent-judge", "Because of You are a critic.")
    assert result.metadata["judge"]["questions"] == 1


@pytest.mark.parametrize(
    ("criterion", "score", "value"),
    [
        ({}, 0.5, 1.0),
        ({}, 0.49, 0.0),
        ({"type": "likert"}, 1, 0.0),
        ({"type": "likert"}, 5, 1.0),
        ({"type": "likert", "points": 3}, 2, 0.5),
        ({"type": "numeric"}, 25, 0.25),
        ({"type": "numeric", "min": -1, "max": 1}, 0, 0.5),
        ({"type": "numeric"}, 101, 1.0),
        ({"type": "numeric"}, -1, 0.0),
    ],
)
def test_scores_become_numbers_from_0_to_1(criterion: dict[str, Any], score: float, value: float) -> None:
    made = Criterion.model_validate({"id": "c", "description": "d"} | criterion)
    assert normalise_score(made, score) == value


def test_long_reasoning_is_cut_in_events() -> None:
    assert cut_reasoning("short") == "short"
    assert len(cut_reasoning("x" * 9999)) == 500 and cut_reasoning("x" * 9999).endswith("…")
