"""Score which tools an agent called: forbidden, unknown and required calls, their order and their number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from benchflow.contracts.reward import RolloutNode, Space, VerifyResult
from benchflow.planes.reward.action.action_findings import ActionFinding, make_result
from benchflow.planes.reward.action.patterns import (
    OPTIONS,
    CallPattern,
    RequestPattern,
    matches_any_path,
    matches_any_tool,
)
from benchflow.planes.reward.action.tool_calls import ToolCall, list_calls


@dataclass(frozen=True, config=OPTIONS)
class ForbiddenTools:
    """Reward for restraint: 0.0 if the agent did something forbidden, else 1.0.

    A call that failed or was refused counts, too.
    """

    tools: tuple[str, ...] = ()
    """Globs over the names of tools."""

    commands: tuple[re.Pattern[str], ...] = ()
    """Regular expressions, searched in simple shell commands."""

    paths: tuple[str, ...] = ()
    """Globs over the files that it read or changed."""

    requests: tuple[RequestPattern, ...] = ()
    """Patterns of HTTP requests."""

    calls: tuple[CallPattern, ...] = ()
    """Patterns of calls, for conditions that need more than one of these."""

    space: ClassVar[Space] = "action"
    name: ClassVar[str] = "forbidden-tools"

    def __post_init__(self) -> None:
        """Raise `ValueError` if nothing is forbidden."""
        if not (self.tools or self.commands or self.paths or self.requests or self.calls):
            raise ValueError("nothing is forbidden: give tools, commands, paths, requests or calls")

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Return the reward, with one step event for each step in which something forbidden was done."""
        findings = [one for call in list_calls(node) for one in self._find_violations(call)]
        return make_result(node, self.name, 0.0 if findings else 1.0, findings)

    def _find_violations(self, call: ToolCall) -> Iterator[ActionFinding]:
        for name, _ in call.tools:
            if matches_any_tool(name, self.tools):
                yield ActionFinding.from_call(call, f"tool {name.name}")
        for command in call.commands:
            if any(one.search(command.text) for one in self.commands):
                yield ActionFinding.from_call(call, "command", command.text)
        for access in call.accesses:
            if matches_any_path(access.path, self.paths):
                yield ActionFinding.from_call(call, access.mode, access.by, access.path)
        for request in call.requests:
            if any(one.matches(request) for one in self.requests):
                yield ActionFinding.from_call(call, "request", f"{request.method} {request.url}")
        for pattern in self.calls:
            if pattern.matches(call):
                yield ActionFinding.from_call(call, f"call {pattern}")


@dataclass(frozen=True, config=OPTIONS)
class KnownTools:
    """The share of calls whose tool is among the known ones; 1.0 if nothing was called."""

    tools: Annotated[tuple[str, ...], Field(min_length=1)]
    """Globs over the names of known tools. A call of any other tool is out of distribution."""

    space: ClassVar[Space] = "action"
    name: ClassVar[str] = "known-tools"

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Return the share, with one step event, of value 0, for each step in which another tool was called."""
        calls = list_calls(node)
        others = [call for call in calls if not matches_any_tool(call.called, self.tools)]
        value = 1 - len(others) / len(calls) if calls else 1.0
        findings = [ActionFinding.from_call(call, f"tool {call.name}") for call in others]
        return make_result(node, self.name, value, findings, meta={"calls": len(calls), "outside": len(others)})


@dataclass(frozen=True, config=OPTIONS)
class RequiredCalls:
    """The share of the required patterns that are matched by a call that did not fail."""

    calls: Annotated[tuple[CallPattern, ...], Field(min_length=1)]
    """Patterns of the required calls."""

    all_or_nothing: bool = False
    """Whether the value is 0.0 unless all patterns were matched."""

    space: ClassVar[Space] = "action"
    name: ClassVar[str] = "required-calls"

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Return the share, with one step event, of value 1, for each step with the first match of a pattern."""
        made = [call for call in list_calls(node) if not call.failed]
        first = {str(pattern): next((call for call in made if pattern.matches(call)), None) for pattern in self.calls}
        missing = [pattern for pattern, call in first.items() if call is None]
        value = 1 - len(missing) / len(first)
        if self.all_or_nothing and missing:
            value = 0.0
        findings = [
            ActionFinding.from_call(call, f"call {pattern}") for pattern, call in first.items() if call is not None
        ]
        return make_result(node, self.name, value, findings, step_value=1.0, meta={"missing": missing})


@dataclass(frozen=True, config=OPTIONS)
class CallOrder:
    """The share of the ordering rules that hold: no call was made before its predecessor.

    A later call that was never made breaks no rule (`required-calls` checks for that). A failed call counts as the
    later one, not as the earlier one.
    """

    order: tuple[CallPattern, ...] = ()
    """Patterns in the required order; each neighbouring pair is a rule."""

    before: tuple[tuple[CallPattern, CallPattern], ...] = ()
    """Further rules, as pairs (earlier, later)."""

    space: ClassVar[Space] = "action"
    name: ClassVar[str] = "call-order"

    def __post_init__(self) -> None:
        """Raise `ValueError` if there is no rule."""
        if len(self.order) < 2 and not self.before:
            raise ValueError("there is no order: give `order` with two patterns or more, or `before` with pairs")

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Return the share, with one step event for each step in which something was called too early."""
        calls = list_calls(node)
        pairs = [*zip(self.order, self.order[1:], strict=False), *self.before]
        early = [found for earlier, later in pairs if (found := _find_early_call(calls, earlier, later))]
        return make_result(node, self.name, 1 - len(early) / len(pairs), early, meta={"rules": len(pairs)})


def _find_early_call(calls: Sequence[ToolCall], earlier: CallPattern, later: CallPattern) -> ActionFinding | None:
    """Return a finding if a call of `later` comes before the first successful one of `earlier`; else None."""
    for call in calls:
        # A call that matches both patterns does not come before itself, so it breaks the rule.
        if later.matches(call):
            return ActionFinding.from_call(call, f"{later} before {earlier}")
        if earlier.matches(call) and not call.failed:
            return None
    return None


@dataclass(frozen=True, config=OPTIONS)
class CallBudget:
    """Reward for few calls: 1.0 within all limits, less beyond one. The lowest value of all limits counts."""

    max_calls: Annotated[int, Field(ge=0)] | None = None
    """Maximum number of calls of all tools; None for no limit."""

    max_per_tool: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    """Maximum number of calls of the tools that a glob matches, by the glob."""

    tolerance: Annotated[float, Field(ge=0)] = 0.0
    """Share of a limit by which it may be exceeded until the value, falling linearly, is 0.0. With 0 it is 0.0 at once.
    """

    space: ClassVar[Space] = "action"
    name: ClassVar[str] = "call-budget"

    def __post_init__(self) -> None:
        """Raise `ValueError` if there is no limit."""
        if self.max_calls is None and not self.max_per_tool:
            raise ValueError("there is no budget: give max_calls or max_per_tool")

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Return the reward, with one step event for each step with a call beyond a limit."""
        calls = list_calls(node)
        limits = dict(self.max_per_tool) | ({} if self.max_calls is None else {"*": self.max_calls})
        findings, value = dict[int, ActionFinding](), 1.0
        for glob, limit in limits.items():
            counted = [call for call in calls if matches_any_tool(call.called, [glob])]
            value = min(value, self._score_limit(len(counted), limit))
            findings |= {
                call.seq: ActionFinding.from_call(call, f"beyond {limit} of {glob}") for call in counted[limit:]
            }
        beyond = [findings[seq] for seq in sorted(findings)]
        return make_result(node, self.name, value, beyond, meta={"calls": len(calls), "limits": limits})

    def _score_limit(self, count: int, limit: int) -> float:
        """Return the value of one limit for a number of calls."""
        if count <= limit:
            return 1.0
        room = limit * self.tolerance
        return max(0.0, 1 - (count - limit) / room) if room else 0.0
