"""The options of `submit`, combined into a `JobConfig`: the command line overrides the file, the file the defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchflow.cli.model_options import set_keys
from benchflow.cli.submit_options import find_option_name

if TYPE_CHECKING:
    from benchflow.contracts.config import JobConfig
    from benchflow.contracts.job import AgentSpec

WORLD_KEYS = ("environment_manifest", "environment_name", "environment_import_path")
"""Keys of a configuration that name the world of all tasks. One that is an option replaces all those of the file."""


@dataclass(frozen=True)
class FileRequest:
    """The parts of the user's environment that a configuration file, which may come from another author, takes."""

    file: Path
    """Path of the configuration file."""

    addresses: frozenset[str] = frozenset()
    """Addresses of model endpoints that it names, without those that are options as well."""

    variables: frozenset[str] = frozenset()
    """Variables that its tables of agents' variables name."""

    names_world: bool = False
    """Whether it names the world of all tasks."""

    is_given_keys: bool = False
    """Whether the command line gives agents variables, which the file may send to its addresses."""


def make_job_config(
    *,
    paths: list[Path],
    config: Path | None = None,
    model: str | None = None,
    imported: Sequence[str] | None = None,
    **options: Any,
) -> tuple[JobConfig, FileRequest | None]:
    """Return the configuration of a job, and the request of its configuration file to the user's environment.

    Args:
        paths: Tasks, or directories of tasks.
        config: Configuration file; None for none.
        model: Model of the agents that name none.
        imported: Agents by import path.
        **options: Fields of `JobConfig` as options of the command line; `a.b` is a field of the model in `a`.

    Returns:
        The configuration, and the request of the file; None for the latter without a file.

    Raises:
        ConfigError: An option, or a key of the file, is wrong; the error names it.
    """
    from benchflow.config_file import parse_branch, parse_mode, read_job_file, validate
    from benchflow.contracts.config import JobConfig
    from benchflow.errors import ConfigError

    values: dict[str, Any] = read_job_file(config) if config else {}
    files = dict.fromkeys(values, str(config))
    given = options | ({"paths": paths} if paths else {})
    parsers: dict[str, Callable[[Any], Any]] = {
        "agent_env": _parse_variables,
        "branch": parse_branch,
        "mode": parse_mode,
    }
    for key, parse in parsers.items():
        if key in given:
            try:
                given[key] = parse(given[key])
            except ConfigError as error:
                if error.file is None:
                    error.key = find_option_name(key)
                raise
    for path in imported or []:
        if ":" not in path:
            raise ConfigError(
                f"{path!r} is no import path",
                key="--agent-import-path",
                remedy="write package.module:name, or --agent for a name of the registry",
            )
    if imported:
        given["agents"] = [*given.get("agents", []), *({"name": path} for path in imported)]
    if "agents" in given:
        # The file's model is for the file's own agents.
        values.pop("model", None)
    if "branch" in given or "mode" in given:
        # An option of either replaces both in the file: they exclude each other.
        for key in ("branch", "mode"):
            values.pop(key, None)
    if given.keys() & set(WORLD_KEYS):
        for key in (*WORLD_KEYS, "environment_root"):
            values.pop(key, None)
    set_keys(values, given)
    for key in given:
        files.pop(key, None)
    model = model or values.pop("model", None)
    values.pop("model", None)
    if "paths" not in values:
        raise ConfigError(
            "no task is given", key="PATH", remedy="name a task, or a directory of tasks: bench submit PATH"
        )
    try:
        request = validate(JobConfig, values, files)
    except ConfigError as error:
        if error.file is None and error.key:
            error.key = find_option_name(error.key)
        raise
    of_file = _make_file_request(config, request, given) if config else None
    request = request.model_copy(update={"agents": _set_model(request.agents, model)}) if model else request
    return request, of_file


def _make_file_request(file: Path, request: JobConfig, given: Mapping[str, Any]) -> FileRequest:
    """Return the request of a configuration file to the user's environment.

    Args:
        file: The file.
        request: The job's configuration, file and options together.
        given: The options, by key.
    """
    from benchflow.secrets import find_variables

    agents = [] if "agents" in given else request.agents
    tables = [agent.env for agent in agents] + ([] if "agent_env" in given else [request.agent_env])
    addresses = {agent.base_url for agent in agents} | {request.base_url, request.judge.base_url}
    named = {request.base_url if "base_url" in given else None, given.get("judge.base_url"), None}
    return FileRequest(
        file=file,
        addresses=frozenset(address for address in addresses - named if address is not None),
        variables=frozenset(find_variables(tables)),
        names_world=not given.keys() & set(WORLD_KEYS) and any(getattr(request, key) for key in WORLD_KEYS),
        is_given_keys="agent_env" in given,
    )


def _parse_variables(given: list[str]) -> dict[str, str]:
    """Parse `K=V` and `K` into a table of variables, with `${K}` for the latter. Raise `ConfigError` for other text."""
    from benchflow.errors import ConfigError

    table = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name.isidentifier():
            raise ConfigError(f"{text!r} names no variable", key="--agent-env", remedy="write K=V, or K alone")
        table[name] = value if equals else f"${{{name}}}"
    return table


def _set_model(agents: list[AgentSpec], model: str) -> list[AgentSpec]:
    """Return the agents, with the model set in those that have none.

    Agents that use no model are left without, unless no agent would get it then.
    """
    from benchflow.planes.agent.registry import find_agent

    without = [agent for agent in agents if agent.model is None]
    taking = [agent for agent in without if find_agent(agent.name).takes_model] or without
    return [agent.model_copy(update={"model": model}) if agent in taking else agent for agent in agents]
