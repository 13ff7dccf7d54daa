"""What an agent is told when it starts: its variables, files, arguments and model, from its record and the request.

Pure: nothing is written here, and nothing but the agent's own process may see the result, since it holds the key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tomlkit

from benchflow.contracts.agent import PLACEHOLDER, AgentRecord, Endpoint
from benchflow.errors import ConfigError


@dataclass(frozen=True)
class AgentSettings:
    """env: variables of its process. files: content by path below its home. argv: added to its launch.

    model: as the agent spells it, to be sent where its record says so. skills: absolute directories.
    """

    env: dict[str, str] = field(repr=False)
    files: dict[str, str]
    argv: tuple[str, ...]
    model: str | None
    skills: tuple[str, ...]


def settings_for(
    record: AgentRecord,
    *,
    home: str,
    workspace: str,
    toolbox: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    effort: str | None = None,
) -> AgentSettings:
    """The settings for one start. toolbox: where it is, when not at its mount path. Absolute paths in the sandbox.

    Raises `ConfigError` for a model, an endpoint or an effort that this agent cannot be given.
    """
    _check_effort(record, effort)
    endpoint, spelled = endpoint_of(record, model, base_url)
    given = {
        "home": home,
        "workspace": workspace,
        "toolbox": toolbox or record.mount_path,
        "api_key": api_key,
        "effort": effort,
        "model": spelled,
        "base_url": base_url or (endpoint.base_url if endpoint else None),
        "provider": endpoint.providers[0] if endpoint else None,
    }
    values = {name: value for name, value in given.items() if value is not None}
    env = {**record.env, **(endpoint.env if endpoint else {})}
    files = endpoint.files if endpoint and model else ()
    return AgentSettings(
        env={name: _one_line(value) for name, value in _filled(env, values).items()},
        files={file.path: _written(file.format, _filled(file.content, values)) for file in files},
        argv=tuple(_filled(endpoint.argv, values)) if endpoint else (),
        model=_filled(endpoint.model, values) if endpoint and model else None,
        skills=tuple(_filled(record.skills, values)),
    )


def credentials_of(record: AgentRecord, model: str | None, base_url: str | None) -> tuple[str, ...]:
    """The names under which the user may have the key for this model, the first one set counts."""
    endpoint, _ = endpoint_of(record, model, base_url)
    return endpoint.credentials if endpoint else ()


def credential_names(endpoint: Endpoint, given: Sequence[str]) -> tuple[str, ...]:
    """Return the names by which a user knows an endpoint's key.

    given: names of the secrets of a job: a key that was given by its value has a name of its own there.
    """
    known = tuple(name for name in endpoint.credentials if any(name in one for one in given))
    return known or tuple(given) or endpoint.credentials


def endpoint_of(record: AgentRecord, model: str | None, base_url: str | None) -> tuple[Endpoint | None, str | None]:
    """Who answers for the model, and the model as that one spells it."""
    if model and not record.takes_model:
        raise ConfigError(f"agent {record.name!r} uses no model", key="model", remedy=f"leave {model!r} away")
    if not record.endpoints:
        return None, model
    provider, slash, rest = (model or "").partition("/")
    for endpoint in record.endpoints:
        if slash and provider in endpoint.providers:
            return endpoint, rest
    # With an endpoint of the user's own, a slash may be part of the model's name.
    if not slash or base_url:
        return record.endpoints[0], model
    known = ", ".join(name for endpoint in record.endpoints for name in endpoint.providers)
    raise ConfigError(
        f"agent {record.name!r} knows no provider {provider!r}",
        key="model",
        remedy=f"use one of {known}, or give the endpoint's address with --base-url",
    )


def _check_effort(record: AgentRecord, effort: str | None) -> None:
    if effort is None:
        return
    if record.effort is None:
        raise ConfigError(f"agent {record.name!r} has no levels of effort", key="effort", remedy="leave it away")
    if record.effort.levels and effort not in record.effort.levels:
        levels = ", ".join(record.effort.levels)
        raise ConfigError(
            f"agent {record.name!r} has no effort {effort!r}", key="effort", remedy=f"use one of {levels}"
        )


class _Left(Exception):
    """An entry names something that was not given."""


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    """The same with every placeholder replaced; entries that cannot be are left out, and tables left empty by it."""
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda match: _given(match.group(1), values), value)
    if isinstance(value, dict):
        table = {}
        for key, inner in value.items():
            try:
                made = _filled(inner, values)
                if made or not isinstance(inner, dict | list | tuple) or not inner:
                    table[_filled(key, values)] = made
            except _Left:
                continue
        return table
    if isinstance(value, list | tuple):
        items = []
        for inner in value:
            try:
                items.append(_filled(inner, values))
            except _Left:
                continue
        return items
    return value


def _given(name: str, values: Mapping[str, str]) -> str:
    if name not in values:
        raise _Left
    return values[name]


def _one_line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _written(kind: str, content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n" if kind == "json" else tomlkit.dumps(content)
