"""Translate generic tool calls to those of the agent that makes the request.

Every agent names its tools differently. `agents.toml` beside this file is a table of known tools: generic name, the
agent's name, and the shape of its arguments. The request lists the tools that it offers; the first row that fits one of
them is used.
"""

from __future__ import annotations

import functools
import json
import posixpath
import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from benchflow.contracts.base import Model
from benchflow.llm_apis.conversation import OfferedTool
from benchflow.testing.scripted_model.model_request import ModelRequest
from benchflow.testing.scripted_model.model_script import ToolUse

PLACEHOLDER = re.compile(r"\{(\w+)((?:\|\w+)*)\}")
"""A placeholder in a template: `{argument}` or `{argument|filter|filter}`."""

FILTERS: dict[str, Callable[[str], str]] = {
    "json": json.dumps,
    "quoted": shlex.quote,
    "dirname": lambda path: posixpath.dirname(path) or ".",
    "added": lambda text: "\n".join("+" + line for line in text.removesuffix("\n").split("\n")),
    "removed": lambda text: "\n".join("-" + line for line in text.removesuffix("\n").split("\n")),
}
"""Filters of a placeholder, by name."""


class KnownTool(Model):
    """A row of `agents.toml`: an agent's tool that serves a generic one."""

    tool: str
    """Generic name."""

    name: str
    """The agent's name for it."""

    agents: tuple[str, ...] = ()
    """Names of agents that have the tool; the translation does not use them."""

    shape: dict[str, str] = {}
    """JSON types (or `any`) by parameter that the offered tool must have, to tell tools of one name apart."""

    arguments: dict[str, Any] = {}
    """The agent's arguments, with {placeholders} for the generic ones. A key without its argument is left out."""

    input: str | None = None
    """The same as free text, for tools that take no JSON."""

    def fits(self, offered: OfferedTool) -> bool:
        """Return whether an offered tool is the one of this row."""
        if offered.name != self.name or (offered.kind == "custom") != (self.input is not None):
            return False
        found = {name: offered.property_type(name) for name in self.shape}
        return all(found[name] is not None and want in ("any", found[name]) for name, want in self.shape.items())


@dataclass(frozen=True)
class ConcreteCall:
    """A tool call as it is sent."""

    id: str
    """Id of the call."""

    name: str
    """Name of the tool that the agent offers."""

    arguments: dict[str, Any] | str
    """An object, or text that is sent unchanged."""

    kind: Literal["function", "custom"] = "function"
    """Kind of the offered tool, see `OfferedTool.kind`."""

    namespace: str | None = None
    """Namespace of the offered tool; None if it has none."""


@functools.cache
def known_tools() -> tuple[KnownTool, ...]:
    """Return the table of known tools, in the order in which its rows are tried."""
    data = tomllib.loads(resources.files(__package__).joinpath("agents.toml").read_text(encoding="utf-8"))
    return tuple(KnownTool.model_validate(row) for row in data["tool"])


class NoSuchToolError(LookupError):
    """A generic tool call can't be translated: no offered tool serves it, or the script gives too few arguments."""


def translate_call(use: ToolUse, request: ModelRequest, call_id: str) -> ConcreteCall:
    """Translate one tool call of a reply for the agent that makes the request.

    Args:
        use: The tool call.
        request: The request, with the tools that it offers.
        call_id: Id of the call, unless the script gives one.

    Raises:
        NoSuchToolError: No offered tool serves a generic one, or an argument is missing.
    """
    call_id = use.id or call_id
    rows = [row for row in known_tools() if row.tool == use.tool] if isinstance(use.arguments, dict) else []
    for row in rows:
        for offered in request.tools:
            if row.fits(offered):
                arguments = use.arguments if isinstance(use.arguments, dict) else {}
                try:
                    filled = _fill(row.input if row.input is not None else row.arguments, arguments)
                except KeyError as missing:
                    raise NoSuchToolError(f"`{use.tool}` needs the argument {missing}") from missing
                return ConcreteCall(call_id, offered.name, filled, offered.kind, offered.namespace)
    name = use.name or use.tool or ""
    exact = request.tool(name)
    if rows and exact is None:
        offers = ", ".join(sorted(tool.name for tool in request.tools)) or "none"
        raise NoSuchToolError(f"no offered tool is known to serve `{name}`; offered: {offers}")
    if exact is None:
        return ConcreteCall(call_id, name, use.arguments)
    return ConcreteCall(call_id, name, use.arguments, exact.kind, exact.namespace)


def _fill(template: Any, values: dict[str, Any]) -> Any:
    """Fill a template with the generic arguments. A key with a placeholder for a missing one is left out.

    Raises `KeyError` for a missing argument elsewhere than in the value of a key.
    """
    if isinstance(template, dict):
        return {key: _fill(item, values) for key, item in template.items() if _has_arguments(item, values)}
    if isinstance(template, list):
        return [_fill(item, values) for item in template]
    if not isinstance(template, str):
        return template
    whole = PLACEHOLDER.fullmatch(template)
    if whole and not whole[2]:
        return values[whole[1]]
    return PLACEHOLDER.sub(lambda found: _text(values[found[1]], found[2]), template)


def _has_arguments(template: Any, values: dict[str, Any]) -> bool:
    """Return whether all placeholders of a text have an argument; True for anything but a text."""
    if not isinstance(template, str):
        return True
    return all(found[1] in values for found in PLACEHOLDER.finditer(template))


def _text(value: Any, filters: str) -> str:
    """Return an argument as text, passed through filters: `|name|name`."""
    text = str(value)
    for name in filters.split("|")[1:]:
        text = FILTERS[name](text)
    return text
