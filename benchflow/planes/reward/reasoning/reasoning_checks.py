"""`ReasoningChecks`: compare what an agent states with what it did, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple

from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass

from benchflow.contracts.reward import RewardEvent, RolloutNode, Space, VerifyResult
from benchflow.errors import RewardFuncError
from benchflow.planes.reward.reasoning.narrative import StepStory, list_seqs, read_plan, read_stories

_SHOWN = 20
_MAX_TEXT = 200


class Check(NamedTuple):
    """The result of a check."""

    value: float
    """Value in [0, 1]."""

    meta: dict[str, Any]
    """Evidence."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ReasoningChecks:
    """The mean of cheap checks of what an agent states, in [0, 1]; each check is an item.

    A check that does not apply is left out: an agent may have no plan. Claims in texts are left to `ReasoningJudge`.
    """

    states_first: bool = True
    """Whether to check `states-first`: the share of steps with an action in which the agent states a plan, a thought or
    a message before the first one.
    """

    answers: bool = True
    """Whether to check `answers`: 1.0 if the agent wrote anything after its last action, else 0.0."""

    finished_plan: bool = True
    """Whether to check `finished-plan`: the share of entries, among those that its plan marks as completed, that were
    so marked after some action.
    """

    space: ClassVar[Space] = "reasoning"

    @model_validator(mode="after")
    def _require_check(self) -> ReasoningChecks:
        if not any((self.states_first, self.answers, self.finished_plan)):
            raise ValueError("checks nothing: leave one of the checks on")
        return self

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Return the mean, with an event for the whole, and one for each step that `states-first` checks.

        Raises:
            RewardFuncError: The agent stated and called nothing, such as the oracle, or no check applies.
        """
        stories = read_stories(node)
        if not stories:
            raise RewardFuncError(
                "there is nothing to check: the agent said nothing and called no tool",
                remedy="leave reasoning-checks out for agents that tell neither",
            )
        checks = {
            "states-first": _check_states_first(stories) if self.states_first else None,
            "answers": Check(float(bool(node.answer)), {}) if self.answers else None,
            "finished-plan": _check_finished_plan(node, stories) if self.finished_plan else None,
        }
        made = {name: check for name, check in checks.items() if check is not None}
        if not made:
            raise RewardFuncError(
                "there is nothing to check: none of the checks that are on applies to what the agent said",
                remedy="leave more of the checks on, for example `answers`",
            )
        value = sum(check.value for check in made.values()) / len(made)
        meta = {name: {"value": check.value} | check.meta for name, check in made.items()}
        events = _make_step_events(stories) if self.states_first else []
        events.append(_make_event(value, meta=meta))
        items = {name: check.value for name, check in made.items()}
        return VerifyResult(reward=value, items=items, events=events, space="reasoning")


def _make_event(value: float, **fields: Any) -> RewardEvent:
    return RewardEvent(space="reasoning", value=value, source="reasoning-checks", ts=datetime.now(UTC), **fields)


def _check_states_first(stories: Sequence[StepStory]) -> Check | None:
    acting = [story for story in stories if story.actions]
    silent = [story for story in acting if not story.has_stated_first]
    if not acting:
        return None
    meta = {"steps": len(acting), "silent": [story.actions[0].seq for story in silent[:_SHOWN]]}
    return Check(1 - len(silent) / len(acting), meta)


def _make_step_events(stories: Sequence[StepStory]) -> list[RewardEvent]:
    return [
        _make_event(
            float(story.has_stated_first),
            granularity="step",
            step=story.node.step,
            tag="states-first",
            meta={"node": story.node.id, "first_action": story.actions[0].seq, "stated": list_seqs(story.reasons)},
        )
        for story in stories
        if story.actions
    ]


def _check_finished_plan(node: RolloutNode, stories: Sequence[StepStory]) -> Check | None:
    """Check completed plan entries, where each is first marked as completed; return None if there are none."""
    actions = sorted(action.seq for story in stories for action in story.actions)
    finished: dict[str, int] = {}
    for place, event in enumerate(node.trajectory):
        if event.get("type") == "plan":
            seq = event["seq"] if isinstance(event.get("seq"), int) else place
            for content, status in read_plan(event):
                if status == "completed":
                    finished.setdefault(content, seq)
    if not finished:
        return None
    early = {content[:_MAX_TEXT]: seq for content, seq in finished.items() if not actions or seq < actions[0]}
    shown = dict(list(early.items())[:_SHOWN])
    return Check(1 - len(early) / len(finished), {"completed": len(finished), "without_action": shown})
