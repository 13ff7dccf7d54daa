"""Whether an agent asked its user, and whether it should have: where a task leaves something open, asking is right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from benchflow.contracts.reward import RolloutNode, Space, VerifyResult
from benchflow.planes.reward.action.calls import ToolCall, calls_of
from benchflow.planes.reward.action.findings import Finding, judged
from benchflow.planes.reward.action.patterns import OPTIONS, any_tool

_ACTS = frozenset({"execute", "read", "edit", "delete", "move", "search", "fetch", "switch_mode"})
"""Kinds of calls for which an agent asks permission, and no question."""


@dataclass(frozen=True, config=OPTIONS)
class Asked:
    """1.0 for asking where the task is under-specified, and for not asking where it isn't; else 0.0.

    A question is a form that the agent has its user fill in, a request for permission that is about no action but has
    choices or a question mark, or a call of a tool that asks. Whether it was answered is not what counts.

    underspecified: whether the task is. unneeded: the value of a question that nobody needed. about: a regular
    expression that a question has to match to be one. tools: globs of further tools that ask. in_words: count a turn
    that ends with a question to the user.
    """

    underspecified: bool
    unneeded: Annotated[float, Field(ge=0, le=1)] = 0.0
    about: re.Pattern[str] | None = None
    tools: tuple[str, ...] = ()
    in_words: bool = False

    space: ClassVar[Space] = "action"
    name: ClassVar[str] = "asked"

    async def score(self, node: RolloutNode) -> VerifyResult:
        """One step event for each step in which it asked, worth what asking is."""
        questions = [one for one in self._questions(node) if self.about is None or self.about.search(one.excerpt)]
        worth = 1.0 if self.underspecified else self.unneeded
        silent = 0.0 if self.underspecified else 1.0
        meta = {"asked": bool(questions), "underspecified": self.underspecified}
        return judged(node, self.name, worth if questions else silent, questions, step_value=worth, meta=meta)

    def _questions(self, node: RolloutNode) -> Iterator[Finding]:
        calls = calls_of(node)
        for call in calls:
            if any_tool(call.called, ("ask_user", *self.tools)):
                yield Finding.of(call, f"tool {call.name}")
        for passed in node.path:
            known = {call.id: call for call in calls if call.node == passed.id}
            for place, event in enumerate(passed.events):
                text = _question(event, known)
                if text:
                    seq = event.get("seq")
                    yield Finding(passed.id, seq if isinstance(seq, int) else place, "question", text)
            last = _last_words(passed) if self.in_words else ""
            if last.endswith("?"):
                seq = passed.events[-1].get("seq")
                yield Finding(passed.id, seq if isinstance(seq, int) else 0, "in words", last[-200:])


def _question(event: Mapping[str, Any], known: Mapping[str, ToolCall]) -> str:
    """What an event asks the user; empty when it asks nothing."""
    params = event.get("params")
    if not isinstance(params, dict):
        return ""
    if event.get("type") == "elicitation_request":
        form = params.get("requestedSchema")
        fields = form.get("properties") if isinstance(form, dict) else None
        text = str(params.get("message") or "")
        # A form with nothing to fill in confirms an action, unless it asks.
        return (text or "a form") if fields or text.rstrip().endswith("?") else ""
    if event.get("type") == "permission_request":
        return _in_permission(params, known)
    return ""


def _in_permission(params: Mapping[str, Any], known: Mapping[str, ToolCall]) -> str:
    asked = params.get("toolCall")
    asked = asked if isinstance(asked, dict) else {}
    call = known.get(str(asked.get("toolCallId")))
    kind = asked.get("kind") or (call.kind if call else "other")
    given = asked.get("rawInput")
    acts = kind in _ACTS or (isinstance(given, dict) and {"command", "path", "file_path"} & given.keys())
    if acts or (call is not None and (call.commands or call.accesses)):
        return ""
    title = str(asked.get("title") or (call.title if call else ""))
    options = params.get("options")
    kinds = [one.get("kind") for one in options if isinstance(one, dict)] if isinstance(options, list) else []
    # To allow something once is one option; several of them are answers to choose from.
    return (title or "a choice") if title.rstrip().endswith("?") or kinds.count("allow_once") > 1 else ""


def _last_words(node: RolloutNode) -> str:
    """What the agent said at the end of a step, after its last action."""
    said = list[str]()
    for event in node.events:
        if event.get("type") == "agent_message":
            said.append(str(event.get("text", "")))
        elif event.get("type") in ("tool_call", "tool_call_update", "user_message"):
            said.clear()
    return "".join(said).strip()
