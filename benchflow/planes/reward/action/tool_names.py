"""Map the names that agents give their tools to canonical names, which reward functions use.

Canonical names of tools that most agents have: `shell`, `read_file`, `write_file`, `edit_file`, `delete_file`,
`move_file`, `search`, `fetch`, `ask_user`, `plan`, `subagent`, `think`. The tool of an MCP server is named
`SERVER__TOOL`. Every other tool keeps its own name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SPELLINGS = {
    "shell": "bash shell exec exec_command shell_command run_shell_command terminal execute_bash run run_command "
    "local_shell execute_command bash_tool",
    "read_file": "read read_file view view_image open_file read_many_files view_file",
    "write_file": "write write_file create_file save_file",
    "edit_file": "edit multiedit multi_edit edit_file replace apply_patch applypatch patch str_replace notebookedit "
    "str_replace_editor file_editor str_replace_based_edit_tool",
    "delete_file": "delete delete_file",
    "move_file": "move move_file",
    "search": "grep glob search find ls list list_directory list_dir search_file_content codesearch file_search",
    "fetch": "fetch webfetch web_fetch websearch web_search google_web_search browser",
    "ask_user": "ask_user askuserquestion ask_user_question ask question request_user_input ask_followup_question",
    "plan": "todowrite todo_write todoread update_plan write_todos plan",
    "subagent": "task agent spawn_agent subagent sessions_spawn",
    "think": "think",
}
_CANONICAL = {spelling: name for name, spellings in _SPELLINGS.items() for spelling in [name, *spellings.split()]}

_OF_KIND = {
    "execute": "shell",
    "read": "read_file",
    "edit": "edit_file",
    "delete": "delete_file",
    "move": "move_file",
    "search": "search",
    "fetch": "fetch",
    "think": "think",
}
"""Canonical names by ACP kind, for calls without a name."""

_WORD = re.compile(r"[A-Za-z][\w.-]{0,99}")
_EDITOR: Mapping[str, str] = {"view": "read_file", "create": "write_file"}
"""Canonical names by the command of an editor tool."""


@dataclass(frozen=True)
class ToolName:
    """The name of a tool, with its aliases."""

    name: str
    """Canonical name."""

    names: frozenset[str]
    """All names that it may be known by, in lower case."""

    server: str | None = None
    """MCP server; None for another tool."""

    tool: str | None = None
    """Name of the tool on its MCP server; None for another tool."""


def resolve_name(call: Mapping[str, Any], first_title: str, given: Mapping[str, Any]) -> ToolName:
    """Return the name of a call's tool.

    Args:
        call: Merged fields of the call's lines.
        first_title: Title of its first line that has one.
        given: Its input as an object.
    """
    own = _read_own_name(call, first_title)
    found = _find_mcp_tool(own, first_title, given)
    if found is not None:
        return make_mcp_name(*found, own)
    kind = str(call.get("kind"))
    name = _CANONICAL.get(own.lower(), own) if own else _OF_KIND.get(kind, "")
    if name == "shell" and kind in ("read", "search") and not given.get("command"):
        # Some agents report a shell command as the read or search that it does.
        name = _OF_KIND[kind]
    if name == "edit_file":
        if str(given.get("command")) in _EDITOR and "path" in given:
            name = _EDITOR[str(given["command"])]
        elif not own and "content" in given:
            name = "write_file"
    name = name or "other"
    names = {name.lower(), own.lower()} - {""}
    if own.lower() not in _CANONICAL and "_" in own:
        # Some agents join server and tool by a single underscore, which can't be told from those in either name.
        names.add(own.lower().partition("_")[2])
    return ToolName(name, frozenset(names))


def make_mcp_name(server: str, tool: str, own: str = "") -> ToolName:
    """Return the name of an MCP server's tool.

    Args:
        server: Name of the server.
        tool: Name of the tool on the server.
        own: The agent's own name for the tool, which becomes an alias; empty for none.
    """
    spellings = (f"{server}__{tool}", f"mcp__{server}__{tool}", f"{server}.{tool}", tool, own)
    return ToolName(f"{server}__{tool}", frozenset(one.lower() for one in spellings if one), server, tool)


def _read_own_name(call: Mapping[str, Any], title: str) -> str:
    """Return the agent's own name of the tool; empty if it doesn't report one."""
    if isinstance(call.get("name"), str) and call["name"]:
        return str(call["name"])
    meta = call.get("meta")
    by_claude = meta.get("claudeCode") if isinstance(meta, dict) else None
    if isinstance(by_claude, dict) and isinstance(by_claude.get("toolName"), str):
        return str(by_claude["toolName"])
    head, separator, _ = str(call.get("tool_call_id", "")).partition("__")
    if separator and (head.lower() in _CANONICAL or head.startswith("mcp_")):
        return head
    if headed := re.match(r"([A-Za-z][\w.-]*): \w+: ", title):
        return headed[1]
    is_word = _WORD.fullmatch(title) is not None
    expected = _OF_KIND.get(str(call.get("kind")))
    if expected is not None and is_word:
        # A title may be the command itself, in one word (`ls`): it is a name only if a tool of that name has this kind.
        found = _CANONICAL.get(title.lower())
        is_word = found == expected or (expected == "edit_file" and found == "write_file")
    return title if is_word else ""


def _find_mcp_tool(own: str, title: str, given: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (server, tool) of a call of an MCP tool; None for any other call."""
    server, tool = given.get("server"), given.get("tool")
    if isinstance(server, str) and isinstance(tool, str) and "arguments" in given:
        return server, tool
    for pattern, text in (
        (r"mcp__(.+?)__(.+)", own),
        (r"mcp_([^_]+)_(.+)", own),
        (r"mcp\.([^.]+)\.(.+)", title),
        (r"([A-Za-z][\w-]*)__([\w.-]+)", own),
        (r"([A-Za-z][\w-]*): ([\w.-]+)", "" if own else title),
    ):
        if found := re.fullmatch(pattern, text):
            return found[1], found[2]
    return None
