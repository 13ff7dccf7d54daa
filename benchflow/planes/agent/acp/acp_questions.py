"""Conversion of an agent's requests to questions for its user, and of the answers to the protocol's form."""

from __future__ import annotations

from typing import Any

from benchflow.contracts.rollout_records import Answer, Option, Question
from benchflow.planes.agent.notes import Message


def parse_question(question: str, method: str, params: Message) -> Question:
    """Return the question of a permission or elicitation request.

    Args:
        question: Id of the question.
        method: Method of the request.
        params: Parameters of the request. Malformed options raise an error.
    """
    if method == "session/request_permission":
        call = params.get("toolCall") if isinstance(params.get("toolCall"), dict) else {}
        text = str((call or {}).get("title") or "the agent asks for permission")
        # A malformed option raises: such a question must not be answered.
        options = [
            Option(id=str(row.get("optionId")), name=str(row.get("name") or ""), kind=_text(row.get("kind")))
            for row in params.get("options") or []
        ]
        return Question(id=question, kind="permission", text=text, options=options)
    form = params.get("requestedSchema") if isinstance(params.get("requestedSchema"), dict) else None
    text = str(params.get("message") or "the agent asks")
    return Question(id=question, kind="form", text=text, options=_list_choices(form or {}), form=form)


def format_answer(method: str, answer: Answer) -> Message:
    """Return the result of a request, for an answer of the user."""
    if method == "session/request_permission":
        if answer.option is None:
            return {"outcome": {"outcome": "cancelled"}}
        return {"outcome": {"outcome": "selected", "optionId": answer.option}}
    if answer.content is not None:
        return {"action": "accept", "content": answer.content}
    if answer.option is not None and ":" in answer.option:
        name, _, value = answer.option.partition(":")
        return {"action": "accept", "content": {name: value}}
    return {"action": "decline"}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _list_choices(form: Message) -> list[Option]:
    """Return the choices of a form as options `field:choice`; none if another field is required.

    A form with several fields of choices has none, either: it needs an answer with content.
    """
    fields = form.get("properties") or {}
    listed = {
        name: field.get("oneOf") or [{"const": value} for value in field.get("enum") or []]
        for name, field in fields.items()
    }
    chosen = [name for name, rows in listed.items() if rows]
    if len(chosen) != 1 or set(form.get("required") or ()) - set(chosen):
        return []
    (name,) = chosen
    return [
        Option(id=f"{name}:{row.get('const')}", name=str(row.get("title") or row.get("const"))) for row in listed[name]
    ]
