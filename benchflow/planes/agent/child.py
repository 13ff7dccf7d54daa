"""Whether what a child in a tree is to do otherwise than its siblings means something to its agent."""

from __future__ import annotations

from benchflow.contracts.branch import ChildSpec
from benchflow.contracts.job import AgentSpec
from benchflow.errors import ConfigError
from benchflow.planes.agent.registry import record_for
from benchflow.planes.agent.settings import credentials_of, settings_for


def check_child(agent: AgentSpec, child: ChildSpec, key: str) -> None:
    """Raises `ConfigError` for what would be ignored, or cannot be. agent: its parent's; key: of the child."""
    record = record_for(agent)
    for name in ("prompt", "model", "seed"):
        if getattr(child, name) is not None and record.is_engine:
            raise ConfigError(f"agent {agent.name!r} uses no {name}", key=f"{key}.{name}", remedy="leave it away")
    if child.model is None:
        return
    try:
        settings_for(record, home="/", workspace="/", model=child.model, base_url=agent.base_url, effort=agent.effort)
        keys = [credentials_of(record, model, agent.base_url) for model in (agent.model, child.model)]
    except ConfigError as error:
        error.key = f"{key}.model"
        raise
    if keys[0] != keys[1]:
        raise ConfigError(
            f"{child.model!r} needs another key than the model of its parent: {' or '.join(keys[1])}",
            key=f"{key}.model",
            remedy="name a model of the same provider, or submit another job",
        )
