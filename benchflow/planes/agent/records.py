"""Reading one agent's record: from the text of a TOML file, or from an object that a user's package has.

Whatever is wrong becomes a `ConfigError` that names the file, the key and the remedy.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from benchflow.contracts import agent as contract
from benchflow.contracts.agent import AgentRecord
from benchflow.errors import BenchFlowError, ConfigError
from benchflow.foreign_text import load_toml

_TABLES: dict[str, tuple[type[BaseModel], ...]] = {
    "install": (contract.NodeInstall, contract.PythonInstall),
    "endpoints": (contract.Endpoint,),
    "files": (contract.ConfigFile,),
    "model": (contract.Choice,),
    "effort": (contract.Choice,),
    "session": (contract.SessionTraits,),
}


def parse_record(text: str, source: str) -> AgentRecord:
    """The agent that a TOML file declares. source: the file, for errors and for `bench agent show`."""
    try:
        table = load_toml(text)
    except ValueError as error:
        # Not only TOML's own: Python refuses integers of more digits than it converts.
        raise ConfigError(f"is not TOML: {error}", file=source, remedy="mend the line that it names") from error
    if "source" in table:
        raise ConfigError("is not a known key", file=source, key="source", remedy="remove it")
    return _record(table | {"source": source}, source)


def load_record(path: str) -> AgentRecord:
    """The agent at `module:attribute`: a record, a table of one, or what makes one when called.

    A class or object may have a method `agent_record()`; without it, it is called with no arguments.
    """
    module, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise ConfigError(
            f"{path!r} is not an import path", key="agent", remedy="write package.module:Class or package.module:name"
        )
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"cannot be imported: {error}",
            file=path,
            key="agent",
            remedy="install its package into the environment of `bench`, or mend the path",
        ) from error
    try:
        return _made(found, path)
    except BenchFlowError:
        raise
    except Exception as error:
        raise ConfigError(
            f"gives no agent: {type(error).__name__}: {error}", file=path, key="agent", remedy="mend the object"
        ) from error


def _made(found: Any, path: str) -> AgentRecord:
    if callable(getattr(found, "agent_record", None)):
        found = (found() if isinstance(found, type) else found).agent_record()
    elif callable(found):
        found = found()
    if isinstance(found, AgentRecord):
        return found if found.source else found.model_copy(update={"source": path})
    if isinstance(found, dict):
        return _record(found | {"source": path}, path)
    raise ConfigError(
        f"gives {type(found).__name__}, which is no agent",
        file=path,
        key="agent",
        remedy="give a benchflow.contracts.agent.AgentRecord, or a table with its fields",
    )


def _record(table: dict[str, Any], source: str) -> AgentRecord:
    try:
        return AgentRecord.model_validate(table)
    except ValidationError as error:
        # A key that is missing is often one that is misspelled.
        first = min(error.errors(), key=lambda details: details["type"] != "extra_forbidden")
        raise _config_error(first, source) from error


def _config_error(details: ErrorDetails, source: str) -> ConfigError:
    # A union puts the name of its branch between a field and its own keys.
    at = [part for part in details["loc"] if part not in ("node", "python", "str", "dict[str,any]")]
    key = ".".join(str(part) for part in at) or None
    if details["type"] == "extra_forbidden":
        return ConfigError("is not a known key", file=source, key=key, remedy=_nearest(at))
    if details["type"] == "missing":
        return ConfigError("is missing", file=source, key=key, remedy=f"add `{at[-1]}`")
    message = details["msg"].removeprefix("Value error, ")
    given = details["input"]
    remedy = f"change {given!r}" if isinstance(given, str | int | float | bool) else None
    return ConfigError(f"{message[:1].lower()}{message[1:]}", file=source, key=key, remedy=remedy)


def _nearest(at: list[int | str]) -> str:
    tables = [part for part in at[:-1] if isinstance(part, str)]
    kinds = _TABLES.get(tables[-1], ()) if tables else (AgentRecord,)
    known = [name for kind in kinds for name in kind.model_fields]
    near = difflib.get_close_matches(str(at[-1]), known, n=1)
    return f"did you mean `{near[0]}`?" if near else f"remove it; known are: {', '.join(known)}"
