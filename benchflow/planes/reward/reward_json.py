"""Interpretation of the content of `reward.json` as a `VerifyResult`: scalar, metrics, events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from benchflow.contracts.reward import LENIENT_VARIABLE, AggregatePolicy, Granularity, RewardEvent, Space, VerifyResult
from benchflow.errors import VerifierError
from benchflow.planes.reward.aggregate import aggregate_metrics
from benchflow.planes.reward.strict import (
    AGREEMENT,
    clamp_to_range,
    quote,
    refuse,
    require_choice,
    require_mapping,
    require_number,
    require_text,
)

_RESERVED = frozenset({"reward", "metrics", "items", "events", "space", "granularity", "metadata"})
STRUCTURED = frozenset(
    {
        *("details", "details_path", "rubric", "reason", "reasons", "evidence", "artifacts", "errors", "aggregate"),
        *("regressions", "participants", "winner", "raw", "debug"),
    }
)
"""Keys of the published contract that describe a reward, with any value, and are no metrics."""

_LENIENT = f"or submit with {LENIENT_VARIABLE}=1, which leaves it out"
_EVENT_KEYS = frozenset({"value", "source", "ts", "tag", "meta", "space", "granularity", "type", "step", "step_index"})


@dataclass
class RewardDocument:
    """A reward document and the options of its interpretation. `read_result` or `read_event` may be called once."""

    document: dict[str, Any]
    file: str
    """Name of the file in errors."""

    source: str
    """Source of its reward, and of events without one."""

    allowed: tuple[float, float]
    """Range of rewards."""

    aggregate: AggregatePolicy | None
    """Policy that makes the scalar of the metrics, if the document has none."""

    now: datetime
    """Time of events without one."""

    reward_key: str | None = None
    """Metric that is the scalar, if there is no `reward`."""

    is_split: bool = False
    """Whether several keys without a scalar are a reward."""

    is_lenient: bool = False
    """Whether `score` and `rewards` are read as the reward, and values that are no metrics are left out."""

    only_key: str | None = field(default=None, init=False)
    """Metric that became the scalar because it is the only one; set by `read_result`."""

    warnings: list[str] = field(default_factory=list, init=False)
    space: Space = field(init=False)
    granularity: Granularity = field(init=False)

    def read_result(self) -> VerifyResult:
        """Return the result in the document. Raise `RewardFileError` if it is invalid or has no reward."""
        if self.is_lenient:
            self._apply_aliases()
        document = self.document
        self.space = self._require_choice(document.get("space", "output"), get_args(Space), "space")
        self.granularity = self._require_choice(
            document.get("granularity", "terminal"), get_args(Granularity), "granularity"
        )
        metrics = self._read_metrics()
        scalar = self._read_reward(metrics)
        return VerifyResult(
            reward=None if scalar is None else scalar.value,
            only_key=self.only_key,
            items=metrics,
            events=self._read_events(
                [self._make_event(metrics[key], tag=key) for key in metrics] if scalar is None else [scalar]
            ),
            space=self.space,
            granularity=self.granularity,
            metadata=self._read_metadata(),
            warnings=self.warnings,
        )

    def _apply_aliases(self) -> None:
        """Rename `score` to `reward`; replace `rewards` by `reward`, or by its keys if it is an object."""
        document = dict(self.document)
        rewards = document.pop("rewards", None)
        if isinstance(rewards, dict):
            for name in sorted(rewards.keys() & document.keys()):
                if rewards[name] != document[name]:
                    refuse(self.file, f"contradicts rewards.{name}", "say it once", key=name)
            document = rewards | document
        elif rewards is not None and "reward" not in document:
            document["reward"] = rewards
        if "reward" not in document and "score" in document:
            document["reward"] = document.pop("score")
        self.document = document

    def _read_metadata(self) -> dict[str, Any]:
        """Return `metadata` with the descriptive keys of the top level. Raise `RewardFileError` if they contradict."""
        metadata = dict(self._require_mapping(self.document.get("metadata", {}), "metadata"))
        for name, value in self.document.items():
            if name not in STRUCTURED and not (name == "items" and isinstance(value, list)):
                continue
            if metadata.setdefault(name, value) != value:
                refuse(self.file, f"contradicts metadata.{name}", "say it once", key=name)
        return metadata

    @property
    def _top_level(self) -> dict[str, Any]:
        """Return the top level without the keys that are no metrics."""
        return {name: value for name, value in self.document.items() if name not in _RESERVED | STRUCTURED}

    def _read_metrics(self) -> dict[str, float]:
        """Return the metrics: top-level numbers, `metrics` and `items`. Raise `RewardFileError` if they contradict."""
        found: dict[str, float] = {}
        dropped: list[str] = []
        items = self.document.get("items", {})
        places: list[tuple[str, Mapping[str, Any]]] = [
            ("", self._top_level),
            ("metrics.", self._require_mapping(self.document.get("metrics", {}), "metrics")),
            ("items.", {} if isinstance(items, list) else self._require_mapping(items, "items")),
        ]
        for prefix, values in places:
            for name, value in values.items():
                if (
                    self.is_lenient
                    and name != "reward"
                    and (isinstance(value, bool) or not isinstance(value, int | float))
                ):
                    dropped.append(prefix + name)
                    continue
                figure = require_number(
                    value, file=self.file, key=prefix + name, remedy=f"write a finite number, {_LENIENT}"
                )
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
        if dropped:
            self.warnings.append(f"{self.file}: left out what is no number: {', '.join(dropped)}")
        return found

    def _read_reward(self, metrics: Mapping[str, float]) -> RewardEvent | None:
        """Return the event of the scalar; None for several keys without one. Raise `RewardFileError` for no reward."""
        if "reward" in self.document:
            value = require_number(self.document["reward"], file=self.file, key="reward")
            return self._make_event(clamp_to_range(value, self.allowed, file=self.file, key="reward"))
        keys = [name for name in self._top_level if name in metrics]
        if self.reward_key is None and self.is_split and len(keys) == 1 and self.aggregate is None:
            self.only_key = keys[0]
        key = self.reward_key or self.only_key
        if key is not None:
            if key not in metrics:
                names = ", ".join(metrics) or "no number at all"
                refuse(self.file, f"is not there; there is {names}", "name one of these as reward_key", key=key)
            return self._make_event(clamp_to_range(metrics[key], self.allowed, file=self.file, key=key), tag=key)
        if self.aggregate is not None:
            return self._make_aggregate(metrics, self.aggregate)
        if self.is_split and keys:
            return None
        refuse(
            self.file,
            f"there is no reward in {quote(self.document)}",
            "add a number, name a key as verifier.reward_key, or declare outputs.aggregate_policy in "
            f"verifier/verifier.md; {LENIENT_VARIABLE}=1 reads `score` and `rewards`",
            key="reward",
        )

    def _make_aggregate(self, metrics: Mapping[str, float], policy: AggregatePolicy) -> RewardEvent:
        """Return the event of the scalar that the policy makes of the metrics."""
        method = policy.method
        try:
            value = aggregate_metrics(metrics, policy)
        except VerifierError as error:
            refuse(self.file, error.message, error.remedy or "add a reward")
        value = clamp_to_range(
            require_number(value, file=self.file, key=method), self.allowed, file=self.file, key=method
        )
        return self._make_event(value, source=f"aggregate:{method}")

    def _make_event(self, value: float, *, source: str = "", tag: str | None = None) -> RewardEvent:
        """Return an event for a measured value, in the document's space and granularity."""
        source = source or self.source
        return RewardEvent(
            space=self.space, granularity=self.granularity, value=value, source=source, ts=self.now, tag=tag
        )

    def _read_events(self, measured: list[RewardEvent]) -> list[RewardEvent]:
        """Return the declared events, and each measured one unless a declared terminal event has its value already."""
        declared = self.document.get("events", [])
        if not isinstance(declared, list):
            refuse(self.file, f"{quote(declared)} is not a list", "write a list of objects", key="events")
        events = [self._read_declared_event(item, f"events[{index}]") for index, item in enumerate(declared)]
        declared_ends = [event for event in events if event.granularity == "terminal"]

        def is_declared(one: RewardEvent) -> bool:
            # With several keys, an event stands for a key only if its tag is the key's name.
            same = (end for end in declared_ends if len(measured) == 1 or end.tag == one.tag)
            return any(abs(end.value - one.value) <= AGREEMENT for end in same)

        return [*events, *(one for one in measured if not is_declared(one))]

    def read_event(self) -> RewardEvent:
        """Return the document as one event: a line of `rewards.jsonl`. Raise `RewardFileError` if it is none."""
        self.space, self.granularity = "output", "terminal"
        return self._read_declared_event(self.document, "")

    def _read_declared_event(self, item: object, place: str) -> RewardEvent:
        """Return a declared event. Raise `RewardFileError` if it is invalid; `place` is its key in errors."""
        data = self._require_mapping(item, place)
        for name in data.keys() - _EVENT_KEYS:
            refuse(
                self.file,
                f"{quote(name)} is not a key of an event",
                f"use {', '.join(sorted(_EVENT_KEYS))}; put anything else under meta",
                key=place,
            )
        at = f"{place}." if place else ""
        value = require_number(data.get("value"), file=self.file, key=f"{at}value")
        step = data.get("step", data.get("step_index"))
        if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
            refuse(self.file, f"{quote(step)} is not a step index", "count from 0", key=f"{at}step")
        return RewardEvent(
            space=self._require_choice(data.get("space", self.space), get_args(Space), f"{at}space"),
            granularity=self._read_granularity(data, at),
            value=clamp_to_range(value, self.allowed, file=self.file, key=f"{at}value"),
            source=self._require_text(data.get("source", self.source), f"{at}source"),
            ts=self._read_time(data.get("ts"), f"{at}ts"),
            step=step,
            tag=None if data.get("tag") is None else self._require_text(data["tag"], f"{at}tag"),
            meta=self._require_mapping(data.get("meta", {}), f"{at}meta"),
        )

    def _read_granularity(self, data: Mapping[str, Any], at: str) -> Granularity:
        # rewards.jsonl has the key `type`, and calls a step `process`.
        if "granularity" not in data and "type" in data:
            kind: Literal["terminal", "process"] = self._require_choice(
                data["type"], ("terminal", "process"), f"{at}type"
            )
            return "terminal" if kind == "terminal" else "step"
        named: Granularity = self._require_choice(
            data.get("granularity", self.granularity), get_args(Granularity), f"{at}granularity"
        )
        return named

    def _read_time(self, value: object, key: str) -> datetime:
        if value is None:
            return self.now
        try:
            moment = datetime.fromisoformat(self._require_text(value, key))
        except ValueError:
            refuse(self.file, f"{quote(value)} is not a time", "write RFC 3339, with the offset", key=key)
        return moment if moment.tzinfo else moment.replace(tzinfo=self.now.tzinfo)

    def _require_choice(self, value: object, allowed: tuple[str, ...], key: str) -> Any:
        return require_choice(value, allowed, file=self.file, key=key)

    def _require_mapping(self, value: object, key: str) -> dict[str, Any]:
        return require_mapping(value, file=self.file, key=key)

    def _require_text(self, value: object, key: str) -> str:
        return require_text(value, file=self.file, key=key)
