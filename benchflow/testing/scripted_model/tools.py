"""From a generic tool call to the call that this agent understands.

Every agent names its tools otherwise. `agents.toml` next to this file is a table of known tools: generic name, the
agent's name, and the shape of its arguments. The request itself says which tools there are; the first row that fits an
offered tool wins.
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
from benchflow.testing.scripted_model.conversation import ModelRequest, OfferedTool
from benchflow.testing.scripted_model.script import ToolUse

PLACEHOLDER = re.compile(r"\{(\w+)((?:\|\w+)*)\}")
FILTERS: dict[str, Callable[[str], str]] = {
    "json": json.dumps,
    "quoted": shlex.quote,
    "dirname": lambda path: posixpath.dirname(path) or ".",
    "added": lambda text: "\n".join("+" + line for line in text.removesuffix("\n").split("\n")),
    "removed": lambda text: "\n".join("-" + line for line in text.removesuffix("\n").split("\n")),
}


class KnownTool(Model):
    """One row: agent tool `name` serves the generic `tool`.

    shape: parameter name → JSON type (or `any`) that the offered tool must have, to tell tools of one name apart.
    arguments: the agent's arguments, with {placeholders} for the generic ones; a key whose placeholder was not given is
    left out. input: the same as free text, for tools that take no JSON.
    """

    tool: str
    name: str
    agents: tuple[str, ...] = ()
    shape: dict[str, str] = {}
    arguments: dict[str, Any] = {}
    input: str | None = None

    def fits(self, offered: OfferedTool) -> bool:
        """Whether the offered tool is this one."""
        if offered.name != self.name or (offered.kind == "custom") != (self.input is not None):
            return False
        found = {name: offered.property_type(name) for name in self.shape}
        return all(found[name] is not None and want in ("any", found[name]) for name, want in self.shape.items())


class KnownSideCall(Model):
    """A text by which a side call of an agent is recognised."""

    agent: str
    what: str
    where: Literal["system", "user"]
    text: str


@dataclass(frozen=True)
class ConcreteCall:
    """A tool call as it goes over the wire. arguments: an object, or text that is sent as it is."""

    id: str
    name: str
    arguments: dict[str, Any] | str
    kind: Literal["function", "custom"] = "function"
    namespace: str | None = None


@functools.cache
def _data() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("agents.toml").read_text(encoding="utf-8"))


@functools.cache
def known_tools() -> tuple[KnownTool, ...]:
    """The table's rows, in the order in which they are tried."""
    return tuple(KnownTool.model_validate(row) for row in _data()["tool"])


@functools.cache
def known_side_calls() -> tuple[KnownSideCall, ...]:
    """How the side calls of known agents are recognised."""
    return tuple(KnownSideCall.model_validate(row) for row in _data()["side_call"])


class NoSuchToolError(LookupError):
    """A generic tool call that can't be made a concrete one, because of what the request offers or the script says."""


def concrete(use: ToolUse, request: ModelRequest, call_id: str) -> ConcreteCall:
    """Translates one tool call of a reply for the agent that asked."""
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
    """Puts the generic arguments into a template. A key whose placeholder was not given is left out."""
    if isinstance(template, dict):
        return {key: _fill(item, values) for key, item in template.items() if _given(item, values)}
    if isinstance(template, list):
        return [_fill(item, values) for item in template]
    if not isinstance(template, str):
        return template
    whole = PLACEHOLDER.fullmatch(template)
    if whole and not whole[2]:
        return values[whole[1]]
    return PLACEHOLDER.sub(lambda found: _text(values[found[1]], found[2]), template)


def _given(template: Any, values: dict[str, Any]) -> bool:
    if not isinstance(template, str):
        return True
    return all(found[1] in values for found in PLACEHOLDER.finditer(template))


def _text(value: Any, filters: str) -> str:
    text = str(value)
    for name in filters.split("|")[1:]:
        text = FILTERS[name](text)
    return text
