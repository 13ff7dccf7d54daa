"""Read the tool calls of a trajectory, of any agent: each call's lines merged, with files and requests it touched.

Calls are as the agent reports them. Failed and refused calls are included, since they were tried. The oracle's
`solve.sh` makes no tool calls, and an agent that reports nothing has none: functions then score that nothing was
called, and nothing forbidden either.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchflow.contracts.reward import RolloutNode
from benchflow.planes.reward.action.programs import read_script_effects
from benchflow.planes.reward.action.python_code import read_python
from benchflow.planes.reward.action.shell_reader import ShellCommand, resolved
from benchflow.planes.reward.action.tool_names import ToolName, make_mcp_name, resolve_name
from benchflow.planes.reward.action.touched import Access, AccessMode, Touched, TouchedRequest, read_patch

_PATH_KEYS = (
    "path", "file_path", "filePath", "filepath", "notebook_path", "absolute_path", "dir_path", "file", "filename",
    "target_file", "source", "destination",
)  # fmt: skip
_MODES: Mapping[str, AccessMode] = {
    "read_file": "read",
    "search": "read",
    "write_file": "write",
    "edit_file": "edit",
    "delete_file": "delete",
    "move_file": "delete",
}


@dataclass(frozen=True)
class ToolCall:
    """A tool call, merged from all of its lines in the trajectory."""

    id: str
    """Id that the agent gave it; a later session may use it again."""

    seq: int
    """Sequence number of its first line."""

    node: str
    """Id of the node that the call led to."""

    step: int | None
    """Index of that node's step; None if the node has none, and for calls read by `read_calls`."""

    called: ToolName
    """Name of the tool, with all names that it may go by."""

    kind: str
    """ACP kind that the agent reported last; `other` if it reported none."""

    status: str
    """Status that the agent reported last, such as `completed` or `failed`; empty if it reported none."""

    title: str
    """Title that the agent reported last; empty if it reported none."""

    input: dict[str, Any]
    """Arguments; `{}` if they were not reported."""

    commands: tuple[ShellCommand, ...]
    """Simple commands of the shell scripts that it ran."""

    accesses: tuple[Access, ...]
    """Files that it read, wrote, deleted or ran."""

    requests: tuple[TouchedRequest, ...]
    """HTTP requests that it made."""

    @property
    def name(self) -> str:
        """Return the canonical name of the tool, see `names`."""
        return self.called.name

    @property
    def failed(self) -> bool:
        """Return whether the agent reported that it failed."""
        return self.status == "failed"

    @cached_property
    def tools(self) -> tuple[tuple[ToolName, dict[str, Any]], ...]:
        """Return (name, arguments) of the tool, and of the MCP tools that it called over HTTP."""
        mcp_calls = [call for request in self.requests if (call := request.tool_call)]
        return (
            (self.called, self.input),
            *((make_mcp_name(_find_host(self.requests), tool), given) for tool, given in mcp_calls),
        )

    def paths(self, *modes: AccessMode) -> list[str]:
        """Return the paths of the files that it accessed in one of these modes; of all if no mode is given."""
        return [access.path for access in self.accesses if not modes or access.mode in modes]

    @property
    def excerpt(self) -> str:
        """Return its name and input on one line, of at most 200 characters."""
        return " ".join(f"{self.name} {json.dumps(self.input, default=str)}".split())[:200]


def list_calls(node: RolloutNode) -> list[ToolCall]:
    """Return the tool calls on the path from the root to a node, in order."""
    lines = [(one.id, one.step, event) for one in node.path for event in one.events]
    return _merge_calls(lines, node.rollout.workspace)


def read_calls(events: Iterable[Mapping[str, Any]], workspace: str = "/") -> list[ToolCall]:
    """Return the tool calls in the lines of a trajectory, in order.

    Args:
        events: Lines of the trajectory.
        workspace: Directory to which relative paths refer.
    """
    return _merge_calls([(str(event.get("node", "")), None, event) for event in events], workspace)


def _merge_calls(lines: Iterable[tuple[str, int | None, Mapping[str, Any]]], workspace: str) -> list[ToolCall]:
    open_calls: dict[str, _Lines] = {}
    found: list[_Lines] = []
    for place, (node, step, event) in enumerate(lines):
        kind, call = event.get("type"), event.get("tool_call_id")
        if kind == "permission_request":
            # Some agents report a call's input only in a permission request.
            params = event.get("params")
            asked = params.get("toolCall") if isinstance(params, dict) else None
            if isinstance(asked, dict) and (known := open_calls.get(str(asked.get("toolCallId")))):
                known.merge(
                    {"raw_input": asked.get("rawInput"), "content": asked.get("content"), "name": asked.get("name")}
                )
        elif kind in ("tool_call", "tool_call_update"):
            # A new session may use the ids of an earlier one again.
            if kind == "tool_call" or str(call) not in open_calls:
                seq = event.get("seq")
                open_calls[str(call)] = _Lines(str(call), seq if isinstance(seq, int) else place, node, step)
                found.append(open_calls[str(call)])
            open_calls[str(call)].merge(event)
    scripts: dict[str, str] = {}
    return [one.make_call(workspace, scripts) for one in found]


class _Lines:
    """The lines of one call, merged: a later value replaces an earlier one unless it is empty, and lists are joined."""

    def __init__(self, call: str, seq: int, node: str, step: int | None) -> None:
        self.id, self.seq, self.node, self.step = call, seq, node, step
        self.fields: dict[str, Any] = {"tool_call_id": call}
        self.first_title: str | None = None
        self.content: list[Any] = []
        self.locations: list[Any] = []

    def merge(self, line: Mapping[str, Any]) -> None:
        """Merge a line into the call."""
        if self.first_title is None and isinstance(line.get("title"), str):
            self.first_title = line["title"]
        for key in ("name", "kind", "title", "status", "raw_input", "raw_output"):
            if line.get(key) not in (None, {}, "", []):
                self.fields[key] = line[key]
        if isinstance(line.get("meta"), dict):
            self.fields["meta"] = self.fields.get("meta", {}) | line["meta"]
        self.content += line["content"] if isinstance(line.get("content"), list) else []
        self.locations += line["locations"] if isinstance(line.get("locations"), list) else []

    def make_call(self, workspace: str, scripts: dict[str, str]) -> ToolCall:
        """Return the call.

        Args:
            workspace: Directory to which relative paths refer.
            scripts: Content of the files that the agent has written so far, by path; files that this call writes are
                added.
        """
        given = _read_input(self.fields.get("raw_input"))
        called = resolve_name(self.fields, self.first_title or "", given)
        if called.server is not None and isinstance(given.get("arguments"), dict):
            given = given["arguments"]
        where = next((given[key] for key in ("cwd", "workdir", "dir_path") if isinstance(given.get(key), str)), ".")
        cwd = resolved(where, workspace)
        touched, commands = Touched(), list[ShellCommand]()
        if called.server is None:
            script = self._read_script(called, given)
            if script:
                commands, touched = read_script_effects(script, cwd)
            else:
                touched = self._list_touched(called, given, cwd)
            if isinstance(given.get("url"), str):
                touched.requests.append(TouchedRequest(str(given.get("method", "GET")).upper(), given["url"]))
        _add_own_scripts(commands, touched, scripts, cwd)
        return ToolCall(
            self.id, self.seq, self.node, self.step, called, str(self.fields.get("kind", "other")),
            str(self.fields.get("status", "")), str(self.fields.get("title", "")), given,
            tuple(commands), tuple(touched.accesses), tuple(touched.requests),
        )  # fmt: skip

    def _read_script(self, called: ToolName, given: Mapping[str, Any]) -> str:
        """Return the script of a call of the shell, from its input or else from its title; empty for any other tool."""
        if called.name != "shell":
            return ""
        script = next((given[key] for key in ("command", "cmd", "script", "input") if given.get(key)), None)
        if isinstance(script, list):
            return shlex.join(map(str, script))
        title = str(self.fields.get("title", ""))
        return script if isinstance(script, str) else title if title.lower() not in called.names else ""

    def _list_touched(self, called: ToolName, given: Mapping[str, Any], cwd: str) -> Touched:
        """Return the files that a call of another tool touched: by its patches, diffs, path arguments and locations."""
        touched = Touched()
        mode = _MODES.get(called.name, "read")
        content = next((given[key] for key in ("content", "file_text") if isinstance(given.get(key), str)), None)
        text = "\n".join(value for value in given.values() if isinstance(value, str) and "*** Begin Patch" in value)
        changes = [*read_patch(text), *self._list_diffs()]
        for one, path in changes:
            touched.accesses.append(Access(resolved(path, cwd), one, self.first_title or "", content))
        paths = [given[key] for key in _PATH_KEYS if isinstance(given.get(key), str)]
        paths += [
            str(one["path"]) for one in self.locations if isinstance(one, dict) and isinstance(one.get("path"), str)
        ]
        seen = {access.path for access in touched.accesses}
        for path in paths if called.name in _MODES else ():
            if resolved(path, cwd) not in seen:
                seen.add(resolved(path, cwd))
                touched.accesses.append(Access(resolved(path, cwd), mode, self.first_title or "", content))
        return touched

    def _list_diffs(self) -> list[tuple[AccessMode, str]]:
        """Return (mode, path) of each file in the call's diffs, once: `edit` if an old text is shown, else `write`."""
        found: dict[str, AccessMode] = {}
        for block in self.content:
            if isinstance(block, dict) and block.get("type") == "diff" and isinstance(block.get("path"), str):
                mode: AccessMode = "edit" if block.get("oldText") else "write"
                found[block["path"]] = "edit" if "edit" in (mode, found.get(block["path"])) else mode
        return [(mode, path) for path, mode in found.items()]


def _add_own_scripts(commands: list[ShellCommand], touched: Touched, scripts: dict[str, str], cwd: str) -> None:
    """Add the effects of scripts that the agent wrote in an earlier call, or in this one, and runs now."""
    for access in list(touched.accesses):
        if access.mode == "write" and access.content:
            scripts[access.path] = access.content
        elif access.mode == "run" and (text := scripts.get(access.path)):
            if access.path.endswith(".py"):
                touched.add(read_python(text, cwd))
            else:
                more, done = read_script_effects(text, cwd)
                commands += more
                touched.add(done)


def _read_input(raw: Any) -> dict[str, Any]:
    """Return a call's raw input as an object: text that is not JSON as `input`, a list as `command`."""
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError):
            return {"input": raw}
    if isinstance(raw, list):
        return {"command": raw}
    return {str(key): value for key, value in raw.items()} if isinstance(raw, dict) else {}


def _find_host(requests: Iterable[TouchedRequest]) -> str:
    """Return the host of the first request that calls an MCP tool; empty if there is none."""
    return next((one.url.partition("://")[2].partition("/")[0] for one in requests if one.tool_call), "")
