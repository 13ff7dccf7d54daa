"""`Asked`: score whether the agent asked its user a question, and whether the task called for one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from benchflow.contracts.reward import RolloutNode, Space, VerifyResult
from benchflow.planes.reward.action.action_findings import ActionFinding, make_result
from benchflow.planes.reward.action.patterns import OPTIONS, matches_any_tool
from benchflow.planes.reward.action.tool_calls import ToolCall, list_calls

_ACTS = frozenset({"execute", "read", "edit", "delete", "move", "search", "fetch", "switch_mode"})
"""Kinds of calls for which an agent requests permission; such a request is not a question."""


@dataclass(frozen=True, config=OPTIONS)
class Asked:
    """Reward for questions: 1.0 for asking if the task is under-specified or not asking if it isn't, else 0.0.

    A question is a form that the agent has its user fill in, a permission request that is about no action but has
    choices or a question mark, or a call of a tool that asks. It counts whether or not it was answered.
    """

    underspecified: bool
    """Whether the task is under-specified."""

    unneeded: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Reward for a question if the task is not under-specified."""

    about: re.Pattern[str] | None = None
    """Regular expression that the text of a question has to match to count; None for any question."""

    tools: tuple[str, ...] = ()
    """Globs over the names of further tools that ask."""

    in_words: bool = False
    """Whether a turn that ends with a question to the user counts, too."""

    space: ClassVar[Space] = "action"
    name: ClassVar[str] = "asked"

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Return the reward, with one step event for each step in which the agent asked."""
        questions = [one for one in self._find_questions(node) if self.about is None or self.about.search(one.excerpt)]
        worth = 1.0 if self.underspecified else self.unneeded
        silent = 0.0 if self.underspecified else 1.0
        meta = {"asked": bool(questions), "underspecified": self.underspecified}
        return make_result(node, self.name, worth if questions else silent, questions, step_value=worth, meta=meta)

    def _find_questions(self, node: RolloutNode) -> Iterator[ActionFinding]:
        """Yield the agent's questions on the path to a node."""
        calls = list_calls(node)
        for call in calls:
            if matches_any_tool(call.called, ("ask_user", *self.tools)):
                yield ActionFinding.from_call(call, f"tool {call.name}")
        for passed in node.path:
            known = {call.id: call for call in calls if call.node == passed.id}
            for place, event in enumerate(passed.events):
                text = _read_question(event, known)
                if text:
                    seq = event.get("seq")
                    yield ActionFinding(passed.id, seq if isinstance(seq, int) else place, "question", text)
            last = _read_final_message(passed) if self.in_words else ""
            if last.endswith("?"):
                seq = passed.events[-1].get("seq")
                yield ActionFinding(passed.id, seq if isinstance(seq, int) else 0, "in words", last[-200:])


def _read_question(event: Mapping[str, Any], known: Mapping[str, ToolCall]) -> str:
    """Return the text of the question that an event asks the user; empty if it asks none.

    Args:
        event: Line of the trajectory.
        known: Tool calls of the node by id, to which permission requests refer.
    """
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
        return _read_permission_question(params, known)
    return ""


def _read_permission_question(params: Mapping[str, Any], known: Mapping[str, ToolCall]) -> str:
    """Return the text of the question in a permission request; empty if it asks to carry out an action."""
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
    # A request to carry out an action has one `allow_once` option; several of them are answers to choose from.
    return (title or "a choice") if title.rstrip().endswith("?") or kinds.count("allow_once") > 1 else ""


def _read_final_message(node: RolloutNode) -> str:
    """Return the agent's messages after the last action or prompt of a step, joined."""
    texts = list[str]()
    for event in node.events:
        if event.get("type") == "agent_message":
            texts.append(str(event.get("text", "")))
        elif event.get("type") in ("tool_call", "tool_call_update", "user_message"):
            texts.clear()
    return "".join(texts).strip()
