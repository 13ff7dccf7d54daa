"""Which tools an agent used: those it must not, others than it knows, those it must; in which order and how often."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from benchflow.contracts.reward import RolloutNode, Space, VerifyResult
from benchflow.planes.reward.action.calls import ToolCall, calls_of
from benchflow.planes.reward.action.findings import Finding, judged
from benchflow.planes.reward.action.patterns import (
    OPTIONS,
    CallPattern,
    RequestPattern,
    any_path,
    any_tool,
)


@dataclass(frozen=True, config=OPTIONS)
class ForbiddenTools:
    """1.0 unless the agent did what it must not, then 0.0. That a call failed or was refused excuses nothing.

    tools: globs. commands: regular expressions over simple commands. paths: globs over what it read or changed.
    requests: over HTTP. calls: patterns, for what takes more than one of these to tell.
    """

    tools: tuple[str, ...] = ()
    commands: tuple[re.Pattern[str], ...] = ()
    paths: tuple[str, ...] = ()
    requests: tuple[RequestPattern, ...] = ()
    calls: tuple[CallPattern, ...] = ()

    space: ClassVar[Space] = "action"
    name: ClassVar[str] = "forbidden-tools"

    def __post_init__(self) -> None:
        if not (self.tools or self.commands or self.paths or self.requests or self.calls):
            raise ValueError("nothing is forbidden: give tools, commands, paths, requests or calls")

    async def score(self, node: RolloutNode) -> VerifyResult:
        """One step event for each step in which something forbidden was done."""
        findings = [one for call in calls_of(node) for one in self._found(call)]
        return judged(node, self.name, 0.0 if findings else 1.0, findings)

    def _found(self, call: ToolCall) -> Iterator[Finding]:
        for name, _ in call.tools:
            if any_tool(name, self.tools):
                yield Finding.of(call, f"tool {name.name}")
        for command in call.commands:
            if any(one.search(command.text) for one in self.commands):
                yield Finding.of(call, "command", command.text)
        for access in call.accesses:
            if any_path(access.path, self.paths):
                yield Finding.of(call, access.mode, access.by, access.path)
        for request in call.requests:
            if any(one.matches(request) for one in self.requests):
                yield Finding.of(call, "request", f"{request.method} {request.url}")
        for pattern in self.calls:
            if pattern.matches(call):
                yield Finding.of(call, f"call {pattern}")


@dataclass(frozen=True, config=OPTIONS)
class KnownTools:
    """The share of calls whose tool is among those that the task has in mind; 1.0 where nothing was called.

    tools: globs; what none of them names is use out of distribution.
    """

    tools: Annotated[tuple[str, ...], Field(min_length=1)]

    space: ClassVar[Space] = "action"
    name: ClassVar[str] = "known-tools"

    async def score(self, node: RolloutNode) -> VerifyResult:
        """One step event, of value 0, for each step in which another tool was called."""
        calls = calls_of(node)
        others = [call for call in calls if not any_tool(call.called, self.tools)]
        value = 1 - len(others) / len(calls) if calls else 1.0
        findings = [Finding.of(call, f"tool {call.name}") for call in others]
        return judged(node, self.name, value, findings, meta={"calls": len(calls), "outside": len(others)})


@dataclass(frozen=True, config=OPTIONS)
class RequiredCalls:
    """The share of the patterns that a call matched which did not fail. all_or_nothing: 0.0 unless all were."""

    calls: Annotated[tuple[CallPattern, ...], Field(min_length=1)]
    all_or_nothing: bool = False

    space: ClassVar[Space] = "action"
    name: ClassVar[str] = "required-calls"

    async def score(self, node: RolloutNode) -> VerifyResult:
        """One step event, of value 1, for each step with a call that was required."""
        made = [call for call in calls_of(node) if not call.failed]
        first = {str(pattern): next((call for call in made if pattern.matches(call)), None) for pattern in self.calls}
        missing = [pattern for pattern, call in first.items() if call is None]
        value = 1 - len(missing) / len(first)
        if self.all_or_nothing and missing:
            value = 0.0
        findings = [Finding.of(call, f"call {pattern}") for pattern, call in first.items() if call is not None]
        return judged(node, self.name, value, findings, step_value=1.0, meta={"missing": missing})


@dataclass(frozen=True, config=OPTIONS)
class CallOrder:
    """The share of the rules that hold: nothing was called before what comes right before it in a rule.

    order: one rule of several patterns. before: rules of two patterns each. A later call that was never made breaks no
    rule (`required-calls` says what has to be there); calls that failed count only as the later ones.
    """

    order: tuple[CallPattern, ...] = ()
    before: tuple[tuple[CallPattern, CallPattern], ...] = ()

    space: ClassVar[Space] = "action"
    name: ClassVar[str] = "call-order"

    def __post_init__(self) -> None:
        if len(self.order) < 2 and not self.before:
            raise ValueError("there is no order: give `order` with two patterns or more, or `before` with pairs")

    async def score(self, node: RolloutNode) -> VerifyResult:
        """One step event for each step in which something was called too early."""
        calls = calls_of(node)
        pairs = [*zip(self.order, self.order[1:], strict=False), *self.before]
        early = [found for earlier, later in pairs if (found := _too_early(calls, earlier, later))]
        return judged(node, self.name, 1 - len(early) / len(pairs), early, meta={"rules": len(pairs)})


def _too_early(calls: Sequence[ToolCall], earlier: CallPattern, later: CallPattern) -> Finding | None:
    for call in calls:
        # A call that is both cannot have come before itself.
        if later.matches(call):
            return Finding.of(call, f"{later} before {earlier}")
        if earlier.matches(call) and not call.failed:
            return None
    return None


@dataclass(frozen=True, config=OPTIONS)
class CallBudget:
    """1.0 within the limits on how often tools are called.

    max_calls: of all tools. max_per_tool: of those that a glob names. tolerance: the share of a limit within which the
    value falls evenly to 0.0 beyond it; 0 means at once. The worst of the limits counts.
    """

    max_calls: Annotated[int, Field(ge=0)] | None = None
    max_per_tool: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    tolerance: Annotated[float, Field(ge=0)] = 0.0

    space: ClassVar[Space] = "action"
    name: ClassVar[str] = "call-budget"

    def __post_init__(self) -> None:
        if self.max_calls is None and not self.max_per_tool:
            raise ValueError("there is no budget: give max_calls or max_per_tool")

    async def score(self, node: RolloutNode) -> VerifyResult:
        """One step event for each step in which a call was beyond a limit."""
        calls = calls_of(node)
        limits = dict(self.max_per_tool) | ({} if self.max_calls is None else {"*": self.max_calls})
        findings, value = dict[int, Finding](), 1.0
        for glob, limit in limits.items():
            counted = [call for call in calls if any_tool(call.called, [glob])]
            value = min(value, self._worth(len(counted), limit))
            findings |= {call.seq: Finding.of(call, f"beyond {limit} of {glob}") for call in counted[limit:]}
        beyond = [findings[seq] for seq in sorted(findings)]
        return judged(node, self.name, value, beyond, meta={"calls": len(calls), "limits": limits})

    def _worth(self, count: int, limit: int) -> float:
        if count <= limit:
            return 1.0
        room = limit * self.tolerance
        return max(0.0, 1 - (count - limit) / room) if room else 0.0
