"""Captures and rollouts for the tests of the memory space, made by hand; those of sandboxes have tests of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchflow.contracts.reward import Evidence, RolloutNode
from benchflow.planes.reward.memory import MemoryCapture, MemoryFile, store_memory

HOME = "/home/agent"
SKILLS = f"{HOME}/.claude/skills"


def file(content: str, **other: Any) -> MemoryFile:
    data = content.encode()
    return MemoryFile(**({"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "text": content} | other))


def capture(files: Mapping[str, str | MemoryFile], directories: Sequence[str] = (HOME,), **other: Any) -> MemoryCapture:
    """files: by path, absolute or below the home."""
    told = {
        path if path.startswith("/") else f"{HOME}/{path}": one if isinstance(one, MemoryFile) else file(one)
        for path, one in files.items()
    }
    return MemoryCapture(home=HOME, workspace="/app", directories=tuple(directories), files=told, **other)


def node(
    directory: Path, before: MemoryCapture, after: MemoryCapture, events: Sequence[dict[str, Any]] = ()
) -> RolloutNode:
    """A rollout of one step whose evidence holds the captures."""
    store_memory(before, directory, "before")
    store_memory(after, directory, "after")
    rollout = Evidence(evidence=directory, workspace="/app")
    lines = tuple({"seq": seq, "node": "n1", "role": "agent"} | event for seq, event in enumerate(events))
    return RolloutNode(id="n1", parent=RolloutNode(id="n0", rollout=rollout), step=0, events=lines, rollout=rollout)
