"""Agents of a job at submit: frozen registry records, values replaced by references, credentials found."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from benchflow.addresses import is_http_address
from benchflow.contracts.agent_record import AgentEndpoint, AgentRecord, texts
from benchflow.contracts.config import JobConfig
from benchflow.contracts.ids import short_hash
from benchflow.contracts.job import AgentSpec
from benchflow.contracts.task import Task
from benchflow.errors import ConfigError, UnsupportedFeatureError
from benchflow.planes.agent.agent_settings import find_endpoint, list_credentials, make_settings
from benchflow.planes.agent.registry import find_record
from benchflow.secrets import is_literal

PREFIX = "BENCHFLOW_AGENT_"
"""Prefix of the names under which literal values of `--agent-env` are stored."""

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

_HASH_DIGITS = 6
"""Digits of a value's hash in its name: enough to detect a change, too few to confirm a guess of the value."""


def apply_defaults(config: JobConfig) -> list[AgentSpec]:
    """Return the agents of a configuration, with its `base_url`, `effort` and `agent_env` where they set none."""
    agents = []
    for agent in config.agents:
        if find_record(agent).is_engine:
            agents.append(agent)
            continue
        common = {"base_url": agent.base_url or config.base_url, "effort": agent.effort or config.effort}
        agents.append(agent.model_copy(update=common | {"env": {**config.agent_env, **agent.env}}))
    return agents


def prepare_agent(spec: AgentSpec, *, salt: str, cluster: bool) -> tuple[AgentSpec, dict[str, str]]:
    """Return an agent as the job's specification has it, and the values that stay out of the specification, by name.

    Args:
        spec: The requested agent.
        salt: Salt of the values' hashed names, the same for the whole job: a name only tells whether the value changed.
        cluster: Whether workers run on other hosts, where values of this host are not available.

    Raises:
        ConfigError: The agent cannot be given one of these settings.
    """
    record = find_record(spec)
    if record.is_engine:
        for key in ("model", "base_url", "effort", "env"):
            if getattr(spec, key):
                raise ConfigError(f"agent {record.name!r} uses no {key}", key=key, remedy="leave it away")
        return AgentSpec(name=record.name), {}
    if record.protocol == "python" and spec.model is None and spec.base_url is None:
        # Code that calls no model needs no key.
        record = record.model_copy(update={"endpoints": (), "model": None})
    _check_endpoint(spec, record)
    env, values = _replace_literals(spec.env, salt, cluster)
    env |= {name: f"${{{name}}}" for name in record.required_env if name not in env}
    credentials, files = _find_credentials(spec, record, env, cluster)
    # Descriptive fields do not change the agent's behaviour, so they must not change the job's digest.
    frozen = record.model_copy(update={"description": "", "checked": (), "source": record.source.rpartition("/")[2]})
    prepared = {"name": record.name, "env": env, "credentials": credentials, "record": frozen}
    return spec.model_copy(update=prepared), values | files


def _check_endpoint(spec: AgentSpec, record: AgentRecord) -> None:
    """Raise `ConfigError` for settings with which the agent could not start."""
    make_settings(record, home="/", workspace="/", model=spec.model, base_url=spec.base_url, effort=spec.effort)
    endpoint, _ = find_endpoint(record, spec.model, spec.base_url)
    if spec.model is None and endpoint is not None and not _has_endpoint_in_process(endpoint):
        raise ConfigError(
            f"agent {record.name!r} is told where to find its model together with the model",
            key="model",
            remedy=f"name one: --model {endpoint.providers[0]}/MODEL",
        )
    variables = {name for each in record.endpoints for name, value in each.env.items() if value == "{model}"}
    if spec.model is None and record.model is not None and record.model.required and not variables & set(spec.env):
        raise ConfigError(
            f"agent {record.name!r} has no model of its own", key="model", remedy="name one: --model MODEL"
        )
    if spec.base_url is None:
        return
    if not record.endpoints:
        raise ConfigError(f"agent {record.name!r} takes no endpoint", key="base_url", remedy="leave it away")
    # Before the next error quotes the address.
    if "@" in spec.base_url.partition("://")[2].partition("/")[0]:
        raise ConfigError(
            "an address must not hold a password, because it is recorded",
            key="base_url",
            remedy="give the key by its variable; bench agent show tells its name",
        )
    if not is_http_address(spec.base_url):
        raise ConfigError(f"{spec.base_url!r} is no address", key="base_url", remedy="write http://host:port/v1")


def _has_endpoint_in_process(endpoint: AgentEndpoint) -> bool:
    """Return whether an agent learns its endpoint without a configuration file, which is written only for a model."""
    if not any("{base_url}" in text for file in endpoint.files for text in texts(file.content)):
        return True
    return any("{base_url}" in text for place in (endpoint.env, endpoint.argv) for text in texts(place))


def _replace_literals(env: Mapping[str, str], salt: str, cluster: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Return the table with references in place of literal values, and these values by their reference names."""
    table, values = {}, {}
    for key, value in env.items():
        if not is_literal(value):
            table[key] = value
            continue
        if cluster:
            raise ConfigError(
                f"the value of {key} would be seen in the history of the cluster",
                key="--agent-env",
                remedy=f"export {key} where the workers run, and give --agent-env {key}",
            )
        name = f"{PREFIX}{key}_{short_hash(f'{salt}/{key}/{value}', _HASH_DIGITS)}"
        table[key], values[name] = f"${{{name}}}", value
    return table, values


def _find_credentials(
    spec: AgentSpec, record: AgentRecord, env: dict[str, str], cluster: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the names of the agent's credentials, and the contents of those that are files, by name.

    Removes from `env` the variable that holds the key, if any.
    """
    if spec.credentials and not any(name.startswith("~/") for name in spec.credentials):
        # The job is planned again; the values are already stored with it under these names.
        return spec.credentials, {}
    names = list_credentials(record, spec.model, spec.base_url)
    keys = {name: env.pop(name) for name in names if name in env}
    for name, value in keys.items():
        # This replaces the key: the agent's process needs neither it nor any other credential.
        if (given := _REFERENCE.fullmatch(value)) is None:
            raise ConfigError(
                f"the value of {name} is not that of one variable",
                key="--agent-env",
                remedy=f"give {name}=VALUE, or {name}='${{VARIABLE}}'",
            )
        return (given.group(1),), {}
    if cluster:
        return names if spec.base_url is None else (), {}
    known = tuple(name for name in names if os.environ.get(name))[:1]
    if known or spec.base_url is not None:
        return known, {}
    files = {f"~/{path}": Path.home() / path for path in record.credential_files}
    found = {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()}
    return (tuple(found), found) if found else (names, {})


def require_reachable(task: Task, agent: AgentSpec, *, mounted: bool) -> None:
    """Raise `UnsupportedFeatureError` if the agent's model cannot be reached from the task's sandbox.

    Args:
        task: The task.
        agent: The prepared agent.
        mounted: Whether the sandbox mounts directories of its host, and so has the gateway's socket.
    """
    record = agent.record
    if mounted and not any(name.startswith("~/") for name in agent.credentials):
        return
    if task.sandbox.network_mode == "no-network" and record is not None and record.takes_model and record.runs_inside:
        raise UnsupportedFeatureError(
            f"the task's sandbox has no network, and agent {agent.name!r} reaches its model over one",
            file=f"{task.name}/{task.config_file}",
            key="network_mode",
            remedy='write network_mode "public", or use an agent that needs no model',
        )
