"""The narrative of a step, for checks and judges: its plans, thoughts, messages and actions, merged and in order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from benchflow.contracts.reward import RolloutNode
from benchflow.planes.reward.action.tool_calls import ToolCall, list_calls
from benchflow.planes.reward.reasoning.outcomes import Outcome, read_outcomes

Kind = Literal["plan", "thought", "message", "action", "prompt"]

MAX_TEXT = 4000
MAX_INPUT = 2000
MAX_OUTPUT = 1500
MAX_STEP = 60_000
"""Maximum numbers of characters shown of a text, of an action's input and output, and of a step."""

_SAID: Mapping[str, Kind] = {"agent_thought": "thought", "agent_message": "message", "user_message": "prompt"}
_NO_ACTIONS = ("plan", "think")
"""Tools by which agents state their thoughts."""


@dataclass
class StoryEntry:
    """A plan, thought, message, prompt or action of a step."""

    kind: Kind
    seq: int
    """Sequence number of its first line."""

    text: str = ""
    """Text of a statement or prompt; of a tool call, its input as JSON."""

    call: ToolCall | None = None
    """Tool call of an action, or of a tool for plans or thoughts; else None."""

    outcome: Outcome | None = None
    """Outcome of that call; None if there is none."""

    @property
    def is_statement(self) -> bool:
        """Return whether the agent states its thoughts by it."""
        return self.kind in ("plan", "thought", "message") and bool(self.text.strip())


@dataclass(frozen=True)
class StepStory:
    """The narrative of a rollout's step."""

    node: RolloutNode
    """Node that the step led to."""

    entries: tuple[StoryEntry, ...]

    @cached_property
    def actions(self) -> list[StoryEntry]:
        """Return the actions."""
        return [entry for entry in self.entries if entry.kind == "action"]

    @property
    def is_active(self) -> bool:
        """Return whether the agent stated or did anything."""
        return bool(self.actions) or any(entry.is_statement for entry in self.entries)

    @property
    def reasons(self) -> list[StoryEntry]:
        """Return the statements beside the answer: plans, thoughts, and messages before the last action."""
        last = self.actions[-1].seq if self.actions else -1
        return [e for e in self.entries if e.is_statement and (e.kind != "message" or e.seq < last)]

    @property
    def has_stated_first(self) -> bool:
        """Return whether anything was stated before the first action."""
        first = self.actions[0].seq if self.actions else None
        return any(entry.is_statement and (first is None or entry.seq < first) for entry in self.entries)

    def format_text(self, limit: int = MAX_STEP) -> str:
        """Return the step as text for a judge, of at most about `limit` characters; a note replaces omitted text."""
        parts = [_format_entry(entry) for entry in self.entries]
        return cut("\n\n".join(part for part in parts if part), min(limit, MAX_STEP))


def read_stories(node: RolloutNode) -> list[StepStory]:
    """Return the narratives of the steps on the path to a node in which the agent stated or did anything."""
    calls = {call.seq: call for call in list_calls(node)}
    outcomes = read_outcomes(node.trajectory)
    places = iter(range(len(node.trajectory)))
    stories = [StepStory(one, tuple(_read_entries(one, calls, outcomes, places))) for one in node.path]
    return [story for story in stories if story.is_active]


def _read_entries(
    node: RolloutNode, calls: Mapping[int, ToolCall], outcomes: Mapping[int, Outcome], places: Iterator[int]
) -> list[StoryEntry]:
    """Return the entries of one step.

    Args:
        node: Node that the step led to.
        calls: Tool calls by sequence number.
        outcomes: Outcomes by sequence number.
        places: Yields the index of each line in the trajectory, for lines without a sequence number.
    """
    found: list[StoryEntry] = []
    for event in node.events:
        place = next(places)
        seq = event["seq"] if isinstance(event.get("seq"), int) else place
        kind = str(event.get("type"))
        if kind in _SAID:
            # A text comes in chunks, with reports of usage in between.
            if found and found[-1].kind == _SAID[kind]:
                found[-1].text += str(event.get("text", ""))
            else:
                found.append(StoryEntry(_SAID[kind], seq, str(event.get("text", ""))))
        elif kind == "plan":
            lines = [f"- [{status}] {content}" for content, status in read_plan(event)]
            found.append(StoryEntry("plan", seq, "\n".join(lines)))
        elif kind in ("tool_call", "tool_call_update") and seq in calls:
            call = calls[seq]
            as_text = json.dumps(call.input, default=str, ensure_ascii=False)
            kind_of: Kind = "action"
            if call.name in _NO_ACTIONS:
                kind_of = "plan" if call.name == "plan" else "thought"
            found.append(StoryEntry(kind_of, seq, as_text, call, outcomes.get(seq)))
    return found


def read_plan(event: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (content, status) of the entries in a plan's event."""
    entries = event.get("entries")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            yield str(entry.get("content", "")), str(entry.get("status", ""))


_LABELS: Mapping[Kind, str] = {"plan": "PLAN", "thought": "THOUGHT", "message": "SAID", "prompt": "WAS ASKED"}


def _format_entry(entry: StoryEntry) -> str:
    if entry.kind != "action" or entry.call is None:
        return (
            f"[{entry.seq}] {_LABELS.get(entry.kind, '')}:\n{cut(entry.text, MAX_TEXT)}" if entry.text.strip() else ""
        )
    call, outcome = entry.call, entry.outcome or Outcome()
    text = f"[{entry.seq}] ACTION {cut(call.name, 200)}: {cut(entry.text, MAX_INPUT)}"
    if call.title and call.title not in entry.text:
        text += f"\n{cut(call.title, 300)}"
    code = "" if outcome.exit_code is None else f", exit status {outcome.exit_code}"
    text += f"\nCAME TO {outcome.status or 'nothing that is told'}{code}"
    return f"{text}:\n{cut(outcome.text, MAX_OUTPUT)}" if outcome.text.strip() else text


def cut(text: str, limit: int) -> str:
    """Return a text of at most about `limit` characters: of a longer one the middle is replaced by a note."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters are left out here …]\n{text[-half:]}"


def list_seqs(entries: Sequence[StoryEntry]) -> list[int]:
    """Return the sequence numbers of the first 20 entries."""
    return [entry.seq for entry in entries[:20]]
