"""Records of agents that are none: what they install is small, real, and has a program."""

from __future__ import annotations

import sys
from typing import Any

from benchflow.contracts.agent_record import AgentRecord


def agent(**fields: Any) -> AgentRecord:
    base = {"name": "small", "description": "A small one.", "protocol": "acp", "version": "1.0.0", "launch": ["semver"]}
    return AgentRecord.model_validate(base | fields)


def node_agent(**install: Any) -> AgentRecord:
    return agent(install={"runtime": "node", "packages": {"semver": "7.8.5"}} | install)


def python_agent(**install: Any) -> AgentRecord:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    base = {"runtime": "python", "python": version, "packages": {"cowsay": "6.1"}}
    return agent(name="cow", launch=["cowsay", "-t", "moo"], install=base | install)
