"""What `reward.json` holds, as a `VerifyResult`: scalar, metrics, events. Reading the file is not done here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from benchflow.contracts.reward import AggregatePolicy, Granularity, RewardEvent, Space, VerifyResult
from benchflow.errors import VerifierError
from benchflow.planes.reward.aggregate import aggregate_metrics
from benchflow.planes.reward.strict import AGREEMENT, choice, in_range, mapping, number, quote, refuse, text_value

_RESERVED = frozenset({"reward", "metrics", "items", "events", "space", "granularity", "metadata"})
_EVENT_KEYS = frozenset({"value", "source", "ts", "tag", "meta", "space", "granularity", "type", "step", "step_index"})


@dataclass
class RewardDocument:
    """One document on its way to a `VerifyResult`.

    file: what errors call it. source: of its reward, and of events that name none. allowed: the range of rewards. now:
    stamps events that bring no time.
    """

    document: dict[str, Any]
    file: str
    source: str
    allowed: tuple[float, float]
    aggregate: AggregatePolicy | None
    now: datetime
    space: Space = field(init=False)
    granularity: Granularity = field(init=False)

    def result(self) -> VerifyResult:
        """What the document says. Raises `RewardFileError`."""
        document = self.document
        self.space = self._choice(document.get("space", "output"), get_args(Space), "space")
        self.granularity = self._choice(document.get("granularity", "terminal"), get_args(Granularity), "granularity")
        metrics = self._metrics()
        reward, source = self._reward(metrics)
        return VerifyResult(
            reward=reward,
            items=metrics,
            events=self._events(reward, source),
            space=self.space,
            granularity=self.granularity,
            metadata=self._mapping(document.get("metadata", {}), "metadata"),
        )

    def _metrics(self) -> dict[str, float]:
        """Top-level numbers, `metrics` and `items`: three places for one thing, which must not disagree."""
        found: dict[str, float] = {}
        places: list[tuple[str, Mapping[str, Any]]] = [
            ("", {name: value for name, value in self.document.items() if name not in _RESERVED}),
            ("metrics.", self._mapping(self.document.get("metrics", {}), "metrics")),
            ("items.", self._mapping(self.document.get("items", {}), "items")),
        ]
        for prefix, values in places:
            for name, value in values.items():
                figure = number(value, file=self.file, key=prefix + name)
                if name == "reward" and "reward" not in self.document:
                    refuse(self.file, "the reward is not a metric", "move it up", key=prefix + name)
                known = self.document.get("reward") if name == "reward" else found.get(name)
                if known is not None and known != figure:
                    refuse(
                        self.file,
                        f"{figure!r} contradicts {quote(known)}, which is also there for {name}",
                        "give a metric once",
                        key=prefix + name,
                    )
                if name != "reward":
                    found[name] = figure
        return found

    def _reward(self, metrics: Mapping[str, float]) -> tuple[float, str]:
        if "reward" in self.document:
            value = number(self.document["reward"], file=self.file, key="reward")
            return in_range(value, self.allowed, file=self.file, key="reward"), self.source
        if self.aggregate is None:
            refuse(
                self.file,
                f"there is no reward in {quote(self.document)}",
                "add a number, or declare outputs.aggregate_policy in verifier/verifier.md",
                key="reward",
            )
        method = self.aggregate.method
        try:
            value = aggregate_metrics(metrics, self.aggregate)
        except VerifierError as error:
            refuse(self.file, error.message, error.remedy or "add a reward")
        value = number(value, file=self.file, key=method)
        return in_range(value, self.allowed, file=self.file, key=method), f"aggregate:{method}"

    def _events(self, reward: float, source: str) -> list[RewardEvent]:
        """The declared events, and the scalar as one more unless a terminal event says it already."""
        declared = self.document.get("events", [])
        if not isinstance(declared, list):
            refuse(self.file, f"{quote(declared)} is not a list", "write a list of objects", key="events")
        events = [self._event(item, f"events[{index}]") for index, item in enumerate(declared)]
        if any(event.granularity == "terminal" and abs(event.value - reward) <= AGREEMENT for event in events):
            return events
        scalar = RewardEvent(space=self.space, granularity=self.granularity, value=reward, source=source, ts=self.now)
        return [*events, scalar]

    def event(self) -> RewardEvent:
        """The document as one event, as `rewards.jsonl` has a line for each."""
        self.space, self.granularity = "output", "terminal"
        return self._event(self.document, "")

    def _event(self, item: object, place: str) -> RewardEvent:
        data = self._mapping(item, place)
        for name in data.keys() - _EVENT_KEYS:
            refuse(
                self.file,
                f"{quote(name)} is not a key of an event",
                f"use {', '.join(sorted(_EVENT_KEYS))}; put anything else under meta",
                key=place,
            )
        at = f"{place}." if place else ""
        value = number(data.get("value"), file=self.file, key=f"{at}value")
        step = data.get("step", data.get("step_index"))
        if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
            refuse(self.file, f"{quote(step)} is not a step index", "count from 0", key=f"{at}step")
        return RewardEvent(
            space=self._choice(data.get("space", self.space), get_args(Space), f"{at}space"),
            granularity=self._event_granularity(data, at),
            value=in_range(value, self.allowed, file=self.file, key=f"{at}value"),
            source=self._text(data.get("source", self.source), f"{at}source"),
            ts=self._time(data.get("ts"), f"{at}ts"),
            step=step,
            tag=None if data.get("tag") is None else self._text(data["tag"], f"{at}tag"),
            meta=self._mapping(data.get("meta", {}), f"{at}meta"),
        )

    def _event_granularity(self, data: Mapping[str, Any], at: str) -> Granularity:
        # `type` is the word that rewards.jsonl uses; process is its name for a step.
        if "granularity" not in data and "type" in data:
            kind: Literal["terminal", "process"] = self._choice(data["type"], ("terminal", "process"), f"{at}type")
            return "terminal" if kind == "terminal" else "step"
        named: Granularity = self._choice(
            data.get("granularity", self.granularity), get_args(Granularity), f"{at}granularity"
        )
        return named

    def _time(self, value: object, key: str) -> datetime:
        if value is None:
            return self.now
        try:
            moment = datetime.fromisoformat(self._text(value, key))
        except ValueError:
            refuse(self.file, f"{quote(value)} is not a time", "write RFC 3339, with the offset", key=key)
        return moment if moment.tzinfo else moment.replace(tzinfo=self.now.tzinfo)

    def _choice(self, value: object, allowed: tuple[str, ...], key: str) -> Any:
        return choice(value, allowed, file=self.file, key=key)

    def _mapping(self, value: object, key: str) -> dict[str, Any]:
        return mapping(value, file=self.file, key=key)

    def _text(self, value: object, key: str) -> str:
        return text_value(value, file=self.file, key=key)
