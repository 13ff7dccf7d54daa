"""Trajectories as agents write them, a few lines each, and nodes over them."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from benchflow.contracts.reward import Evidence, RewardEvent, RewardFunc, RolloutNode, VerifyResult
from benchflow.planes.reward.action.tool_calls import ToolCall, list_calls

Line = dict[str, Any]


def node_of(*steps: list[Line], workspace: str = "/app") -> RolloutNode:
    """The last node of a chain: a root, and one for each step, whose lines get `seq`, `ts`, `node` and `role`."""
    rollout = Evidence(workspace=workspace)
    node = RolloutNode("root", rollout=rollout)
    seq = itertools.count()
    for step, lines in enumerate(steps):
        name = f"n{step}"
        shared = {"ts": "2026-03-12T09:00:00.000Z", "node": name, "role": "agent"}
        events = tuple({"seq": next(seq)} | shared | line for line in lines)
        node = RolloutNode(name, parent=node, step=step, events=events, rollout=rollout)
    return node


def calls(*lines: Line, workspace: str = "/app") -> list[ToolCall]:
    return list_calls(node_of(list(lines), workspace=workspace))


def scored(function: RewardFunc, *steps: list[Line], workspace: str = "/app") -> VerifyResult:
    result = asyncio.run(_score(function, node_of(*steps, workspace=workspace)))
    assert isinstance(result, VerifyResult)
    return result


async def _score(function: RewardFunc, node: RolloutNode) -> RewardEvent | VerifyResult:
    return await function.score(node)


# --- the policy agent's ---------------------------------------------------------------------------------

_numbers = itertools.count()


def shell(command: str, status: str = "completed") -> list[Line]:
    call = f"call_{next(_numbers):04d}_0"
    title = command if len(command) <= 100 else f"{command[:100]}…"
    begun = {"type": "tool_call", "tool_call_id": call, "title": title, "kind": "execute", "status": "in_progress"}
    ended = {"type": "tool_call_update", "tool_call_id": call, "status": status}
    return [begun | {"content": [], "raw_input": {"command": command}}, ended | {"raw_output": {"output": ""}}]


def file_call(verb: str, path: str, **more: Any) -> list[Line]:
    """verb: `read` or `write`."""
    call = f"call_{next(_numbers):04d}_0"
    begun = {"type": "tool_call", "tool_call_id": call, "title": f"{verb} {path}", "content": []}
    told = {"status": "in_progress", "locations": [{"path": path}], "raw_input": {"path": path} | more}
    return [
        begun | told | {"kind": "read" if verb == "read" else "edit"},
        {"type": "tool_call_update", "tool_call_id": call, "status": "completed", "raw_output": {"output": ""}},
    ]


def mcp(server: str, tool: str, status: str = "completed", **given: Any) -> list[Line]:
    call = f"call_{next(_numbers):04d}_0"
    begun = {"type": "tool_call", "tool_call_id": call, "title": f"{server}: {tool}", "kind": "other", "content": []}
    return [
        begun | {"status": "in_progress", "raw_input": given},
        {"type": "tool_call_update", "tool_call_id": call, "status": status, "raw_output": {"output": "{}"}},
    ]


def say(text: str) -> list[Line]:
    return [{"type": "agent_message", "text": text}]


def edit(path: str, before: str | None, after: str) -> list[Line]:
    """Claude Code's, whose input comes bit by bit."""
    call = f"toolu_{next(_numbers):04d}"
    meta = {"claudeCode": {"toolName": "Edit" if before else "Write"}}
    name = "Edit" if before else "Write"
    diff = {"type": "diff", "path": path, "oldText": before, "newText": after}
    line = {"tool_call_id": call, "meta": meta}
    begun = {"kind": "edit", "title": name, "name": name, "status": "pending", "content": [], "raw_input": {}}
    given = {"file_path": path} | ({"old_string": before, "new_string": after} if before else {"content": after})
    return [
        line | begun | {"type": "tool_call", "locations": []},
        line | {"type": "tool_call_update", "raw_input": {"file_path": path}, "locations": [{"path": path}]},
        line | {"type": "tool_call_update", "raw_input": given, "content": [diff]},
        line | {"type": "tool_call_update", "status": "completed", "raw_output": "The file has been updated."},
    ]
