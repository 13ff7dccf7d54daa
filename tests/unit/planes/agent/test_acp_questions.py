"""What an agent asks of its client, answered by rule."""

from __future__ import annotations

from typing import Any

import pytest

from benchflow.contracts.rollout_records import Answer, Permissions
from benchflow.planes.agent.acp.acp_questions import format_answer, parse_question
from benchflow.planes.agent.notes import Message
from benchflow.planes.agent.question_answers import answer_by_policy

PERMISSION, FORM = "session/request_permission", "elicitation/create"


def answered(method: str, params: Message, permissions: Permissions) -> Message:
    """Return what an agent gets for a request by a policy."""
    return format_answer(method, answer_by_policy(parse_question("q", method, params), permissions))


def choose(options: list[Message], permissions: Permissions) -> Message:
    outcome: Message = answered(PERMISSION, {"options": options}, permissions)["outcome"]
    return outcome


def answer_form(params: Message, permissions: Permissions) -> Message:
    return answered(FORM, params, permissions)


# --- permission ------------------------------------------------------------------------------------------


def options(*kinds: str) -> list[Message]:
    return [{"optionId": f"{kind} {number}", "name": "?", "kind": kind} for number, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("kinds", "permissions", "chosen"),
    [
        (("reject_once", "allow_always", "allow_once"), "auto", "allow_once 2"),
        (("reject_once", "allow_always", "allow_always"), "auto", "allow_always 1"),
        (("allow_once", "reject_always", "reject_once"), "deny", "reject_once 2"),
        (("allow_once", "reject_always"), "deny", "reject_always 1"),
    ],
)
def test_an_option_is_chosen_by_its_kind(kinds: tuple[str, ...], permissions: Permissions, chosen: str) -> None:
    assert choose(options(*kinds), permissions) == {"outcome": "selected", "optionId": chosen}


@pytest.mark.parametrize(("kinds", "permissions"), [((), "auto"), (("reject_once", "new"), "auto"), (("new",), "deny")])
def test_where_no_option_is_of_the_kind_the_answer_is_cancelled(
    kinds: tuple[str, ...], permissions: Permissions
) -> None:
    assert choose(options(*kinds), permissions) == {"outcome": "cancelled"}


# --- forms -----------------------------------------------------------------------------------------------


def form(*required: str, **properties: Message) -> Message:
    return {"requestedSchema": {"type": "object", "properties": properties, "required": list(required)}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ({"type": "string", "default": "Ada"}, "Ada"),
        ({"type": "boolean", "default": False}, False),
        ({"type": "boolean"}, True),
        ({"type": "string", "enum": ["red", "green"]}, "red"),
        ({"type": "string", "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}, "a"),
        ({"type": "array", "items": {"enum": ["x", "y"]}}, ["x"]),
        ({"type": "array", "items": {"anyOf": [{"const": "x", "title": "X"}]}}, ["x"]),
    ],
)
def test_a_form_is_answered_by_its_defaults_and_first_choices(field: Message, value: Any) -> None:
    assert answer_form(form("it", it=field), "auto") == {"action": "accept", "content": {"it": value}}


def test_what_nothing_is_known_about_is_left_out_of_a_form() -> None:
    asked = form("name", name={"type": "string", "default": "Ada"}, age={"type": "integer"})
    assert answer_form(asked, "auto") == {"action": "accept", "content": {"name": "Ada"}}


@pytest.mark.parametrize(
    ("asked", "permissions"),
    [
        (form("age", age={"type": "integer"}), "auto"),
        (form(name={"type": "string", "default": "Ada"}), "deny"),
        ({"mode": "url", "url": "https://example.org"}, "auto"),
    ],
)
def test_a_form_that_cannot_be_answered_is_declined(asked: Message, permissions: Permissions) -> None:
    assert answer_form(asked, permissions) == {"action": "decline"}


CHOICE = {"type": "string", "oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]}


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        (form("it", it=CHOICE), ["it:a", "it:b"]),
        (form(it={"type": "string", "enum": ["a", "b"]}), ["it:a", "it:b"]),
        # As agents ask who take a word of one's own in place of a choice.
        (form(it=CHOICE, it_custom={"type": "string"}), ["it:a", "it:b"]),
        (form("it_custom", it=CHOICE, it_custom={"type": "string"}), []),
        (form(it=CHOICE, other=CHOICE), []),
        (form(name={"type": "string"}), []),
    ],
)
def test_what_can_be_chosen_is_offered_where_nothing_else_must_be_filled_in(asked: Message, options: list[str]) -> None:
    question = parse_question("q", "elicitation/create", {"message": "Which?", **asked})
    assert [option.id for option in question.options] == options
    for option in question.options:
        answer = Answer(question="q", option=option.id)
        content = {"it": option.id.partition(":")[2]}
        assert format_answer("elicitation/create", answer) == {"action": "accept", "content": content}
