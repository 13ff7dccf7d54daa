"""Who acts: agents by their records, which say how each is driven."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from benchflow.contracts.agent import AgentRecord
from benchflow.contracts.failures import typed_error
from benchflow.contracts.session import Agent, AgentPlace, Unanswered
from benchflow.errors import AgentExitError, BenchFlowError

_DRIVEN_BY = {
    "acp": "benchflow.planes.agent.acp.agent:AcpAgent",
    "acpx": "benchflow.planes.agent.acpx.agent:AcpxAgent",
    "python": "benchflow.planes.agent.function:make_agent",
}
"""What makes the agents of a record's `protocol`, imported when one is made."""


def agent_in(place: AgentPlace) -> Agent:
    """Return the agent that a place's record names, there."""
    module, _, name = _DRIVEN_BY[place.record.protocol].partition(":")
    with attributed(place.record):
        made: Agent = getattr(importlib.import_module(module), name)(place)
    return made


@contextmanager
def attributed(record: AgentRecord) -> Iterator[None]:
    """Raise `AgentExitError` for an exception that a user's own agent raises and the engine does not know."""
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
