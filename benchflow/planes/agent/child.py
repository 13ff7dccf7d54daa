"""Validation of the settings in which a child of a rollout tree differs from its siblings."""

from __future__ import annotations

from benchflow.contracts.branch import ChildSpec
from benchflow.contracts.job import AgentSpec
from benchflow.errors import ConfigError
from benchflow.planes.agent.agent_settings import list_credentials, make_settings
from benchflow.planes.agent.registry import find_record


def check_child(agent: AgentSpec, child: ChildSpec, key: str) -> None:
    """Raise `ConfigError` if a child's prompt, model or seed would be ignored by its agent, or cannot be used.

    Args:
        agent: Agent of the parent.
        child: Settings of the child.
        key: Path of the child in the configuration, for the error.
    """
    record = find_record(agent)
    for name in ("prompt", "model", "seed"):
        if getattr(child, name) is not None and record.is_engine:
            raise ConfigError(f"agent {agent.name!r} uses no {name}", key=f"{key}.{name}", remedy="leave it away")
    if child.model is None:
        return
    try:
        make_settings(record, home="/", workspace="/", model=child.model, base_url=agent.base_url, effort=agent.effort)
        keys = [list_credentials(record, model, agent.base_url) for model in (agent.model, child.model)]
    except ConfigError as error:
        error.key = f"{key}.model"
        raise
    if keys[0] != keys[1]:
        raise ConfigError(
            f"{child.model!r} needs another key than the model of its parent: {' or '.join(keys[1])}",
            key=f"{key}.model",
            remedy="name a model of the same provider, or submit another job",
        )
