"""Asking is worth something where the task leaves something open, and only there."""

from __future__ import annotations

from typing import Any

import pytest
from support.action_lines import Line, file_call, say, scored, shell

from benchflow.planes.reward.action import Asked

ALLOW = [{"optionId": "y", "name": "Yes", "kind": "allow_once"}, {"optionId": "n", "name": "No", "kind": "reject_once"}]
CHOICES = [{"optionId": day, "name": day, "kind": "allow_once"} for day in ("Monday", "Tuesday")]
DAY = {"type": "object", "properties": {"day": {"type": "string", "enum": ["Monday", "Tuesday"]}}}


def permission(options: list[dict[str, str]], **call: Any) -> list[Line]:
    return [{"type": "permission_request", "params": {"toolCall": {"toolCallId": "q"} | call, "options": options}}]


def form(message: str, schema: dict[str, Any] | None = None) -> list[Line]:
    params = {"mode": "form", "message": message, "requestedSchema": schema or {"type": "object", "properties": {}}}
    return [{"type": "elicitation_request", "params": params}]


def tool(title: str, **fields: Any) -> list[Line]:
    return [{"type": "tool_call", "tool_call_id": "q", "kind": "other", "title": title, "status": "pending"} | fields]


QUESTIONS = {
    "a form": form("Which day do you mean?", DAY),
    "a form without fields that asks": form("Shall I go on?"),
    "choices": permission(CHOICES, title="The day", kind="other"),
    "a question as a permission": permission(ALLOW, title="May I take Monday?"),
    "Claude's tool": tool("Question", name="AskUserQuestion"),
    "OpenCode's tool": tool("question"),
    "a tool": tool("ask_user", raw_input={"question": "Which day?"}),
}
NO_QUESTIONS = {
    "nothing": say("I took Monday."),
    "permission for a command": permission(ALLOW, title="rm -rf build?", kind="execute", rawInput={"command": "rm"}),
    "permission for a call that is known": [
        *tool("write a.txt", kind="edit", raw_input={"path": "a.txt"}),
        *permission(ALLOW, title="write a.txt?"),
    ],
    "permission for a tool of a server": permission(ALLOW, title="mail: archive_mail", kind="other"),
    "permission to leave a plan": permission([*CHOICES, *ALLOW], title="Ready to code?", kind="switch_mode"),
    "a confirmation": form("Allow the server mail to be used"),
    "work": [*shell("echo 'which day?'"), *file_call("read", "a.txt")],
}


@pytest.mark.parametrize("how", QUESTIONS)
def test_asking_is_right_where_something_is_open_and_wrong_where_nothing_is(how: str) -> None:
    steps = [say("Let me see."), QUESTIONS[how]]
    assert scored(Asked(underspecified=True), *steps).reward == 1.0
    assert scored(Asked(underspecified=False), *steps).reward == 0.0
    result = scored(Asked(underspecified=False, unneeded=0.5), *steps)
    assert result.reward == 0.5
    assert [(event.step, event.value) for event in result.events] == [(1, 0.5), (None, 0.5)]


@pytest.mark.parametrize("how", NO_QUESTIONS)
def test_not_asking_is_wrong_where_something_is_open_and_right_where_nothing_is(how: str) -> None:
    assert scored(Asked(underspecified=True), NO_QUESTIONS[how]).reward == 0.0
    result = scored(Asked(underspecified=False, unneeded=0.5), NO_QUESTIONS[how])
    assert (result.reward, len(result.events)) == (1.0, 1)


def test_only_the_question_that_is_meant_counts() -> None:
    about = Asked(underspecified=True, about="(?i)which day|monday")
    assert scored(about, form("Which day do you mean?", DAY)).reward == 1.0
    assert scored(about, form("Which color?", DAY)).reward == 0.0


def test_other_tools_that_ask_are_named() -> None:
    assert scored(Asked(underspecified=True, tools=("*clarify",)), tool("desk_clarify")).reward == 1.0
    assert scored(Asked(underspecified=True), tool("desk_clarify")).reward == 0.0


@pytest.mark.parametrize(
    ("said", "value"),
    [
        (say("Which day do you mean?"), 1.0),
        ([*say("Which day "), *say("do you mean?\n")], 1.0),
        (say("Which day? I took Monday."), 0.0),
        ([*say("Is it there?"), *shell("ls")], 0.0),
        ([], 0.0),
    ],
)
def test_a_turn_that_ends_with_a_question_counts_if_the_task_says_so(said: list[Line], value: float) -> None:
    assert scored(Asked(underspecified=True, in_words=True), said, say("Done.")).reward == value
    assert scored(Asked(underspecified=True), said).reward == 0.0
