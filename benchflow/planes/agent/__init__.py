"""The Agent plane: agents made of their registry records, which state how each is driven."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from benchflow.contracts.agent import AgentPlace, RolloutAgent, Unanswered
from benchflow.contracts.agent_record import AgentRecord
from benchflow.contracts.failures import typed_error
from benchflow.errors import AgentExitError, BenchFlowError

_DRIVEN_BY = {
    "acp": "benchflow.planes.agent.acp.acp_agent:AcpAgent",
    "acpx": "benchflow.planes.agent.acpx.acpx_agent:AcpxAgent",
    "python": "benchflow.planes.agent.function:make_agent",
}
"""Constructors of agents by the `protocol` of their record, imported when the first one is made."""


def create_agent(place: AgentPlace) -> RolloutAgent:
    """Return the agent of a place's record, for that place."""
    module, _, name = _DRIVEN_BY[place.record.protocol].partition(":")
    with attribute_errors(place.record):
        made: RolloutAgent = getattr(importlib.import_module(module), name)(place)
    return made


@contextmanager
def attribute_errors(record: AgentRecord) -> Iterator[None]:
    """Raise `AgentExitError` for an exception of a user's own agent that is none of the engine's errors.

    Other exceptions are raised as the engine's errors.
    """
    try:
        yield
    except (BenchFlowError, Unanswered):
        raise
    except Exception as problem:
        error = typed_error(problem)
        if record.protocol != "python" or isinstance(error, BenchFlowError):
            raise error from problem
        raise AgentExitError(
            f"agent {record.name!r} raised {type(problem).__name__}: {problem}",
            log_tail="".join(traceback.format_exception(problem)),
        ) from problem
