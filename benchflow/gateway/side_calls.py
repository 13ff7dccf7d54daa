"""Detection of side calls, which are no part of the task, by the rules in `side_calls.toml`."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Literal

from benchflow.contracts.base import Model
from benchflow.gateway.dialects import ParsedRequest


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

    def holds(self, agent: str, asked: ParsedRequest) -> bool:
        """Return whether a call of an agent matches."""
        return (
            (not self.agents or agent.removeprefix("acpx/") in self.agents)
            and self.tools in (None, asked.tools)
            and (self.where is None or self.text in (asked.system if self.where == "system" else asked.user))
        )


@functools.cache
def rules() -> tuple[SideCallRule, ...]:
    """Return the rules, in the order in which they are tried."""
    data = tomllib.loads(resources.files(__package__).joinpath("side_calls.toml").read_text(encoding="utf-8"))
    return tuple(SideCallRule.model_validate(row) for row in data["rule"])


def side_reason(agent: str, asked: ParsedRequest) -> str | None:
    """Return the reason why a call of an agent is no part of the task; None for a main call."""
    return next((rule.reason for rule in rules() if rule.holds(agent, asked)), None)
