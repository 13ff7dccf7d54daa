"""Agents that are code of the worker's own: a Python function that acts in the sandbox, or a class of agents."""

from __future__ import annotations

import inspect

from benchflow.contracts.session import Agent, AgentPlace
from benchflow.errors import ConfigError
from benchflow.planes.agent.function.agent import FunctionAgent
from benchflow.user_code import import_for_job


def make_agent(place: AgentPlace) -> Agent:
    """Return the agent that a record's `code` names, in its place."""
    record = place.record
    assert record.code is not None
    found = import_for_job(record.code, record.code_root, place.job, key="agent")
    if isinstance(found, type) and issubclass(found, Agent):
        return found(place)
    if not inspect.iscoroutinefunction(found):
        raise ConfigError(
            f"{record.code} is no agent",
            key="agent",
            remedy="name an `async def act(turn)`, or a subclass of benchflow.contracts.session.Agent",
        )
    return FunctionAgent(place, found)
