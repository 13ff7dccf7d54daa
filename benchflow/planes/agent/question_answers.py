"""Answers to an agent's questions to its user: by a policy, or as the user has given them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchflow.contracts.agent import AskUser, Unanswered
from benchflow.contracts.rollout_records import Answer, Permissions, Question

_ORDER: dict[Permissions, tuple[str, ...]] = {
    "auto": ("allow_once", "allow_always"),
    "deny": ("reject_once", "reject_always"),
}
"""Kinds of the permission options that a policy chooses, the preferred one first."""


def make_answerer(permissions: Permissions, answers: Sequence[Answer] = ()) -> AskUser:
    """Return a callback that answers an agent's questions.

    Args:
        permissions: Policy of the answers. With `ask`, each question needs one of `answers`; else `Unanswered` is
            raised.
        answers: Answers that the user has given.
    """
    given = {answer.question: answer for answer in answers}

    async def answer(question: Question) -> Answer:
        if permissions != "ask":
            return answer_by_policy(question, permissions)
        if question.id not in given:
            raise Unanswered(question)
        return given[question.id]

    return answer


def answer_by_policy(question: Question, permissions: Permissions) -> Answer:
    """Return the answer of a policy to a question.

    A permission is granted or refused by the kinds of its options, in whatever order they are. A form is filled in with
    its defaults, else with the first choice of each field, and declined if a required field has neither.
    """
    if question.kind == "permission":
        chosen = (option.id for kind in _ORDER[permissions] for option in question.options if option.kind == kind)
        return Answer(question=question.id, option=next(chosen, None))
    content = _fill_form(question.form) if permissions == "auto" and question.form is not None else None
    return Answer(question=question.id, content=content)


def _fill_form(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the content of a form; None if a required field has no value."""
    content: dict[str, Any] = {}
    required = schema.get("required") or []
    for name, field in (schema.get("properties") or {}).items():
        found, value = _choose_value(field)
        if found:
            content[name] = value
        elif name in required:
            return None
    return content


def _choose_value(field: dict[str, Any]) -> tuple[bool, Any]:
    """Return whether a field of a form has a default or choices, and its value."""
    if "default" in field:
        return True, field["default"]
    items = field.get("items") if field.get("type") == "array" else field
    choices = (items or {}).get("enum") or [row.get("const") for row in (items or {}).get("oneOf") or []]
    choices = choices or [row.get("const") for row in (items or {}).get("anyOf") or []]
    if choices:
        return True, [choices[0]] if field.get("type") == "array" else choices[0]
    return (True, True) if field.get("type") == "boolean" else (False, None)
