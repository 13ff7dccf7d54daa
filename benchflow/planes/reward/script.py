"""What a verifier script left in `/logs/verifier`, read as a reward. Running the script is not done here.

The files were written inside a sandbox by code that nobody trusts, so nothing about them is taken for
granted: not that they are files, not that they are small, not that a number is a number. A reward that
cannot be read is an error, never a 0 that nobody measured.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn, cast, get_args

from benchflow.contracts.reward import AggregatePolicy, Granularity, RewardEvent, Space, VerifyResult
from benchflow.errors import RewardFileError, RewardMissingError, VerifierError
from benchflow.planes.reward.aggregate import aggregate_metrics

REWARD_JSON = "/logs/verifier/reward.json"
REWARD_TEXT = "/logs/verifier/reward.txt"
OUTPUT = "test-stdout.txt"
MAX_BYTES = 1024 * 1024
AGREEMENT = 1e-9
"""How far two statements of one reward may differ, and how far rounding may carry one past its range."""

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_RESERVED = frozenset({"reward", "metrics", "items", "events", "space", "granularity", "metadata"})
_EVENT_KEYS = frozenset({"value", "source", "ts", "tag", "meta", "space", "granularity", "type", "step", "step_index"})
_TAIL_LINES = 20


def parse_rewards(
    verifier_dir: Path,
    *,
    reward_range: tuple[float, float] = (0.0, 1.0),
    exit_code: int,
    aggregate: AggregatePolicy | None = None,
    now: datetime,
) -> VerifyResult:
    """The result in a host-side copy of `/logs/verifier`, `reward.json` before `reward.txt`.

    exit_code: the script's; one other than 0 becomes a warning when a reward was written. aggregate: makes
    the scalar of the metrics where `reward.json` has none. now: stamps events that bring no time.
    Raises `RewardMissingError` when neither file is there and `RewardFileError` when one is not a reward.
    """
    text = _read(verifier_dir / "reward.txt", REWARD_TEXT)
    document = _read(verifier_dir / "reward.json", REWARD_JSON)
    if text is None and document is None:
        raise RewardMissingError(
            f"the verifier ended with exit status {exit_code} and wrote no reward",
            file="/logs/verifier",
            remedy="write a number to reward.txt or an object to reward.json in every case, failure included",
            log_tail=_output_tail(verifier_dir),
        )
    plain = None if text is None else _reward_text(text, reward_range)
    if document is None:
        result = _text_result(cast(float, plain), now)
    else:
        result = _JsonReward(_load(document), reward_range, aggregate, now).result()
        assert result.reward is not None
        if plain is not None and abs(plain - result.reward) > AGREEMENT:
            raise RewardFileError(
                f"says {result.reward!r} while reward.txt says {plain!r}",
                file=REWARD_JSON,
                key="reward",
                remedy="write the same reward to both files, or only one of them",
            )
    if exit_code:
        note = f"the verifier ended with exit status {exit_code}; the reward it wrote counts"
        result = result.model_copy(update={"warnings": [*result.warnings, note]})
    return result


# --- files ---------------------------------------------------------------------------------------------


def _read(path: Path, shown: str) -> str | None:
    """The text of a regular file of bounded size, None when there is nothing of that name."""
    try:
        stream = _open_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if path.is_symlink():
            _refuse(shown, "is a symbolic link", "write a regular file")
        _refuse(shown, f"cannot be read: {error.strerror}", "write a regular file")
    if stream is None:
        _refuse(shown, "is not a regular file", "write a regular file")
    with stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        _refuse(shown, f"is larger than {MAX_BYTES} bytes", "keep details in files of their own beside it")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(shown, f"is not UTF-8: {content[error.start : error.end]!r}", "write plain UTF-8 text")


def _open_regular(path: Path) -> BinaryIO | None:
    """The file, opened; None where the name belongs to a directory, a pipe or a device. Follows no link."""
    # Not blocking, because opening a pipe that nobody writes to would wait for ever.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return None
    return os.fdopen(handle, "rb")


def _output_tail(verifier_dir: Path) -> str | None:
    """The last lines the script printed, as far as they can be had, for whoever has to find out why."""
    try:
        stream = _open_regular(verifier_dir / OUTPUT)
    except OSError:
        return None
    if stream is None:
        return None
    with stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - 8192))
        lines = stream.read(8192).decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:]) or None


# --- values --------------------------------------------------------------------------------------------


def _refuse(file: str, message: str, remedy: str, *, key: str | None = None) -> NoReturn:
    raise RewardFileError(message, file=file, key=key, remedy=remedy)


def _quote(value: object) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=True, default=str)
    shown = f'"{shown}"' if isinstance(value, str) else shown
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def _number(value: object, *, file: str, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(file, f"{_quote(value)} is not a number", "write a finite number", key=key)
    try:
        number = float(value)
    except OverflowError:
        _refuse(file, f"{_quote(str(value))} is too large", "write a finite number", key=key)
    if not isfinite(number):
        _refuse(file, f"{number!r} is not finite", "write a finite number", key=key)
    return number


def _in_range(value: float, allowed: tuple[float, float], *, file: str, key: str | None) -> float:
    low, high = allowed
    if not low - AGREEMENT <= value <= high + AGREEMENT:
        _refuse(
            file,
            f"{value!r} is outside the reward range [{low:g}, {high:g}]",
            "scale the reward, or widen verifier.reward_range in the task's configuration",
            key=key,
        )
    return min(max(value, low), high)


def _reward_text(text: str, allowed: tuple[float, float]) -> float:
    stripped = text.strip()
    if not stripped:
        _refuse(REWARD_TEXT, "is empty", "write one number, for example 1.0")
    # float() would also take "nan", "infinity" and "1_0".
    if not _NUMBER.fullmatch(stripped):
        _refuse(REWARD_TEXT, f"{_quote(stripped)} is not a finite number", "write one number, for example 1.0")
    value = _number(float(stripped), file=REWARD_TEXT, key="reward")
    return _in_range(value, allowed, file=REWARD_TEXT, key=None)


def _text_result(reward: float, now: datetime) -> VerifyResult:
    return VerifyResult(reward=reward, events=[RewardEvent(value=reward, source="reward.txt", ts=now)])


# --- reward.json ---------------------------------------------------------------------------------------


def _load(text: str) -> dict[str, Any]:
    """The JSON object, read more strictly than the json module does by itself."""
    if not text.strip():
        _refuse(REWARD_JSON, "is empty", 'write an object, for example {"reward": 1.0}')
    try:
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_not_json, parse_float=_finite_literal)
        # A lone surrogate can be escaped in JSON but not be written down as UTF-8 afterwards.
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        _refuse(REWARD_JSON, "has a text that is not valid Unicode", "write no lone surrogates")
    except RecursionError:
        _refuse(REWARD_JSON, "is nested too deeply", "keep details in files of their own beside it")
    except ValueError as error:
        _refuse(REWARD_JSON, f"is not JSON: {error}", 'write an object, for example {"reward": 1.0}')
    if not isinstance(document, dict):
        _refuse(REWARD_JSON, f"{_quote(document)} is not an object", 'write {"reward": <number>}')
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            _refuse(
                REWARD_JSON,
                f"the key is there twice, as {_quote(seen[key])} and {_quote(value)}",
                "keep one",
                key=key,
            )
        seen[key] = value
    return seen


def _not_json(literal: str) -> NoReturn:
    _refuse(REWARD_JSON, f"{literal} is not a number in JSON", "write finite numbers only")


def _finite_literal(literal: str) -> float:
    value = float(literal)
    if not isfinite(value):
        _refuse(REWARD_JSON, f"{_quote(literal)} is too large", "write finite numbers only")
    return value


@dataclass
class _JsonReward:
    """One reward.json on its way to a `VerifyResult`."""

    document: dict[str, Any]
    allowed: tuple[float, float]
    aggregate: AggregatePolicy | None
    now: datetime
    space: Space = field(init=False)
    granularity: Granularity = field(init=False)

    def result(self) -> VerifyResult:
        self.space = _choice(self.document.get("space", "output"), get_args(Space), "space")
        self.granularity = _choice(self.document.get("granularity", "terminal"), get_args(Granularity), "granularity")
        metrics = self._metrics()
        reward, source = self._reward(metrics)
        return VerifyResult(
            reward=reward,
            items=metrics,
            events=self._events(reward, source),
            space=self.space,
            granularity=self.granularity,
            metadata=_object(self.document.get("metadata", {}), "metadata"),
        )

    def _metrics(self) -> dict[str, float]:
        """Top-level numbers, `metrics` and `items`: three places for one thing, which must not disagree."""
        found: dict[str, float] = {}
        places: list[tuple[str, Mapping[str, Any]]] = [
            ("", {name: value for name, value in self.document.items() if name not in _RESERVED}),
            ("metrics.", _object(self.document.get("metrics", {}), "metrics")),
            ("items.", _object(self.document.get("items", {}), "items")),
        ]
        for prefix, values in places:
            for name, value in values.items():
                number = _number(value, file=REWARD_JSON, key=prefix + name)
                if name == "reward" and "reward" not in self.document:
                    _refuse(REWARD_JSON, "the reward is not a metric", "move it up", key=prefix + name)
                known = self.document.get("reward") if name == "reward" else found.get(name)
                if known is not None and known != number:
                    _refuse(
                        REWARD_JSON,
                        f"{number!r} contradicts {_quote(known)}, which is also there for {name}",
                        "give a metric once",
                        key=prefix + name,
                    )
                if name != "reward":
                    found[name] = number
        return found

    def _reward(self, metrics: Mapping[str, float]) -> tuple[float, str]:
        if "reward" in self.document:
            value = _number(self.document["reward"], file=REWARD_JSON, key="reward")
            return _in_range(value, self.allowed, file=REWARD_JSON, key="reward"), "reward.json"
        if self.aggregate is None:
            _refuse(
                REWARD_JSON,
                f"there is no reward in {_quote(self.document)}",
                "add a number, or declare outputs.aggregate_policy in verifier/verifier.md",
                key="reward",
            )
        try:
            value = aggregate_metrics(metrics, self.aggregate)
        except VerifierError as error:
            _refuse(REWARD_JSON, error.message, error.remedy or "add a reward")
        value = _number(value, file=REWARD_JSON, key=self.aggregate.method)
        return (
            _in_range(value, self.allowed, file=REWARD_JSON, key=self.aggregate.method),
            f"aggregate:{self.aggregate.method}",
        )

    def _events(self, reward: float, source: str) -> list[RewardEvent]:
        """The declared events, and the scalar as one more unless a terminal event says it already."""
        declared = self.document.get("events", [])
        if not isinstance(declared, list):
            _refuse(REWARD_JSON, f"{_quote(declared)} is not a list", "write a list of objects", key="events")
        events = [self._event(item, f"events[{index}]") for index, item in enumerate(declared)]
        if any(event.granularity == "terminal" and abs(event.value - reward) <= AGREEMENT for event in events):
            return events
        scalar = RewardEvent(space=self.space, granularity=self.granularity, value=reward, source=source, ts=self.now)
        return [*events, scalar]

    def _event(self, item: object, key: str) -> RewardEvent:
        data = _object(item, key)
        for name in data.keys() - _EVENT_KEYS:
            _refuse(
                REWARD_JSON,
                f"{_quote(name)} is not a key of an event",
                f"use {', '.join(sorted(_EVENT_KEYS))}; put anything else under meta",
                key=key,
            )
        value = _number(data.get("value"), file=REWARD_JSON, key=f"{key}.value")
        step = data.get("step", data.get("step_index"))
        if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
            _refuse(REWARD_JSON, f"{_quote(step)} is not a step index", "count from 0", key=f"{key}.step")
        return RewardEvent(
            space=_choice(data.get("space", self.space), get_args(Space), f"{key}.space"),
            granularity=self._event_granularity(data, key),
            value=_in_range(value, self.allowed, file=REWARD_JSON, key=f"{key}.value"),
            source=_text(data.get("source", "reward.json"), f"{key}.source"),
            ts=self._time(data.get("ts"), f"{key}.ts"),
            step=step,
            tag=None if data.get("tag") is None else _text(data["tag"], f"{key}.tag"),
            meta=_object(data.get("meta", {}), f"{key}.meta"),
        )

    def _event_granularity(self, data: Mapping[str, Any], key: str) -> Granularity:
        # `type` is the word that rewards.jsonl uses; process is its name for a step.
        if "granularity" not in data and "type" in data:
            kind: Literal["terminal", "process"] = _choice(data["type"], ("terminal", "process"), f"{key}.type")
            return "terminal" if kind == "terminal" else "step"
        named: Granularity = _choice(
            data.get("granularity", self.granularity), get_args(Granularity), f"{key}.granularity"
        )
        return named

    def _time(self, value: object, key: str) -> datetime:
        if value is None:
            return self.now
        try:
            moment = datetime.fromisoformat(_text(value, key))
        except ValueError:
            _refuse(REWARD_JSON, f"{_quote(value)} is not a time", "write RFC 3339, with the offset", key=key)
        return moment if moment.tzinfo else moment.replace(tzinfo=self.now.tzinfo)


def _choice(value: object, allowed: tuple[str, ...], key: str) -> Any:
    if not isinstance(value, str) or value not in allowed:
        _refuse(REWARD_JSON, f"{_quote(value)} is not known", f"use one of {', '.join(allowed)}", key=key)
    return value


def _object(value: object, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(REWARD_JSON, f"{_quote(value)} is not an object", "write an object", key=key)
    return value


def _text(value: object, key: str) -> str:
    if not isinstance(value, str):
        _refuse(REWARD_JSON, f"{_quote(value)} is not a text", "write a string", key=key)
    return value
