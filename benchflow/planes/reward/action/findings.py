"""What a function of the action space found, as events: one for each step where something is, one for the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from benchflow.contracts.reward import RewardEvent, RolloutNode, VerifyResult
from benchflow.planes.reward.action.calls import ToolCall

_MOST = 20
_LONGEST = 200


@dataclass(frozen=True)
class Finding:
    """Something at a place in the trajectory. seq: of its line. what: in a word or two. excerpt: of what was done."""

    node: str
    seq: int
    what: str
    excerpt: str = ""
    path: str | None = None

    @classmethod
    def of(cls, call: ToolCall, what: str, excerpt: str | None = None, path: str | None = None) -> Finding:
        return cls(call.node, call.seq, what, call.excerpt if excerpt is None else excerpt, path)

    @property
    def shown(self) -> dict[str, Any]:
        where = {} if self.path is None else {"path": self.path[:_LONGEST]}
        return {"seq": self.seq, "what": self.what, "excerpt": self.excerpt[:_LONGEST]} | where


def judged(
    node: RolloutNode,
    source: str,
    value: float,
    findings: Sequence[Finding],
    *,
    step_value: float = 0.0,
    meta: dict[str, Any] | None = None,
) -> VerifyResult:
    """The result of a function: its value, with what was found as evidence.

    step_value: what a step is worth in which something was found. meta: more of the whole.
    """
    now = datetime.now(UTC)
    events = []
    for passed in node.path:
        here = [one.shown for one in findings if one.node == passed.id]
        if here:
            about = {"node": passed.id, "findings": here[:_MOST], "found": len(here)}
            events.append(_event(source, step_value, now, step=passed.step, granularity="step", meta=about))
    whole = {"findings": [one.shown for one in findings[:_MOST]], "found": len(findings)} | (meta or {})
    events.append(_event(source, value, now, meta=whole))
    return VerifyResult(reward=value, events=events, space="action")


def _event(source: str, value: float, now: datetime, **fields: Any) -> RewardEvent:
    return RewardEvent(space="action", value=value, source=source, ts=now, **fields)
