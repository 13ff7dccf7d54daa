"""A model as judge: what becomes of good, bad, broken, slow and missing answers, in both interfaces."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.reward import JudgeQuestion, JudgeScale, JudgeSettings
from benchflow.errors import JudgeError
from benchflow.planes.reward.judge import ModelJudge, find_credential, require_library
from benchflow.planes.reward.judge.model_judge import JudgeByKey
from benchflow.testing.scripted_model import ScriptedModel

KEY = "canary-key-that-nobody-may-read"
DIALECTS = ("openai", "anthropic")


@pytest.fixture(params=["openai", pytest.param("anthropic", marks=pytest.mark.long)])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


in_both_interfaces = pytest.mark.parametrize("dialect", DIALECTS)


def says(**verdict: Any) -> dict[str, Any]:
    return {"tools": [{"name": "verdict", "arguments": verdict}]}


GOOD = says(score=1, reasoning="All is there.")


def settings(model: ScriptedModel, dialect: str = "openai", /, **options: Any) -> JudgeSettings:
    base = model.openai_base_url if dialect == "openai" else model.base_url
    return JudgeSettings.model_validate({"model": f"{dialect}/scripted", "base_url": base, "retries": 2} | options)


def question(**fields: Any) -> JudgeQuestion:
    given = {
        "id": "q",
        "system": "You judge.",
        "prompt": "Here is a report.",
        "scales": (JudgeScale(id="a", description="Is it complete?"),),
        "timeout_sec": 120.0,
    }
    return JudgeQuestion.model_validate(given | fields)


def judge(model: ScriptedModel, tmp_path: Path, dialect: str = "openai", /, **options: Any) -> ModelJudge:
    return ModelJudge(settings(model, dialect, **options), KEY, tmp_path / "judge", pause=0.01)


def transcript(tmp_path: Path, name: str = "q.json") -> dict[str, Any]:
    content = json.loads((tmp_path / "judge" / name).read_text())
    assert isinstance(content, dict)
    return content


@in_both_interfaces
async def test_a_verdict_is_a_score_with_reasons(dialect: str, tmp_path: Path) -> None:
    async with ScriptedModel([GOOD]) as model:
        answer = await judge(model, tmp_path, dialect).ask(question())
    assert (answer.verdicts["a"].score, answer.verdicts["a"].reasoning) == (1.0, "All is there.")
    assert (answer.calls, answer.input_tokens, answer.output_tokens) == (1, 100, 20)
    assert answer.cost_usd is None, "nobody knows what `scripted` costs"
    [call] = model.calls
    assert "Here is a report." in json.dumps(call.body) and "Is it complete?" in json.dumps(call.body)


@pytest.mark.long
async def test_a_low_score_is_an_answer_like_any(dialect: str, tmp_path: Path) -> None:
    async with ScriptedModel([says(score=0, reasoning="Nothing is there.")]) as model:
        answer = await judge(model, tmp_path, dialect).ask(question())
    assert answer.verdicts["a"].score == 0.0


async def test_what_an_answer_cost_is_known_where_the_price_is(tmp_path: Path) -> None:
    async with ScriptedModel([GOOD]) as model:
        answer = await judge(model, tmp_path, model="openai/gpt-4o").ask(question())
    assert answer.cost_usd is not None and answer.cost_usd > 0


@in_both_interfaces
async def test_a_malformed_answer_is_objected_to(dialect: str, tmp_path: Path) -> None:
    broken = {"tools": [{"name": "verdict", "arguments": "{not json"}]}
    async with ScriptedModel([broken, GOOD]) as model:
        answer = await judge(model, tmp_path, dialect).ask(question())
    assert answer.verdicts["a"].score == 1.0
    assert (answer.calls, answer.input_tokens) == (2, 200)
    assert "This is not an answer" in json.dumps(model.calls[1].body)


async def test_answers_malformed_for_ever_are_an_error_and_not_a_score(dialect: str, tmp_path: Path) -> None:
    async with ScriptedModel([{"text": "I like it.", "times": "always"}]) as model:
        with pytest.raises(JudgeError) as caught:
            await judge(model, tmp_path, dialect).ask(question())
        assert len(model.calls) == 3
    assert "was asked 3 times" in caught.value.message and "no JSON object" in caught.value.message
    assert transcript(tmp_path)["answer"] is None and len(transcript(tmp_path)["attempts"]) == 3


@pytest.mark.parametrize(
    "score", [7, *(pytest.param(score, marks=pytest.mark.long) for score in (-1, 2.5, True, "high", None))]
)
async def test_a_score_that_is_off_its_scale_is_not_taken(score: object, tmp_path: Path) -> None:
    scale = JudgeScale(id="a", description="How good?", low=1, high=5, is_whole=True)
    async with ScriptedModel([says(score=score, reasoning="x"), says(score=4, reasoning="x")]) as model:
        answer = await judge(model, tmp_path).ask(question(scales=(scale,)))
    assert (answer.verdicts["a"].score, answer.calls) == (4.0, 2)


async def test_a_model_without_tools_may_say_it_as_json(dialect: str, tmp_path: Path) -> None:
    async with ScriptedModel([{"text": '```json\n{"verdict": "pass", "reason": "Yes."}\n```'}]) as model:
        answer = await judge(model, tmp_path, dialect).ask(question())
    assert (answer.verdicts["a"].score, answer.verdicts["a"].reasoning) == (1.0, "Yes.")


async def test_a_slow_answer_is_asked_for_again(dialect: str, tmp_path: Path) -> None:
    async with ScriptedModel([{"delay": 30, "text": "late"}, {**GOOD, "times": "always"}]) as model:
        answer = await judge(model, tmp_path, dialect, retries=9).ask(question(timeout_sec=1.0))
    attempts = transcript(tmp_path)["attempts"]
    # On a busy machine others may come late, too.
    assert answer.verdicts["a"].score == 1.0 and answer.calls == len(attempts) >= 2
    assert all(attempt["error"] for attempt in attempts[:-1]) and "error" not in attempts[-1]


@pytest.mark.long
async def test_a_judge_that_is_always_slow_is_an_error(tmp_path: Path) -> None:
    async with ScriptedModel([{"delay": 30, "times": "always"}]) as model:
        with pytest.raises(JudgeError, match="asked 2 times"):
            await judge(model, tmp_path, retries=1).ask(question(timeout_sec=0.3))


async def test_an_endpoint_that_is_busy_is_given_the_time_it_wants(dialect: str, tmp_path: Path) -> None:
    async with ScriptedModel([{"error": {"status": 429, "retry_after": 1}}, GOOD]) as model:
        start = time.monotonic()
        answer = await judge(model, tmp_path, dialect).ask(question())
    assert answer.calls == 2
    assert time.monotonic() - start >= 1


async def test_an_endpoint_that_wants_hours_is_not_waited_for(tmp_path: Path) -> None:
    async with ScriptedModel([{"error": {"status": 429, "retry_after": 7200}}]) as model:
        with pytest.raises(JudgeError, match=r"asked once .* status 429"):
            await judge(model, tmp_path).ask(question())


async def test_an_endpoint_that_always_fails_is_an_error(dialect: str, tmp_path: Path) -> None:
    async with ScriptedModel([{"error": {"status": 500}, "times": "always"}]) as model:
        with pytest.raises(JudgeError, match="status 500") as caught:
            await judge(model, tmp_path, dialect).ask(question())
        assert len(model.calls) == 3
    assert caught.value.remedy and "scripted error" in str(caught.value.log_tail)


@in_both_interfaces
async def test_a_wrong_key_is_not_tried_twice(dialect: str, tmp_path: Path) -> None:
    refused = {"status": 401, "message": f"no such key: {KEY}", "type": "authentication_error"}
    async with ScriptedModel([{"error": refused, "times": "always"}]) as model:
        with pytest.raises(JudgeError, match="status 401") as caught:
            await judge(model, tmp_path, dialect).ask(question())
        assert len(model.calls) == 1
    assert "check the key" in str(caught.value.remedy)
    assert KEY not in str(caught.value)


async def test_a_garbled_response_is_asked_for_again(dialect: str, tmp_path: Path) -> None:
    async with ScriptedModel([{"fault": {"kind": "garbage"}}, {"fault": {"kind": "truncate"}}, GOOD]) as model:
        answer = await judge(model, tmp_path, dialect).ask(question())
    assert answer.calls == 3


async def test_a_judge_that_is_not_there_is_an_error(dialect: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        nobody = ModelJudge(
            JudgeSettings(model=f"{dialect}/m", base_url=url, retries=1), KEY, tmp_path / "judge", pause=0.01
        )
        with pytest.raises(JudgeError, match="asked 2 times") as caught:
            await nobody.ask(question())
    assert caught.value.log_tail and caught.value.remedy


# --- records ---------------------------------------------------------------------------------------------------


async def test_the_same_question_is_never_asked_twice(dialect: str, tmp_path: Path) -> None:
    async with ScriptedModel([GOOD]) as model:
        first = await judge(model, tmp_path, dialect).ask(question())
        again = await judge(model, tmp_path, dialect).ask(question())
        assert len(model.calls) == 1
    assert again == first.model_copy(update={"is_recorded": True})


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "Here is another report."},
        {"system": "You judge mildly."},
        {"scales": (JudgeScale(id="a", description="Is it short?"),)},
    ],
    ids=["prompt", "system", "scales"],
)
async def test_another_question_of_that_name_is_asked(change: dict[str, Any], tmp_path: Path) -> None:
    async with ScriptedModel([GOOD, says(score=0, reasoning="no")]) as model:
        await judge(model, tmp_path).ask(question())
        other = await judge(model, tmp_path).ask(question(**change))
        assert (other.verdicts["a"].score, other.is_recorded) == (0.0, False)
        # Both answers stay, and each is found again.
        for asked, score in ((question(), 1.0), (question(**change), 0.0)):
            answer = await judge(model, tmp_path).ask(asked)
            assert (answer.verdicts["a"].score, answer.is_recorded) == (score, True)
            assert transcript(tmp_path, answer.transcript)["answer"]["transcript"] == answer.transcript
    assert len(list((tmp_path / "judge").iterdir())) == 2


async def test_another_model_is_asked_itself(tmp_path: Path) -> None:
    async with ScriptedModel([GOOD, says(score=0, reasoning="no")]) as model:
        await judge(model, tmp_path).ask(question())
        other = await judge(model, tmp_path, model="openai/other").ask(question())
    assert (other.verdicts["a"].score, other.model) == (0.0, "openai/other")


async def test_a_question_that_failed_is_asked_again(tmp_path: Path) -> None:
    async with ScriptedModel([{"error": {"status": 500}}, GOOD]) as model:
        with pytest.raises(JudgeError):
            await judge(model, tmp_path, retries=0).ask(question())
        assert (await judge(model, tmp_path, retries=0).ask(question())).is_recorded is False
    assert transcript(tmp_path)["error"] is None


async def test_an_earlier_directory_answers_too_and_is_left_as_it_was(tmp_path: Path) -> None:
    async with ScriptedModel([GOOD]) as model:
        await judge(model, tmp_path).ask(question())
        before = (tmp_path / "judge" / "q.json").read_bytes()
        later = ModelJudge(settings(model), KEY, tmp_path / "later", earlier=[tmp_path / "judge"])
        assert (await later.ask(question())).is_recorded
    assert json.loads((tmp_path / "later" / "q.json").read_text())["answer"]
    assert (tmp_path / "judge" / "q.json").read_bytes() == before


@pytest.mark.parametrize(
    "content",
    ["{", *(pytest.param(text, marks=pytest.mark.long) for text in ("", "[]", '{"digest": 1}', '{"answer": {}}'))],
)
async def test_a_record_that_says_nothing_is_written_anew(content: str, tmp_path: Path) -> None:
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "q.json").write_text(content)
    async with ScriptedModel([GOOD]) as model:
        assert not (await judge(model, tmp_path).ask(question())).is_recorded
    assert transcript(tmp_path)["answer"]


async def test_any_id_is_a_file_of_its_own(tmp_path: Path) -> None:
    async with ScriptedModel([{**GOOD, "times": "always"}]) as model:
        for name in ("../../up", "a/b", "a b", ".hidden", "x" * 300, "é"):
            answer = await judge(model, tmp_path).ask(question(id=name))
            assert transcript(tmp_path, answer.transcript)["id"] == name
    assert len(list((tmp_path / "judge").iterdir())) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["judge"]


@in_both_interfaces
async def test_a_transcript_tells_all_that_was_said_but_the_key_and_secrets(dialect: str, tmp_path: Path) -> None:
    hide: Callable[[str], str] = lambda text: text.replace("hunter22", "[PASSWORD]")  # noqa: E731
    refused = {"error": {"status": 503, "message": f"overloaded, {KEY}"}}
    async with ScriptedModel([refused, says(score=1, reasoning=f"It says hunter22 and {KEY}.")]) as model:
        asked = ModelJudge(settings(model, dialect), KEY, tmp_path / "judge", hide, pause=0.01)
        answer = await asked.ask(question(prompt="The password is hunter22."))
        assert KEY in json.dumps(dict(model.calls[0].headers))
    assert answer.verdicts["a"].reasoning == "It says [PASSWORD] and [judge key]."
    texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert texts and not any(secret in text for text in texts for secret in (KEY, "hunter22"))
    written = transcript(tmp_path)
    assert written["question"]["prompt"] == "The password is [PASSWORD]."
    assert "overloaded" in written["attempts"][0]["error"]
    assert written["answer"]["verdicts"]["a"]["score"] == 1 and written["seconds"] > 0


async def test_an_endpoint_is_written_down_without_its_password(tmp_path: Path) -> None:
    async with ScriptedModel([GOOD]) as model:
        url = model.openai_base_url.replace("http://", "http://user:hunter22@")
        await judge(model, tmp_path, base_url=url).ask(question())
    assert transcript(tmp_path)["endpoint"] == model.openai_base_url


# --- many at a time --------------------------------------------------------------------------------------------


async def test_no_more_calls_are_under_way_than_allowed_whoever_makes_them(tmp_path: Path) -> None:
    async with ScriptedModel([{**GOOD, "hold": f"{number}th"} for number in range(6)]) as model:
        judges = [judge(model, tmp_path / str(number), concurrency=2) for number in range(3)]
        asked = [each.ask(question(id=str(number))) for each in judges for number in range(2)]
        answers = asyncio.gather(*asked)
        for number in range(6):
            # Whoever has an answer makes room for one other. One too many would have come meanwhile.
            under_way = min(number + 2, 6)
            await model.arrived(under_way)
            assert len(model.calls) == under_way
            model.release(f"{number}th")
        assert len(await answers) == 6


async def test_a_question_that_is_given_up_leaves_its_place(tmp_path: Path) -> None:
    replies = [{"hold": "never"}, GOOD]
    async with ScriptedModel(replies) as model:
        asked = judge(model, tmp_path, concurrency=1)
        first = asyncio.ensure_future(asked.ask(question(id="first")))
        await model.arrived(1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (await asked.ask(question(id="second"))).verdicts["a"].score == 1.0


def test_one_judge_serves_several_event_loops(tmp_path: Path) -> None:
    with ScriptedModel([{**GOOD, "times": "always"}]) as model:
        asked = judge(model, tmp_path)
        for number in range(2):
            assert asyncio.run(asked.ask(question(id=str(number)))).calls == 1


# --- whom to ask -----------------------------------------------------------------------------------------------


async def test_without_a_model_nobody_can_be_asked(tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match="no model is named") as caught:
        await ModelJudge(JudgeSettings(), KEY, tmp_path).ask(question())
    assert "--judge-model" in str(caught.value.remedy)


@pytest.mark.parametrize("name", ["mistral/large", "openai/", "llama"])
async def test_a_model_of_an_unknown_interface_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(JudgeError) as caught:
        await ModelJudge(JudgeSettings(model=name), KEY, tmp_path).ask(question())
    assert "openai/<model>" in str(caught.value.remedy)


async def test_without_a_key_the_provider_itself_is_not_asked(dialect: str, tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match="there is no key") as caught:
        await ModelJudge(JudgeSettings(model=f"{dialect}/m"), None, tmp_path).ask(question())
    assert f"{dialect.upper()}_API_KEY" in str(caught.value.remedy)


async def test_an_endpoint_of_ones_own_needs_no_key(dialect: str, tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "somebody-elses")
    async with ScriptedModel([GOOD]) as model:
        await ModelJudge(settings(model, dialect), None, tmp_path).ask(question())
    assert "somebody-elses" not in json.dumps(dict(model.calls[0].headers))


async def test_what_is_asked_for_wins_over_what_a_rubric_names(tmp_path: Path) -> None:
    async with ScriptedModel([GOOD, GOOD]) as model:
        answer = await judge(model, tmp_path).ask(question(model="openai/of-the-rubric"))
        assert answer.model == "openai/scripted"
        unset = settings(model).model_copy(update={"model": None})
        answer = await ModelJudge(unset, KEY, tmp_path).ask(question(model="gpt-of-the-rubric"))
        assert answer.model == "openai/gpt-of-the-rubric"


def test_the_key_is_in_the_providers_variable_or_in_the_one_that_is_named() -> None:
    assert find_credential(JudgeSettings(model="anthropic/m")) == "ANTHROPIC_API_KEY"
    assert find_credential(JudgeSettings(), "openai/m") == "OPENAI_API_KEY"
    assert find_credential(JudgeSettings(model="openai/m", credential="MINE")) == "MINE"


async def test_each_provider_is_sent_its_own_key(tmp_path: Path) -> None:
    keys = {"OPENAI_API_KEY": "key-of-one", "ANTHROPIC_API_KEY": "key-of-the-other"}
    async with ScriptedModel([{**GOOD, "times": "always"}]) as model:
        asked = JudgeByKey(JudgeSettings(base_url=model.openai_base_url), keys.get, tmp_path)
        await asked.ask(question(id="one", model="openai/m"))
        await asked.ask(question(id="other", model="anthropic/m"))
        sent = [json.dumps(dict(call.headers)) for call in model.calls]
    assert [("key-of-one" in each, "key-of-the-other" in each) for each in sent] == [(True, False), (False, True)]


def test_a_missing_package_is_named_with_the_way_to_get_it() -> None:
    require_library()
    script = """
import asyncio, pathlib, sys
sys.modules["pydantic_ai"] = None
from benchflow.contracts.reward import JudgeQuestion, JudgeScale, JudgeSettings
from benchflow.errors import JudgeError
from benchflow.planes.reward.judge import ModelJudge, require_library
question = JudgeQuestion(id="q", system="", prompt="", scales=(JudgeScale(id="a", description=""),))
judge = ModelJudge(JudgeSettings(model="openai/m"), "key", pathlib.Path("/nonexistent"))
for ask in (require_library, lambda: asyncio.run(judge.ask(question))):
    try:
        ask()
    except JudgeError as error:
        print(error.remedy)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["pip install 'benchflow[judge]'"] * 2
