"""Answers to what an agent asks of its user: by a policy, or those that the user has given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchflow.contracts.rollout import Answer, Permissions, Question
from benchflow.contracts.session import AskUser, Unanswered

_ORDER: dict[Permissions, tuple[str, ...]] = {
    "auto": ("allow_once", "allow_always"),
    "deny": ("reject_once", "reject_always"),
}


def answering(permissions: Permissions, answers: Sequence[Answer] = ()) -> AskUser:
    """Return what answers an agent's questions.

    Args:
        permissions: By which policy; `ask` for none, then each question needs one of `answers`.
        answers: Those that were given.
    """
    given = {answer.question: answer for answer in answers}

    async def answer(question: Question) -> Answer:
        if permissions != "ask":
            return by_policy(question, permissions)
        if question.id not in given:
            raise Unanswered(question)
        return given[question.id]

    return answer


def by_policy(question: Question, permissions: Permissions) -> Answer:
    """Return the answer to a question. A permission is given or refused by the kinds of its options, whatever their
    order. A form is filled in with its defaults, else with the first of what it offers, and declined where a field that
    is required has neither.
    """
    if question.kind == "permission":
        chosen = (option.id for kind in _ORDER[permissions] for option in question.options if option.kind == kind)
        return Answer(question=question.id, option=next(chosen, None))
    content = _filled(question.form) if permissions == "auto" and question.form is not None else None
    return Answer(question=question.id, content=content)


def _filled(schema: dict[str, Any]) -> dict[str, Any] | None:
    content: dict[str, Any] = {}
    required = schema.get("required") or []
    for name, field in (schema.get("properties") or {}).items():
        found, value = _value(field)
        if found:
            content[name] = value
        elif name in required:
            return None
    return content


def _value(field: dict[str, Any]) -> tuple[bool, Any]:
    if "default" in field:
        return True, field["default"]
    items = field.get("items") if field.get("type") == "array" else field
    choices = (items or {}).get("enum") or [row.get("const") for row in (items or {}).get("oneOf") or []]
    choices = choices or [row.get("const") for row in (items or {}).get("anyOf") or []]
    if choices:
        return True, [choices[0]] if field.get("type") == "array" else choices[0]
    return (True, True) if field.get("type") == "boolean" else (False, None)
