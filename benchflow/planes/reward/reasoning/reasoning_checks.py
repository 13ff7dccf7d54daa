"""`ReasoningChecks`: compare what an agent states and claims with what it did, without a model."""

from __future__ import annotations

import asyncio
import json
import posixpath
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from datetime import UTC, datetime
from typing import Any, ClassVar

from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass

from benchflow.archive_reader import read_archive
from benchflow.confined import ConfinedDirectory
from benchflow.contracts.reward import Evidence, RewardEvent, RolloutNode, Space, VerifyResult
from benchflow.errors import RewardFuncError, UnsafePathError
from benchflow.planes.reward.evidence import limits_of
from benchflow.planes.reward.reasoning.claims import claimed_files, claimed_success
from benchflow.planes.reward.reasoning.narrative import StepStory, StoryEntry, plan_entries, seqs_of, stories_of
from benchflow.planes.reward.reasoning.runs_of_tests import runs_tests

_SHOWN = 20
_LONGEST = 200
_MOST_READ = 64 * 1024 * 1024


@plain_dataclass(frozen=True)
class Check:
    """The result of a check."""

    value: float
    """Value in [0, 1]."""

    meta: dict[str, Any] = field(default_factory=dict)
    """Evidence."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ReasoningChecks:
    """The mean of cheap checks of what an agent states and claims, in [0, 1]; each check is an item.

    A check that does not apply is left out: an answer may claim nothing, an agent have no plan. Denials, intentions and
    quotations are no claims, and a run of tests with an unknown result did not fail.
    """

    states_first: bool = True
    """Whether to check `states-first`: the share of steps with an action in which the agent states a plan, a thought or
    a message before the first one.
    """

    claimed_files: bool = True
    """Whether to check `claimed-files`: the share of files, among those that the answer claims to have written, that a
    tool call names or that exist.
    """

    claimed_success: bool = True
    """Whether to check `claimed-success`, for an answer that claims that tests pass: 0.0 if the last run of tests
    failed or there was none, else 1.0.
    """

    answers: bool = True
    """Whether to check `answers`: 1.0 if the agent wrote anything after its last action, else 0.0."""

    finished_plan: bool = True
    """Whether to check `finished-plan`: the share of entries, among those that its plan marks as completed, that were
    so marked after some action.
    """

    space: ClassVar[Space] = "reasoning"

    @model_validator(mode="after")
    def _check_something(self) -> ReasoningChecks:
        if not any((self.states_first, self.claimed_files, self.claimed_success, self.answers, self.finished_plan)):
            raise ValueError("checks nothing: leave one of the checks on")
        return self

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Return the mean, with an event for the whole, and one for each step that `states-first` checks.

        Raises:
            RewardFuncError: The agent stated and called nothing, such as the oracle, or no check applies.
        """
        stories = stories_of(node)
        if not stories:
            raise RewardFuncError(
                "there is nothing to check: the agent said nothing and called no tool",
                remedy="leave reasoning-checks out for agents that tell neither",
            )
        checks = {
            "states-first": _states_first(stories) if self.states_first else None,
            "claimed-files": await _claimed_files(node, stories) if self.claimed_files else None,
            "claimed-success": _claimed_success(node, stories) if self.claimed_success else None,
            "answers": Check(float(bool(node.answer))) if self.answers else None,
            "finished-plan": _finished_plan(node, stories) if self.finished_plan else None,
        }
        made = {name: check for name, check in checks.items() if check is not None}
        if not made:
            raise RewardFuncError(
                "there is nothing to check: none of the checks that are on applies to what the agent said",
                remedy="leave more of the checks on, for example `answers`",
            )
        value = sum(check.value for check in made.values()) / len(made)
        meta = {name: {"value": check.value} | check.meta for name, check in made.items()}
        events = _of_steps(stories) if self.states_first else []
        events.append(_event(value, meta=meta))
        items = {name: check.value for name, check in made.items()}
        return VerifyResult(reward=value, items=items, events=events, space="reasoning")


def _event(value: float, **fields: Any) -> RewardEvent:
    return RewardEvent(space="reasoning", value=value, source="reasoning-checks", ts=datetime.now(UTC), **fields)


# --- what is stated ------------------------------------------------------------------------------------


def _states_first(stories: Sequence[StepStory]) -> Check | None:
    acting = [story for story in stories if story.actions]
    silent = [story for story in acting if not story.stated_first]
    if not acting:
        return None
    meta = {"steps": len(acting), "silent": [story.actions[0].seq for story in silent[:_SHOWN]]}
    return Check(1 - len(silent) / len(acting), meta)


def _of_steps(stories: Sequence[StepStory]) -> list[RewardEvent]:
    return [
        _event(
            float(story.stated_first),
            granularity="step",
            step=story.node.step,
            tag="states-first",
            meta={"node": story.node.id, "first_action": story.actions[0].seq, "stated": seqs_of(story.reasons)},
        )
        for story in stories
        if story.actions
    ]


def _finished_plan(node: RolloutNode, stories: Sequence[StepStory]) -> Check | None:
    """Check completed plan entries, where each is first marked as completed; return None if there are none."""
    begun = sorted(action.seq for story in stories for action in story.actions)
    finished: dict[str, int] = {}
    for place, event in enumerate(node.trajectory):
        if event.get("type") == "plan":
            seq = event["seq"] if isinstance(event.get("seq"), int) else place
            for content, status in plan_entries(event):
                if status == "completed":
                    finished.setdefault(content, seq)
    if not finished:
        return None
    early = {content[:_LONGEST]: seq for content, seq in finished.items() if not begun or seq < begun[0]}
    shown = dict(list(early.items())[:_SHOWN])
    return Check(1 - len(early) / len(finished), {"completed": len(finished), "without_action": shown})


# --- what is claimed -----------------------------------------------------------------------------------


async def _claimed_files(node: RolloutNode, stories: Sequence[StepStory]) -> Check | None:
    """Check that claimed files are named by a call, retained or in the sandbox; None if no file is claimed."""
    claimed = claimed_files(node.answer)
    if not claimed:
        return None
    told = [_told(action) for story in stories for action in story.actions]
    unnamed = [path for path in claimed if not any(posixpath.basename(path) in one for one in told)]
    if unnamed:
        there = await asyncio.to_thread(_kept, node.rollout)
        unnamed = [path for path in unnamed if posixpath.basename(path) not in there]
    missing = [path for path in unnamed if not await _is_there(path, node.rollout)]
    meta = {"claimed": [path[:_LONGEST] for path in claimed[:_SHOWN]], "missing": missing[:_SHOWN]}
    return Check(1 - len(missing) / len(claimed), meta)


def _told(action: StoryEntry) -> str:
    """Return all text that is known of an action: title, paths, input and output."""
    call, outcome = action.call, action.outcome
    named = [call.title, *(access.path for access in call.accesses)] if call else []
    content = json.dumps(call.input, ensure_ascii=False, default=str) if call else ""
    return "\n".join([*named, content, outcome.text if outcome else ""])


def _kept(rollout: Evidence) -> set[str]:
    """Return the names of the files that were retained of the sandbox. Raise `RewardFuncError` on failure."""
    names: set[str] = set()
    places = [rollout.evidence / "inputs"] if rollout.evidence else []
    places += [rollout.directory / "artifacts"] if rollout.directory else []
    workspace = rollout.evidence / "workspace.tar" if rollout.evidence else None
    try:
        for place in places:
            if place.is_dir():
                with ConfinedDirectory(place) as directory:
                    names.update(posixpath.basename(entry.name) for entry in directory.entries() if entry.is_file)
        if workspace is not None and workspace.is_file():
            with workspace.open("rb") as file:
                names.update(member.parts[-1] for member in read_archive(file, limits_of(file)) if member.parts)
    except (tarfile.TarError, OSError, UnsafePathError) as error:
        raise RewardFuncError(
            f"what was kept of the sandbox cannot be read: {error}",
            file=str(rollout.evidence or rollout.directory),
            remedy="restore the files, or leave claimed_files out",
        ) from error
    return names


async def _is_there(path: str, rollout: Evidence) -> bool:
    """Return whether a file exists in the sandbox; false if there is no sandbox any more."""
    if rollout.workbench is None or path.startswith("~"):
        return False
    return await rollout.workbench.read(path, limit=_MOST_READ) is not None


def _claimed_success(node: RolloutNode, stories: Sequence[StepStory]) -> Check | None:
    """Check a claim that tests pass against the last run of tests; None if there is no such claim."""
    claim = claimed_success(node.answer)
    if claim is None:
        return None
    runs = [(action, kind) for story in stories for action in story.actions if (kind := _runs(action)) is not None]
    # Commands that are only named like a test count if no known test program was run.
    tests = [action for action, kind in runs if kind == "runner"] or [action for action, _ in runs]
    meta: dict[str, Any] = {"claim": claim[:_LONGEST], "runs": seqs_of(tests[-_SHOWN:])}
    if not tests:
        return Check(0.0, meta | {"why": "no tests were run"})
    last = tests[-1]
    if last.outcome is not None and last.outcome.tests_failed:
        shown = {"seq": last.seq, "exit_code": last.outcome.exit_code, "output": last.outcome.text[-_LONGEST:]}
        return Check(0.0, meta | {"why": "the last run of tests failed", "last": shown})
    return Check(1.0, meta)


def _runs(action: StoryEntry) -> str | None:
    return runs_tests(action.call) if action.call else None
