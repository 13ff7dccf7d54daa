"""What a function returns to what an agent asks becomes an answer, or is refused with who waits for one."""

from __future__ import annotations

from typing import Any

import pytest

from benchflow.contracts.rollout_records import Answer, Option, UserQuestion
from benchflow.errors import AskUserError
from benchflow.jobs.question_callback import make_answer

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def permission(**more: Any) -> UserQuestion:
    options = [Option(id="sure", name="Sure", kind="allow_once")]
    return UserQuestion(id="q", kind="permission", text="may I?", options=options, rollout="job/r", **more)


def form(**more: Any) -> UserQuestion:
    return UserQuestion(id="q", kind="form", text="who?", form=FORM, rollout="job/r", **more)


@pytest.mark.parametrize(
    ("question", "reply", "answer"),
    [
        (permission(), "sure", {"option": "sure"}),
        (permission(), None, {}),
        (permission(), Answer(question="q", option="sure"), {"option": "sure"}),
        (form(), "Ada", {"content": {"name": "Ada"}}),
        (form(), {"name": "Ada"}, {"content": {"name": "Ada"}}),
        (form(), None, {}),
        (form(options=[Option(id="name:Ada", name="Ada")]), "name:Ada", {"option": "name:Ada"}),
    ],
)
def test_what_a_handler_returns_becomes_an_answer(question: UserQuestion, reply: Any, answer: dict[str, Any]) -> None:
    assert make_answer(question, reply) == Answer(question="q", **answer)


TWO = {"type": "object", "properties": {"name": {"type": "string"}, "color": {"type": "string"}}}


@pytest.mark.parametrize(
    ("question", "reply", "message"),
    [
        (permission(), "perhaps", "returned 'perhaps', and offered is: sure"),
        (permission(), {"name": "Ada"}, "filled in a form where one of these is offered: sure"),
        (permission(), 3, "no answer: 3"),
        (permission(), Answer(question="p", option="sure"), "another question, 'p', not to 'q'"),
        (form().model_copy(update={"form": TWO}), "Ada", "returned 'Ada', and offered is: a form"),
    ],
)
def test_what_is_no_answer_is_refused_with_who_waits_for_one(question: UserQuestion, reply: Any, message: str) -> None:
    with pytest.raises(AskUserError, match=message) as caught:
        make_answer(question.model_copy(update={"chain": "n1.0"}), reply)
    assert "job/r (n1.0) still waits" in str(caught.value.remedy)
