"""Which calls are no part of the task, by the rules beside this file."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Literal

from benchflow.contracts.base import Model
from benchflow.gateway.dialects import Asked


class Rule(Model):
    """One rule of `side_calls.toml`; the file says what its keys are."""

    reason: str
    agents: tuple[str, ...] = ()
    tools: bool | None = None
    where: Literal["system", "user"] | None = None
    text: str = ""

    def holds(self, agent: str, asked: Asked) -> bool:
        return (
            (not self.agents or agent.removeprefix("acpx/") in self.agents)
            and self.tools in (None, asked.tools)
            and (self.where is None or self.text in (asked.system if self.where == "system" else asked.user))
        )


@functools.cache
def rules() -> tuple[Rule, ...]:
    """In the order in which they are tried."""
    data = tomllib.loads(resources.files(__package__).joinpath("side_calls.toml").read_text(encoding="utf-8"))
    return tuple(Rule.model_validate(row) for row in data["rule"])


def side_reason(agent: str, asked: Asked) -> str | None:
    """Why this call of this agent is no part of the task; None for one that is."""
    return next((rule.reason for rule in rules() if rule.holds(agent, asked)), None)
