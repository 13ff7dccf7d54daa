"""Patterns by which a task selects tool calls: one small syntax for all functions of the action space.

A pattern has one or more of these keys, and a call matches if it matches all of them; a plain text is a `tool`.

- `tool`: a glob over the call's names (canonical, the agent's own, `SERVER__TOOL` and the `TOOL` alone), case ignored.
- `arguments`: expected values by the key of the argument (`a.b` is `b` inside of `a`): a text is a glob over the whole
  value, `/text/` a regular expression that is searched, anything else has to be equal. Of a list one element is enough.
- `command`: a regular expression, searched in each simple command of the shell scripts that the call ran, without
  quotes, comments and wrappers such as `sudo`.
- `path`: a glob over the absolute paths that it touched, or over the last part of them if it has no `/`. `mode` selects
  those that were read, or changed. `*` matches `/`, too.
- `request`: an HTTP request: `method` (a glob), `url` and `body` (regular expressions, searched).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict
from pydantic.dataclasses import dataclass

from benchflow.planes.reward.action.tool_calls import ToolCall
from benchflow.planes.reward.action.tool_names import ToolName
from benchflow.planes.reward.action.touched import Access, AccessMode, TouchedRequest

OPTIONS = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
"""Configuration of all dataclasses that a task fills in."""

_CHANGES: tuple[AccessMode, ...] = ("write", "edit", "delete")


@dataclass(frozen=True, config=OPTIONS)
class RequestPattern:
    """A pattern of an HTTP request that a command or a tool made."""

    method: str = "*"
    """Glob over the method, case ignored."""

    url: re.Pattern[str] = re.compile("")
    """Regular expression, searched in the URL."""

    body: re.Pattern[str] | None = None
    """Regular expression, searched in the body; None for any request, with or without one."""

    def matches(self, request: TouchedRequest) -> bool:
        """Return whether a request matches method, URL and body."""
        if not fnmatchcase(request.method.upper(), self.method.upper()) or not self.url.search(request.url):
            return False
        return self.body is None or (request.body is not None and self.body.search(request.body) is not None)


@dataclass(frozen=True, config=OPTIONS)
class _Keys:
    """A pattern of calls by its keys. At least one of them, `mode` not counted, has to be given."""

    tool: str | None = None
    arguments: dict[str, Any] | None = None
    command: re.Pattern[str] | None = None
    path: str | None = None
    mode: Literal["read", "changed"] | None = None
    request: RequestPattern | None = None

    def __post_init__(self) -> None:
        if all(key is None for key in (self.tool, self.arguments, self.command, self.path, self.request)):
            raise ValueError("a pattern needs one of tool, arguments, command, path, request")

    def matches(self, call: ToolCall) -> bool:
        """Return whether a call matches all keys of the pattern."""
        if self.tool is not None or self.arguments is not None:
            tools = [given for name, given in call.tools if self.tool is None or matches_any_tool(name, [self.tool])]
            wanted = (self.arguments or {}).items()
            if not any(all(_matches(_get_argument(given, key), value) for key, value in wanted) for given in tools):
                return False
        if self.command is not None and not any(self.command.search(one.text) for one in call.commands):
            return False
        if self.path is not None and not any(self._touches(access, self.path) for access in call.accesses):
            return False
        return self.request is None or any(self.request.matches(one) for one in call.requests)

    def _touches(self, access: Access, path: str) -> bool:
        changed = access.mode in _CHANGES
        return (self.mode is None or changed == (self.mode == "changed")) and matches_any_path(access.path, [path])

    def __str__(self) -> str:
        keys = [self.tool, self.path, self.command.pattern if self.command else None]
        keys.append(f"{self.request.method} {self.request.url.pattern}" if self.request else None)
        keys.append(str(self.arguments) if self.arguments else None)
        return " ".join(one for one in keys if one)


def _normalize_pattern(value: Any) -> Any:
    """Return a plain text as a pattern with only a `tool`, and any other value as it is."""
    return {"tool": value} if isinstance(value, str) else value


CallPattern = Annotated[_Keys, BeforeValidator(_normalize_pattern)]
"""Type of a field: a pattern, or a text for one with only a `tool`."""


def matches_any_tool(name: ToolName, globs: Iterable[str]) -> bool:
    """Return whether one of the globs matches a name of the tool, case ignored."""
    return any(fnmatchcase(one, glob.lower()) for glob in globs for one in name.names)


def matches_any_path(path: str, globs: Iterable[str]) -> bool:
    """Return whether one of the globs matches a path: all of it, or its last part if the glob has no `/`."""
    last = path.rpartition("/")[2]
    return any(fnmatchcase(path if "/" in glob else last, glob) for glob in globs)


def _get_argument(given: Any, key: str) -> Any:
    """Return the argument at a dotted key; None if there is none."""
    if isinstance(given, dict) and key in given:
        return given[key]
    head, dot, rest = key.partition(".")
    return _get_argument(given.get(head), rest) if dot and isinstance(given, dict) else None


def _matches(value: Any, wanted: Any) -> bool:
    """Return whether an argument, or an element of a list, matches an expected value."""
    if isinstance(value, list) and not isinstance(wanted, list):
        return any(_matches(one, wanted) for one in value)
    if not isinstance(wanted, str):
        return type(value) is type(wanted) and bool(value == wanted)
    if value is None:
        return False
    text = value if isinstance(value, str) else str(value)
    if len(wanted) > 2 and wanted[0] == wanted[-1] == "/":
        return re.search(wanted[1:-1], text) is not None
    return fnmatchcase(text, wanted)
