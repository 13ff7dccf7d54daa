"""Model calls of a child's parent, by which the gateway replays the parent's turns, or checks a resumed session."""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from benchflow.contracts.agent_record import AgentRecord
from benchflow.contracts.gateway import ReplaySettings
from benchflow.contracts.job import RolloutSpec
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.paths import RolloutPaths
from benchflow.trajectories.growth import get_step_node
from benchflow.trajectories.journal import iterate_journal


class ParentCalls:
    """The model calls of a rollout's parent. For a root, methods return an empty value.

    Args:
        spec: The rollout.
        record: Registry record of the rollout's agent.
        results: Results of the rollout.
        parent_results: Results of the parent; None for a root.
    """

    def __init__(
        self, spec: RolloutSpec, record: AgentRecord, results: RolloutPaths, parent_results: RolloutPaths | None
    ) -> None:
        """Make it."""
        self._branch = spec.branch
        self._record = record
        self._results = results
        self._parent_results = parent_results

    def make_prefix(self) -> dict[str, Any]:
        """Return the fields of `Registration` about the parent's calls that precede a resumed session's first call.

        Empty for a root, and for a child whose session is neither loaded nor replayed.
        """
        branch = self._branch
        layer = branch.checkpoint.session if branch is not None else None
        if branch is None or layer is None or not layer.requests or (layer.rung != "load" and branch.replays is None):
            return {}
        return {
            "prefix": str(self._parent_record),
            "prefix_requests": layer.requests,
            "prefix_replayed": branch.replays is not None,
        }

    def make_replay(self) -> ReplaySettings | None:
        """Return the replay that brings a child's session to the state of the parent's; None if none is needed.

        It consists of the parent's calls in the turns before that state. If the child has its own answer to a question
        of the parent's agent, the calls of the turn of that question are included. They are copied to a file in the
        child's results, once.
        """
        branch = self._branch
        if branch is None or (branch.child.answer is None and branch.replays is None):
            return None
        done = branch.checkpoint.steps_done
        first = branch.replays.steps_done if branch.replays is not None else done
        turns = range(first, done + (branch.child.answer is not None))
        record = self._locate_copy("asked_before" if branch.replays is None else "session_before")
        if not record.exists():
            _copy_calls(self._parent_record, turns, record)
        if branch.replays is None:
            return ReplaySettings(record=str(record))
        last = max((line["seq"] for line in iterate_journal(record) if line["type"] == "request"), default=None)
        # Strict: a request that differs on the way there is refused, not sent to the upstream.
        return ReplaySettings(record=str(record), until=str(last), strict=True) if last is not None else None

    def count_calls_left(self) -> int:
        """Return the number of recorded calls that remain when the replayed session has reached the parent's state.

        They belong to the next turn, which leads to a question that the child answers itself; 0 without one.
        """
        from benchflow.gateway.recording import Recording

        branch = self._branch
        if branch is None or branch.child.answer is None:
            return 0
        calls = Recording(self._locate_copy("session_before"), self._record.name.removeprefix("acpx/")).calls
        return sum(call.answered and not call.side and call.node == get_step_node(branch.node) for call in calls)

    @property
    def _parent_record(self) -> Path:
        assert self._parent_results is not None
        return self._parent_results.model_calls

    def _locate_copy(self, name: str) -> Path:
        return self._results.model_calls.with_name(f"{name}.jsonl")


def _copy_calls(record: Path, turns: Container[int], target: Path) -> None:
    """Copy the requests of some turns, with their responses, from one record to another."""
    ids, copied = set(), ""
    for line in iterate_journal(record):
        if line["type"] == "request" and line["turn"] in turns:
            ids.add(line["id"])
        if line["id"] in ids:
            copied += json.dumps(line, ensure_ascii=False) + "\n"
    with raise_storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, copied.encode(), durable=False)
