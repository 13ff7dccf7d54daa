"""Validation of an agent's record: from the text of a TOML file, or from an object of a user's package.

All faults become a `ConfigError` that names the file, the key and the remedy.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from benchflow.contracts.agent import RolloutAgent
from benchflow.contracts.agent_record import AgentRecord
from benchflow.errors import BenchFlowError, ConfigError
from benchflow.user_code import import_anew
from benchflow.user_files.problems import ProblemError
from benchflow.user_files.user_document import UserDocument
from benchflow.user_files.user_model import require_model

_CHAT = {"api": "openai-chat", "providers": ["openai"], "credentials": ["OPENAI_API_KEY"]}
"""Endpoint of agents that are Python code of the worker."""


def parse_record(text: str, source: str) -> AgentRecord:
    """Return the record of a TOML file. Raise `ConfigError` if it is invalid.

    Args:
        text: Content of the file.
        source: Name of the file, for errors and for `bench agent show`.
    """
    try:
        table = UserDocument(source, text, "toml", has_dates=False).table
    except ProblemError as error:
        raise error.as_error(ConfigError) from error
    if "source" in table:
        raise ConfigError("is not a known key", file=source, key="source", remedy="remove it")
    return _validate_record(table | {"source": source}, source)


def load_record(path: str, root: str = "", *, name: str | None = None) -> AgentRecord:
    """Return the record of the object at `module:attribute`.

    The object is an `AgentRecord`, a table of one, or a function or class that returns one: by its method
    `agent_record()` or, without it, by a call without arguments. An `async` function and a subclass of `RolloutAgent`
    are agents themselves.

    Args:
        path: `module:attribute`.
        root: Directory in which the module is looked for after the installed ones; empty for none.
        name: Name of an agent in code that has none itself.

    Raises:
        ConfigError: The object cannot be imported, or gives no valid record.
    """
    module, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise ConfigError(
            f"{path!r} is not an import path", key="agent", remedy="write package.module:Class or package.module:name"
        )
    found: Any = import_anew(path, root, key="agent")
    if inspect.iscoroutinefunction(found) or (isinstance(found, type) and issubclass(found, RolloutAgent)):
        return _make_python_record(found, path, root, name)
    try:
        return _convert_to_record(found, path)
    except BenchFlowError:
        raise
    except Exception as error:
        raise ConfigError(
            f"gives no agent: {type(error).__name__}: {error}",
            file=path,
            key="agent",
            remedy="mend the object; a function that is an agent begins with `async def`",
        ) from error


def _make_python_record(found: Any, path: str, root: str, name: str | None) -> AgentRecord:
    """Return the record of code that is an agent, which may have an attribute `name`."""
    own = getattr(found, "name", None)
    plain = re.sub(r"[^a-z0-9._-]+", ".", path.lower())[-64:].lstrip("._-")
    return _validate_record(
        {
            "name": own if isinstance(own, str) else name or plain,
            "description": (inspect.getdoc(found) or "").partition("\n")[0],
            "protocol": "python",
            "code": path,
            "code_root": root,
            "runs_inside": getattr(found, "runs_inside", False),
            # Functions resume by their memory.
            "session": {"rung": getattr(found, "resume_mode", "load")},
            "endpoints": [_CHAT],
            "model": {"by": "env"},
            "source": path,
        },
        path,
    )


def _convert_to_record(found: Any, path: str) -> AgentRecord:
    """Return the record that an object is or returns."""
    if callable(getattr(found, "agent_record", None)):
        found = (found() if isinstance(found, type) else found).agent_record()
    elif callable(found):
        found = found()
    if isinstance(found, AgentRecord):
        return found if found.source else found.model_copy(update={"source": path})
    if isinstance(found, dict):
        return _validate_record(found | {"source": path}, path)
    raise ConfigError(
        f"gives {type(found).__name__}, which is no agent",
        file=path,
        key="agent",
        remedy="give a benchflow.contracts.agent_record.AgentRecord, a table with its fields, or an `async` function",
    )


def _validate_record(table: dict[str, Any], source: str) -> AgentRecord:
    return require_model(AgentRecord, table, lambda fault: fault.as_error(ConfigError, source))
