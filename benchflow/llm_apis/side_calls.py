"""Detection of side calls, which agents make beside their task, by the rules in `side_calls.toml`."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Literal

from benchflow.contracts.base import Model
from benchflow.llm_apis.dialect import ParsedRequest


class SideCallRule(Model):
    """One rule of `side_calls.toml`. All of its conditions must hold."""

    reason: str
    """Reason that the record has for calls that match."""

    agents: tuple[str, ...] = ()
    """Names of agents in the registry, without `acpx/`; empty: all."""

    tools: bool | None = None
    """Whether the call offers tools; None: either."""

    where: Literal["system", "user"] | None = None
    """Text in which `text` must occur: the system prompt or the last user message; None: no such condition."""

    text: str = ""
    """Text by which the call is recognised."""

    def holds(self, agent: str, request: ParsedRequest) -> bool:
        """Return whether a call of an agent matches."""
        return (
            (not self.agents or agent.removeprefix("acpx/") in self.agents)
            and self.tools in (None, request.has_tools)
            and (self.where is None or self.text in (request.system if self.where == "system" else request.user))
        )


@functools.cache
def side_call_rules() -> tuple[SideCallRule, ...]:
    """Return the rules, in the order in which they are tried."""
    data = tomllib.loads(resources.files(__package__).joinpath("side_calls.toml").read_text(encoding="utf-8"))
    return tuple(SideCallRule.model_validate(row) for row in data["rule"])


def side_reason(agent: str, request: ParsedRequest) -> str | None:
    """Return the reason why a call of an agent is no part of the task; None for a main call."""
    return next((rule.reason for rule in side_call_rules() if rule.holds(agent, request)), None)
