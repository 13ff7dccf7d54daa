"""Settings of an agent's start: variables, files, arguments and model, from its record and the request.

Pure: nothing is written here, and no process but the agent's own may see the result, since it holds the key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchflow.contracts.agent_record import PLACEHOLDER, AgentEndpoint, AgentRecord
from benchflow.errors import ConfigError


@dataclass(frozen=True)
class AgentSettings:
    """Settings of one start of an agent."""

    env: dict[str, str] = field(repr=False)
    """Variables of its process, the key included."""

    files: dict[str, str]
    """Content of files, by path below its home."""

    argv: tuple[str, ...]
    """Arguments that are appended to its command."""

    model: str | None
    """Model as the agent spells it, to be sent where its record says so; None for the agent's own choice."""

    skills: tuple[str, ...]
    """Absolute directories in which it looks for skills."""


def make_settings(
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
    """Return the settings of one start.

    Args:
        record: Registry record of the agent.
        home: Absolute path of its home in the sandbox.
        workspace: Absolute path of the workspace.
        toolbox: Absolute path of its toolbox, if that is not at its mount path.
        model: Model as the user spells it; None for the agent's own choice.
        base_url: Base URL of the endpoint; None for the provider's.
        api_key: Key of the endpoint; None for none.
        effort: Reasoning effort; None for the agent's default.

    Raises:
        ConfigError: The agent does not take this model, provider or effort.
    """
    _check_effort(record, effort)
    endpoint, spelled = find_endpoint(record, model, base_url)
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
        env={
            name: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            for name, value in _fill_placeholders(env, values).items()
        },
        files={file.path: _format_file(file.format, _fill_placeholders(file.content, values)) for file in files},
        argv=tuple(_fill_placeholders(endpoint.argv, values)) if endpoint else (),
        model=_fill_placeholders(endpoint.model, values) if endpoint and model else None,
        skills=tuple(_fill_placeholders(record.skills, values)),
    )


def list_credentials(record: AgentRecord, model: str | None, base_url: str | None) -> tuple[str, ...]:
    """Return the variables in which the user may have the key for this model; the first one that is set counts."""
    endpoint, _ = find_endpoint(record, model, base_url)
    return endpoint.credentials if endpoint else ()


def choose_credentials(endpoint: AgentEndpoint, given: Sequence[str]) -> tuple[str, ...]:
    """Return the names of secrets that may hold an endpoint's key.

    Args:
        endpoint: The endpoint.
        given: Names of the job's secrets. A key that was given by value has a name of its own there.
    """
    known = tuple(name for name in endpoint.credentials if any(name in one for one in given))
    return known or tuple(given) or endpoint.credentials


def find_endpoint(
    record: AgentRecord, model: str | None, base_url: str | None
) -> tuple[AgentEndpoint | None, str | None]:
    """Return the endpoint for a model (None if the agent has none), and the model as the endpoint spells it.

    Raises:
        ConfigError: The agent uses no model, or does not know the provider.
    """
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


def _fill_placeholders(value: Any, values: Mapping[str, str]) -> Any:
    """Return a value with its placeholders replaced. Raise `KeyError` for a text with one that has no value.

    Entries of tables and lists with such a text are left out, and so are tables that are empty without them.
    """
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda match: values[match[1]], value)
    if isinstance(value, dict):
        table = {}
        for key, inner in value.items():
            try:
                made = _fill_placeholders(inner, values)
                if made or not isinstance(inner, dict | list | tuple) or not inner:
                    table[_fill_placeholders(key, values)] = made
            except KeyError:
                continue
        return table
    if isinstance(value, list | tuple):
        items = []
        for inner in value:
            try:
                items.append(_fill_placeholders(inner, values))
            except KeyError:
                continue
        return items
    return value


def _format_file(kind: str, content: dict[str, Any]) -> str:
    """Return the text of a file with this content, as JSON or TOML."""
    if kind == "json":
        return json.dumps(content, indent=2) + "\n"
    import tomlkit  # each command that starts a job imports this module, and few agents have a TOML file

    return tomlkit.dumps(content)
