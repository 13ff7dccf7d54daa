"""Findings of action-space functions, and the result of such a function with one event for each step with findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from benchflow.contracts.reward import RewardEvent, RolloutNode, VerifyResult
from benchflow.planes.reward.action.tool_calls import ToolCall

_MAX_LISTED = 20
_MAX_TEXT = 200


@dataclass(frozen=True)
class ActionFinding:
    """Evidence at a line of the trajectory."""

    node: str
    """Id of the node."""

    seq: int
    """Sequence number of the line."""

    what: str
    """Kind of the finding, in a word or two."""

    excerpt: str = ""
    """Excerpt of the call or text."""

    path: str | None = None
    """Path of the file that it is about; None for none."""

    @classmethod
    def from_call(cls, call: ToolCall, what: str, excerpt: str | None = None, path: str | None = None) -> ActionFinding:
        """Make a finding about a call, by default with the excerpt of the call."""
        return cls(call.node, call.seq, what, call.excerpt if excerpt is None else excerpt, path)

    @property
    def meta(self) -> dict[str, Any]:
        """Return the finding as a dictionary for an event's `meta`, with long texts cut."""
        where = {} if self.path is None else {"path": self.path[:_MAX_TEXT]}
        return {"seq": self.seq, "what": self.what, "excerpt": self.excerpt[:_MAX_TEXT]} | where


def make_result(
    node: RolloutNode,
    source: str,
    value: float,
    findings: Sequence[ActionFinding],
    *,
    step_value: float = 0.0,
    meta: dict[str, Any] | None = None,
) -> VerifyResult:
    """Return the result of an action-space function, with its findings as evidence.

    Args:
        node: Node that is scored.
        source: Name of the function.
        value: Reward of the whole.
        findings: Evidence, of which each event lists at most 20.
        step_value: Value of the event of a step with findings.
        meta: Further entries for `meta` of the event of the whole.
    """
    now = datetime.now(UTC)
    events = []
    for passed in node.path:
        here = [one.meta for one in findings if one.node == passed.id]
        if here:
            about = {"node": passed.id, "findings": here[:_MAX_LISTED], "found": len(here)}
            events.append(_make_event(source, step_value, now, step=passed.step, granularity="step", meta=about))
    whole = {"findings": [one.meta for one in findings[:_MAX_LISTED]], "found": len(findings)} | (meta or {})
    events.append(_make_event(source, value, now, meta=whole))
    return VerifyResult(reward=value, events=events, space="action")


def _make_event(source: str, value: float, now: datetime, **fields: Any) -> RewardEvent:
    return RewardEvent(space="action", value=value, source=source, ts=now, **fields)
