"""Reward functions of somebody's own package, good and bad, as tasks and rubrics name them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

from benchflow.contracts.reward import RewardEvent, RolloutNode, Space, VerifyResult

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass(frozen=True)
class Politeness:
    """1 if the agent says please."""

    language: str = "en"
    space: ClassVar[Space] = "action"

    async def score(self, node: RolloutNode) -> RewardEvent:
        word = {"en": "please", "de": "bitte"}[self.language]
        return RewardEvent(space="action", value=float(word in node.answer), source="politeness", ts=NOW)


@dataclass
class Says:
    """Returns, or raises, what it was made with; `space` only where one is given."""

    what: Any
    space: Space = field(default="output", init=True)

    async def score(self, node: RolloutNode) -> Any:
        if isinstance(self.what, BaseException):
            raise self.what
        if isinstance(self.what, int | float) and not isinstance(self.what, bool):
            return RewardEvent.model_construct(
                space=self.space, granularity="terminal", value=self.what, source="says", ts=NOW, step=None, tag=None
            )
        return self.what


@dataclass
class Unsaid:
    """Says nothing of its space by itself."""

    what: RewardEvent | VerifyResult | Exception

    async def score(self, node: RolloutNode) -> RewardEvent | VerifyResult:
        if isinstance(self.what, Exception):
            raise self.what
        return self.what


BARRIERS: dict[str, asyncio.Barrier] = {}


@dataclass
class Meets:
    """Ends only when as many are under way as the barrier of this place waits for."""

    place: str

    async def score(self, node: RolloutNode) -> RewardEvent:
        await BARRIERS[self.place].wait()
        return RewardEvent(value=1.0, source="meets", ts=NOW)


class NotAsync:
    def score(self, node: RolloutNode) -> RewardEvent:
        return RewardEvent(value=1.0, source="sync", ts=NOW)


class Scoreless:
    pass


class OfNoSpace(Politeness):
    space: ClassVar[Any] = "outer"


class Picky:
    def __init__(self, *, pick: int) -> None:
        raise RuntimeError("nothing is right")

    async def score(self, node: RolloutNode) -> RewardEvent:
        raise NotImplementedError


A_NUMBER = 3
