"""Translation of an agent's updates to trajectory lines. Nothing is dropped: an unknown update is kept as it came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

from benchflow.contracts.agent import Line, TurnCounts
from benchflow.contracts.ids import short_hash
from benchflow.contracts.rollout_records import Usage
from benchflow.errors import ACPError

_TEXT = {
    "agent_message_chunk": "agent_message",
    "agent_thought_chunk": "agent_thought",
    "user_message_chunk": "user_message",
}

_MAX_AMOUNT = 2**53
"""Limit of tokens or money: no real amount exceeds it, and a too large integer cannot be converted to a float."""

_MAX_CALL_ID = 200
"""Maximum characters of a tool call's id; longer ones are hashed. Real ones have 40."""

_TOOL_FIELDS = {
    "name": "name",
    "kind": "kind",
    "title": "title",
    "status": "status",
    "content": "content",
    "locations": "locations",
    "rawInput": "raw_input",
    "rawOutput": "raw_output",
    # Some agents put a command's output here.
    "_meta": "meta",
}


class Reading(TurnCounts):
    """The state of a turn that is read: its counts. The same messages give the same lines."""

    def dump(self) -> dict[str, Any]:
        """Return the state that `restore` takes, as JSON."""
        usage = self.usage.model_dump(mode="json") if self.usage else None
        return {"tool_calls": sorted(self.tool_calls), "usage": usage}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of another reading."""
        self.tool_calls = set(state["tool_calls"])
        self.usage = Usage.model_validate(state["usage"]) if state["usage"] else None

    def read_update(self, update: Any) -> list[Line]:
        """Return the trajectory lines of one `session/update`, and count its tool calls and cost."""
        if not isinstance(update, dict):
            return [{"type": "update", "update": update}]
        kind = str(update.get("sessionUpdate"))
        content = update.get("content")
        if kind in _TEXT and isinstance(content, dict) and content.get("type") == "text":
            return [{"type": _TEXT[kind], "text": str(content.get("text", ""))}]
        if kind in ("tool_call", "tool_call_update") and update.get("toolCallId") is not None:
            return [self._read_tool_call(update)]
        if kind == "plan":
            return [{"type": "plan", "entries": update.get("entries", [])}]
        if kind == "usage_update":
            self._note_cost(update)
        return [{"type": "update", "update": update}]

    def read_result(self, result: dict[str, Any]) -> None:
        """Count the tokens that the answer to the prompt reports."""
        usage = result.get("usage")
        if isinstance(usage, dict):
            before = self.usage or Usage()
            self.usage = before.model_copy(
                update={
                    "input_tokens": _parse_count(usage.get("inputTokens")),
                    "output_tokens": _parse_count(usage.get("outputTokens")),
                    "cached_tokens": _parse_count(usage.get("cachedReadTokens")),
                    "reasoning_tokens": _parse_count(usage.get("thoughtTokens")),
                }
            )

    def _read_tool_call(self, update: dict[str, Any]) -> dict[str, Any]:
        call = str(update["toolCallId"])
        if len(call) > _MAX_CALL_ID:
            # All ids are held, and noted now and then, to the end of the turn.
            call = short_hash(call, 16)
        # Some agents never announce a call: then its first update stands for the announcement.
        kind = "tool_call_update" if call in self.tool_calls else "tool_call"
        self.tool_calls.add(call)
        said = {ours: update[theirs] for theirs, ours in _TOOL_FIELDS.items() if update.get(theirs) is not None}
        if kind == "tool_call":
            said = {"kind": "other", "title": "", "status": "pending", "content": []} | said
        return {"type": kind, "tool_call_id": call} | said

    def _note_cost(self, update: dict[str, Any]) -> None:
        cost = update.get("cost")
        amount = cost.get("amount") if isinstance(cost, dict) else None
        if isinstance(cost, dict) and _is_amount(amount):
            before = self.usage or Usage()
            self.usage = before.model_copy(
                update={"cost": float(amount), "currency": str(cost.get("currency") or "USD")}
            )


def _is_amount(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a number of tokens or of money. To Python, `True` is an integer, and NaN a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_AMOUNT


def _parse_count(value: Any) -> int:
    """Return a number of tokens; 0 for a value that is none."""
    return int(value) if _is_amount(value) else 0


def parse_noise(raw: bytes, make_error: Callable[[str], ACPError]) -> Line:
    """Return the trajectory line for output that is no JSON. Raise an error if it is a broken message.

    Args:
        raw: Bytes of the output.
        make_error: Function that returns the error, from a phrase that describes the output.
    """
    if raw.lstrip()[:1] in (b"{", b"["):
        raise make_error(f"a broken message: {truncate(raw)}")
    try:
        return {"type": "noise", "text": raw.decode()}
    except UnicodeDecodeError as error:
        raise make_error(f"what is not UTF-8: {truncate(raw)}") from error


def truncate(raw: bytes) -> str:
    """Return the first 300 bytes of an output as text, for an error message."""
    text = raw[:300].decode(errors="replace")
    return text if len(raw) <= 300 else f"{text}…"


def omit_content(params: dict[str, Any]) -> dict[str, Any]:
    """Return a request's parameters for the trajectory, without the content of large files."""
    return {key: value for key, value in params.items() if key != "content" or len(str(value)) < 10_000}
