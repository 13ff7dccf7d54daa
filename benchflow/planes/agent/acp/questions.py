"""What an agent asks of its user over the protocol, as a question, and a user's answer as the protocol has it."""

from __future__ import annotations

from typing import Any

from benchflow.contracts.rollout import Answer, Option, Question
from benchflow.planes.agent.notes import Message


def question_of(question: str, method: str, params: Message) -> Question:
    """What the agent asks, as its user is to read it. question: its id."""
    if method == "session/request_permission":
        call = params.get("toolCall") if isinstance(params.get("toolCall"), dict) else {}
        text = str((call or {}).get("title") or "the agent asks for permission")
        # Whatever is no option raises: a question that makes no sense is answered by nobody.
        options = [
            Option(id=str(row.get("optionId")), name=str(row.get("name") or ""), kind=_text(row.get("kind")))
            for row in params.get("options") or []
        ]
        return Question(id=question, kind="permission", text=text, options=options)
    form = params.get("requestedSchema") if isinstance(params.get("requestedSchema"), dict) else None
    text = str(params.get("message") or "the agent asks")
    return Question(id=question, kind="form", text=text, options=_choices(form or {}), form=form)


def given_answer(method: str, answer: Answer) -> Message:
    """A user's answer, as the agent is to get it."""
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


def _choices(form: Message) -> list[Option]:
    """The choices of a form in which nothing else has to be filled in, as options `field:choice`: any other form needs
    a content of its own.
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
