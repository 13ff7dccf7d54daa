"""Trajectories for the tests of the reasoning space, a few lines each, and nodes over them."""

from __future__ import annotations

import itertools
from typing import Any

from benchflow.contracts.reward import Evidence, RolloutNode

Line = dict[str, Any]
_numbers = itertools.count()


def node_of(*steps: list[Line], **evidence: Any) -> RolloutNode:
    """The last node of a chain: a root, and one for each step, whose lines get `seq`, `node` and `role`."""
    rollout = Evidence(**({"workspace": "/app", "task": "demo", "instruction": "Write a report."} | evidence))
    node, seq = RolloutNode("root", rollout=rollout), itertools.count()
    for step, lines in enumerate(steps):
        events = tuple({"seq": next(seq), "node": f"n{step}", "role": "agent"} | line for line in lines)
        node = RolloutNode(f"n{step}", parent=node, step=step, events=events, rollout=rollout)
    return node


def say(text: str) -> Line:
    return {"type": "agent_message", "text": text}


def think(text: str) -> Line:
    return {"type": "agent_thought", "text": text}


def asked(text: str) -> Line:
    return {"type": "user_message", "text": text}


def plan(**entries: str) -> Line:
    """entries: status by content."""
    return {"type": "plan", "entries": [{"content": c, "status": s, "priority": "low"} for c, s in entries.items()]}


def call(given: dict[str, Any], output: Any = None, status: str = "completed", **fields: Any) -> list[Line]:
    """A call of a tool, begun and ended."""
    name = f"call_{next(_numbers)}"
    line = {"type": "tool_call", "tool_call_id": name, "kind": "other", "title": "", "content": []} | fields
    ended = {"type": "tool_call_update", "tool_call_id": name, "status": status}
    return [
        line | {"status": "pending", "raw_input": given},
        ended | ({} if output is None else {"raw_output": output}),
    ]


def run(command: str, output: str = "", exit_code: int | None = None, status: str = "completed") -> list[Line]:
    """A shell command."""
    told = {"output": output} | ({} if exit_code is None else {"exit_code": exit_code})
    return call({"command": command}, told, status, kind="execute", title=command, name="bash")


def write(path: str) -> list[Line]:
    return call({"file_path": path, "content": "x"}, "Done.", kind="edit", title=f"Write {path}", name="Write")
