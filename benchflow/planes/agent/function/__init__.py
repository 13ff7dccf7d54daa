"""Agents that are Python code of the worker: a function that acts in the sandbox, or a subclass of `RolloutAgent`."""

from __future__ import annotations

import inspect

from benchflow.contracts.agent import AgentPlace, RolloutAgent
from benchflow.errors import ConfigError
from benchflow.planes.agent.function.function_agent import FunctionAgent
from benchflow.user_code import import_for_job


def make_agent(place: AgentPlace) -> RolloutAgent:
    """Return the agent that the `code` of a place's record names.

    Raises:
        ConfigError: It is neither an `async` function nor a subclass of `RolloutAgent`.
    """
    record = place.record
    assert record.code is not None
    found = import_for_job(record.code, record.code_root, place.job, key="agent")
    if isinstance(found, type) and issubclass(found, RolloutAgent):
        return found(place)
    if not inspect.iscoroutinefunction(found):
        raise ConfigError(
            f"{record.code} is no agent",
            key="agent",
            remedy="name an `async def act(turn)`, or a subclass of benchflow.contracts.agent.RolloutAgent",
        )
    return FunctionAgent(place, found)
