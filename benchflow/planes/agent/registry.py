"""The registry of agents: one TOML file for each, the engine's and the user's own, and objects of the user's packages.

Sources of an agent; the first one that has the name counts:
1. `module:attribute`, an import path: code that is an agent, an `AgentRecord`, or an object that returns one
   (by `agent_record()`, or a call);
2. `*.toml` in the directories of `$BENCHFLOW_AGENTS_DIR` (separated as in PATH), then in `~/.config/benchflow/agents`;
3. entry points of the group `benchflow.agents`, which name what an import path names;
4. the files in this package.
Agents of users speak ACP or are Python code, and cannot take over a name of the engine's own (`oracle`, `nop`, `acpx`).
The prefix `acpx/` before any of these names puts acpx before the agent.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path

from benchflow.contracts.agent_record import AgentRecord
from benchflow.contracts.job import AgentSpec
from benchflow.errors import ConfigError
from benchflow.planes.agent.acpx import PREFIX, make_acpx_record
from benchflow.planes.agent.agent_record_files import load_record, parse_record
from benchflow.user_files.problems import ProblemError, find_nearest
from benchflow.user_files.user_document import read_text

GROUP = "benchflow.agents"
"""Group of the entry points of agents."""
_ACPX = PREFIX.rstrip("/")


def list_agent_dirs() -> list[Path]:
    """Return the directories of the user's own agents, in their order of precedence."""
    named = [Path(part).expanduser() for part in os.environ.get("BENCHFLOW_AGENTS_DIR", "").split(os.pathsep) if part]
    config = os.environ.get("XDG_CONFIG_HOME")
    base = Path(config) if config else Path("~/.config").expanduser()
    return [*named, base / "benchflow" / "agents"]


def load_agents() -> dict[str, AgentRecord]:
    """Return every agent by its name, sorted. Raise `ConfigError` for an invalid file or object."""
    ours = _load_builtin_agents()
    found: dict[str, AgentRecord] = {}
    for record in (*_load_user_agents(), *_load_installed_agents(), *ours.values()):
        found.setdefault(record.name, record)
    # acpx is no agent by itself.
    del found[_ACPX]
    return dict(sorted(found.items()))


def _require_guest(record: AgentRecord) -> AgentRecord:
    """Return a user's record. Raise `ConfigError` if only the engine may declare it."""
    if record.protocol not in ("acp", "python"):
        raise ConfigError(
            f"{record.protocol!r} is what the engine does itself",
            file=record.source,
            key="protocol",
            remedy='an agent of your own speaks the Agent Client Protocol (protocol = "acp") or is code (python)',
        )
    ours = _load_builtin_agents().get(record.name)
    if ours is not None and ours.protocol != "acp":
        raise ConfigError(
            f"{record.name!r} belongs to the engine", file=record.source, key="name", remedy="choose another name"
        )
    return record


def find_agent(name: str) -> AgentRecord:
    """Return the agent with this name, alias or import path, or the one behind acpx for `acpx/NAME`.

    Raises:
        ConfigError: There is no such agent; the nearest name is the remedy.
        UnsupportedFeatureError: The agent cannot be driven by acpx.
    """
    if name.startswith(PREFIX):
        return make_acpx_record(_load_builtin_agents()[_ACPX], _find(name.removeprefix(PREFIX), PREFIX))
    return _find(name, "")


def _find(name: str, prefix: str) -> AgentRecord:
    """Return the agent with a name. prefix: text before the name as the user wrote it, for the error."""
    if ":" in name:
        return _require_guest(load_record(name, str(Path.cwd())))
    agents = load_agents()
    if name in agents:
        return agents[name]
    for record in agents.values():
        if name in record.aliases:
            return record
    known = [*agents, *(alias for record in agents.values() for alias in record.aliases)]
    near = find_nearest(name, known)
    hint = f"did you mean '{prefix}{near}'? " if near else ""
    listed = ", ".join([*agents, f"{PREFIX}AGENT"])
    raise ConfigError(f"there is no agent '{prefix}{name}'", key="agent", remedy=f"{hint}bench agent list: {listed}")


def find_record(spec: AgentSpec) -> AgentRecord:
    """Return the record of a job's agent: as of the submit if the job stores it, else from the registry."""
    return spec.record or find_agent(spec.name)


@functools.cache
def _load_builtin_agents() -> dict[str, AgentRecord]:
    directory = resources.files("benchflow.planes.agent") / "registry"
    files = sorted((file for file in directory.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    records = [parse_record(file.read_text(encoding="utf-8"), f"benchflow:{file.name}") for file in files]
    return {record.name: record for record in records}


def _load_user_agents() -> Iterator[AgentRecord]:
    """Yield the user's files. Two of one name in one directory are an error, since none has precedence."""
    for directory in list_agent_dirs():
        yield from _require_distinct(
            _require_guest(parse_record(_read(file), str(file)))
            for file in sorted(directory.glob("*.toml"))
            if file.is_file()
        )


def _require_distinct(records: Iterable[AgentRecord]) -> Iterator[AgentRecord]:
    """Yield the records. Raise `ConfigError` for a name that occurs twice."""
    seen: dict[str, str] = {}
    for record in records:
        if record.name in seen:
            raise ConfigError(
                f"{record.name!r} is also the name in {seen[record.name]}",
                file=record.source,
                key="name",
                remedy="rename one of the two",
            )
        seen[record.name] = record.source
        yield record


def _read(file: Path) -> str:
    try:
        return read_text(file)
    except ProblemError as error:
        raise error.as_error(ConfigError) from error


def _load_installed_agents() -> Iterator[AgentRecord]:
    declared = _list_entry_points(_stat_sys_path())
    yield from _require_distinct(_require_guest(load_record(target, name=name)) for name, target in declared)


@functools.lru_cache(maxsize=1)
def _list_entry_points(_: tuple[tuple[str, int], ...]) -> list[tuple[str, str]]:
    """Return names and objects of the entry points of all installed packages, cached: reading them takes long."""
    return sorted((point.name, point.value) for point in entry_points(group=GROUP))


def _stat_sys_path() -> tuple[tuple[str, int], ...]:
    """Return the directories of packages and their modification times, as key of the cache."""
    found = []
    for place in sys.path:
        with suppress(OSError):
            found.append((place, os.stat(place or ".").st_mtime_ns))  # noqa: PTH116
    return tuple(found)
