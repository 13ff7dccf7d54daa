"""Answers to what an agent asks of its user: by a policy, or as the question that somebody is to answer."""

from __future__ import annotations

from typing import Any

from benchflow.contracts.rollout import Answer, Option, Permissions, Question
from benchflow.planes.agent.acp.notes import Message

_ORDER: dict[Permissions, tuple[str, ...]] = {
    "auto": ("allow_once", "allow_always"),
    "deny": ("reject_once", "reject_always"),
}

_LONGEST = 4000
"""Characters of a text that a question carries through a workflow."""

_LONGEST_NAME = 200
"""The same of an option's name."""


def choose(options: list[Message], permissions: Permissions) -> Message:
    """The outcome of a permission request: by the kind of its options, whatever their order; else cancelled."""
    for kind in _ORDER[permissions]:
        for option in options:
            if option.get("kind") == kind:
                return {"outcome": "selected", "optionId": option["optionId"]}
    return {"outcome": "cancelled"}


def answer_form(params: Message, permissions: Permissions) -> Message:
    """An answer to a form: its defaults, else the first of what is offered; declined where neither is there."""
    schema = params.get("requestedSchema")
    if permissions == "deny" or not isinstance(schema, dict):
        return {"action": "decline"}
    content: Message = {}
    required = schema.get("required") or []
    for name, field in (schema.get("properties") or {}).items():
        found, value = _value(field)
        if found:
            content[name] = value
        elif name in required:
            return {"action": "decline"}
    return {"action": "accept", "content": content}


def _value(field: Message) -> tuple[bool, Any]:
    if "default" in field:
        return True, field["default"]
    items = field.get("items") if field.get("type") == "array" else field
    choices = (items or {}).get("enum") or [row.get("const") for row in (items or {}).get("oneOf") or []]
    choices = choices or [row.get("const") for row in (items or {}).get("anyOf") or []]
    if choices:
        return True, [choices[0]] if field.get("type") == "array" else choices[0]
    return (True, True) if field.get("type") == "boolean" else (False, None)


def question_of(question: str, method: str, params: Message) -> Question:
    """What the agent asks, as its user is to read it. question: its id."""
    if method == "session/request_permission":
        call = params.get("toolCall") if isinstance(params.get("toolCall"), dict) else {}
        text = str((call or {}).get("title") or "the agent asks for permission")
        options = [
            Option(id=str(row.get("optionId")), name=str(row.get("name") or "")[:_LONGEST_NAME], kind=row.get("kind"))
            for row in params.get("options") or []
        ]
        return Question(id=question, kind="permission", text=text[:_LONGEST], options=options[:50])
    form = params.get("requestedSchema") if isinstance(params.get("requestedSchema"), dict) else None
    text = str(params.get("message") or "the agent asks")
    return Question(id=question, kind="form", text=text[:_LONGEST], options=_choices(form or {}), form=_small(form))


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


def _small(form: Message | None) -> Message | None:
    return form if len(str(form)) < 8 * _LONGEST else None
