"""What a command or a piece of code does, as far as its text tells: files that it reads and writes, and requests."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

AccessMode = Literal["read", "write", "edit", "delete", "run"]
"""`write` gives a file new content, whether it was there or not; `edit` and `delete` say that it was there."""


@dataclass(frozen=True)
class Access:
    """A file that was read or written. path: absolute, perhaps with wildcards. content: what was written, if told."""

    path: str
    mode: AccessMode
    by: str = ""
    content: str | None = None


@dataclass(frozen=True)
class Request:
    """An HTTP request. body: its text, None where it has none or it is not told."""

    method: str
    url: str
    body: str | None = None
    by: str = ""

    @property
    def tool_call(self) -> tuple[str, dict[str, Any]] | None:
        """The MCP tool that it calls, and the arguments."""
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
    """What was done, in order. scripts: shell scripts that it ran in turn, not looked into yet."""

    accesses: list[Access] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)

    def add(self, other: Touched) -> None:
        self.accesses += other.accesses
        self.requests += other.requests
        self.scripts += other.scripts


def whole_url(text: str) -> str:
    """With a scheme, which commands may leave out."""
    return text if re.match(r"[a-zA-Z][\w+.-]*://", text) else f"http://{text}"


def patched(text: str) -> list[tuple[AccessMode, str]]:
    """The files of a patch, in the form of `apply_patch` or of `diff -u`."""
    found: list[tuple[AccessMode, str]] = []
    modes: dict[str, AccessMode] = {"Add": "write", "Update": "edit", "Delete": "delete"}
    found += [(modes[verb], path) for verb, path in re.findall(r"(?m)^\*\*\* (Add|Update|Delete) File: (.+)$", text)]
    found += [("write", path) for path in re.findall(r"(?m)^\*\*\* Move to: (.+)$", text)]
    for before, after in re.findall(r"(?m)^--- (\S+).*\n\+\+\+ (\S+)", text):
        stripped = re.sub(r"^[ab]/", "", before if after == "/dev/null" else after)
        mode: AccessMode = "delete" if after == "/dev/null" else "write" if before == "/dev/null" else "edit"
        found.append((mode, stripped))
    return found
