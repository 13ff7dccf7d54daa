"""Types for the effects of a command or of code, as far as its text shows them: file accesses and HTTP requests."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

AccessMode = Literal["read", "write", "edit", "delete", "run"]
"""Mode of an access. `write` gives a file new content, whether or not it existed; `edit` and `delete` need an existing
file; `run` executes it.
"""


@dataclass(frozen=True)
class Access:
    """An access to a file."""

    path: str
    """Absolute path; it may have wildcards."""

    mode: AccessMode
    by: str = ""
    """Text of the command or call that made it."""

    content: str | None = None
    """Content that was written; None if it is not known."""


@dataclass(frozen=True)
class TouchedRequest:
    """An HTTP request."""

    method: str
    url: str
    body: str | None = None
    """Text of the body; None if it has none, or it is not known."""

    by: str = ""
    """Text of the command or call that made it."""

    @property
    def tool_call(self) -> tuple[str, dict[str, Any]] | None:
        """Return (name, arguments) of the MCP tool that the request calls; None for any other request."""
        if not self.body or '"tools/call"' not in self.body:
            return None
        try:
            message = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        params = message.get("params") if isinstance(message, dict) else None
        if not isinstance(params, dict) or message.get("method") != "tools/call":
            return None
        given = params.get("arguments")
        return str(params.get("name")), given if isinstance(given, dict) else {}


@dataclass
class Touched:
    """The effects of a command or of code, in order."""

    accesses: list[Access] = field(default_factory=list)
    requests: list[TouchedRequest] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    """Shell scripts that it ran, and that are not read yet."""

    def add(self, other: Touched) -> None:
        """Append the effects of another one."""
        self.accesses += other.accesses
        self.requests += other.requests
        self.scripts += other.scripts


def add_scheme(text: str) -> str:
    """Return a URL with the scheme `http://` added if it has none, as commands accept it."""
    return text if re.match(r"[a-zA-Z][\w+.-]*://", text) else f"http://{text}"


def read_patch(text: str) -> list[tuple[AccessMode, str]]:
    """Return (mode, path) of each file in a patch, in the format of `apply_patch` or of `diff -u`."""
    found: list[tuple[AccessMode, str]] = []
    modes: dict[str, AccessMode] = {"Add": "write", "Update": "edit", "Delete": "delete"}
    found += [(modes[verb], path) for verb, path in re.findall(r"(?m)^\*\*\* (Add|Update|Delete) File: (.+)$", text)]
    found += [("write", path) for path in re.findall(r"(?m)^\*\*\* Move to: (.+)$", text)]
    for before, after in re.findall(r"(?m)^--- (\S+).*\n\+\+\+ (\S+)", text):
        stripped = re.sub(r"^[ab]/", "", before if after == "/dev/null" else after)
        mode: AccessMode = "delete" if after == "/dev/null" else "write" if before == "/dev/null" else "edit"
        found.append((mode, stripped))
    return found
