"""Reward of an ORS episode from its records: outputs of its tools, reward payloads, lines of a `rewards.jsonl`.

The reward of a tool's output is that of a step, unless the output ends the episode. The final output, a payload and a
terminal line state the scalar; different statements are an error, and so is an episode without one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast

from benchflow.confined import ConfinedPath
from benchflow.contracts.reward import RewardEvent, VerifyResult
from benchflow.errors import RewardMissingError
from benchflow.planes.reward.reward_json import RewardDocument
from benchflow.planes.reward.strict import (
    AGREEMENT,
    clamp_to_range,
    decode_json,
    load_json,
    quote,
    read_text,
    refuse,
    require_mapping,
    require_number,
    skip_blank,
)

MAX_EPISODE_BYTES = 64 * 1024 * 1024
"""Maximum size of one file of an episode, in bytes."""

Format = Literal["json", "jsonl", "auto"]

_KINDS = "an output of a tool {ok, output}, a reward payload {reward, is_valid, metadata}, or a line of rewards.jsonl"
_PAYLOAD = frozenset({"reward", "is_valid", "metadata"})
_STATED = ("items", "events", "space", "granularity")


def read_episode(
    inputs: Mapping[str, ConfinedPath], form: Format, *, reward_range: tuple[float, float], now: datetime
) -> VerifyResult:
    """Read an episode's files and return their result.

    Args:
        inputs: The files, by their names in errors.
        form: Format of the files; `auto`: a file with several JSON values has one in each line.
        reward_range: Allowed range of rewards.
        now: Time of events without one.

    Raises:
        RewardFileError: A record is invalid, or contradicts another. It names the file and the line.
        RewardMissingError: No record states the episode's reward.
    """
    episode = _Episode(reward_range, now)
    for name, path in inputs.items():
        text = read_text(path, name, limit=MAX_EPISODE_BYTES)
        if not (text or "").strip():
            refuse(name, "is empty", f"write {_KINDS}")
        for line, record in _read_records(cast(str, text), name, form):
            episode.add(record, f"{name}:{line}")
    return episode.make_result(", ".join(inputs))


# --- records -------------------------------------------------------------------------------------------


def _read_records(text: str, name: str, form: Format) -> Iterator[tuple[int, Any]]:
    """Yield the records of a file, each with the line in which it begins."""
    if form == "auto":
        _, end = decode_json(text, name, 0)
        form = "jsonl" if skip_blank(text, end) < len(text) else "json"
    if form == "jsonl":
        for count, line in enumerate(text.split("\n"), 1):
            if skip_blank(line, 0) < len(line):
                yield count, load_json(line, f"{name}:{count}")
    elif text.startswith("[", skip_blank(text, 0)):
        yield from _read_elements(text, name)
    else:
        yield text.count("\n", 0, skip_blank(text, 0)) + 1, load_json(text, name)


def _read_elements(text: str, name: str) -> Iterator[tuple[int, Any]]:
    """Yield the elements of a file that is one JSON list, each with the line in which it begins."""
    before, at, line = 0, skip_blank(text, 0), 1
    for _ in load_json(text, name):
        # Skip the bracket, or the comma.
        at = skip_blank(text, at + 1)
        line += text.count("\n", before, at)
        before = at
        value, end = decode_json(text, name, at)
        yield line, value
        at = skip_blank(text, end)


# --- meaning -------------------------------------------------------------------------------------------


@dataclass
class _Episode:
    """An episode, as far as it has been read."""

    allowed: tuple[float, float]
    now: datetime
    stated: list[tuple[float, str]] = field(default_factory=list)
    """Statements of the scalar, each with its location."""

    events: list[RewardEvent] = field(default_factory=list)
    items: dict[str, float] = field(default_factory=dict)
    last: VerifyResult | None = None
    """Result of the last payload, whose space, granularity and metadata count."""

    warnings: list[str] = field(default_factory=list)
    outputs: int = 0
    """Number of tool outputs."""

    failed: int = 0
    """Number of tool calls that failed."""

    def add(self, record: Any, file: str) -> None:
        """Add one record of any kind; `file` is its location. Raise `RewardFileError` if it is invalid."""
        data = require_mapping(record, file=file, key="")
        if "ok" in data or "output" in data:
            self._add_call(data, file)
        elif "finished" in data or "blocks" in data:
            self._add_output(data, file, "")
        elif "value" in data:
            event = self._make_document(data, file).read_event()
            self.events.append(event)
            if event.granularity == "terminal" and event.space == "output":
                self._add_statement(event.value, file)
        elif "reward" in data or "is_valid" in data:
            self._add_payload(data, file)
        else:
            refuse(file, f"{quote(data)} is no record of an episode", f"write {_KINDS}")

    def make_result(self, names: str) -> VerifyResult:
        """Return the episode's result. Raise `RewardMissingError`, naming the files, if no record states a reward."""
        if not self.stated:
            raise RewardMissingError(
                f"no record states the episode's reward: none of {self.outputs} outputs ends it with one",
                file=names,
                key="reward",
                remedy="end the episode by an output with finished: true and a reward, or write a reward payload",
            )
        last = self.last or VerifyResult(reward=None)
        return VerifyResult(
            reward=self.stated[0][0],
            items=self.items,
            events=self.events,
            space=last.space,
            granularity=last.granularity,
            metadata=last.metadata | {"outputs": self.outputs, "failed_calls": self.failed},
            warnings=self.warnings,
        )

    def _add_call(self, data: Mapping[str, Any], file: str) -> None:
        """Add the record of a tool call, `{ok, output}`."""
        succeeded = _require_boolean(data.get("ok"), file, "ok")
        if "reward" in data:
            refuse(file, "the reward is not part of the output", "move it into output", key="reward")
        if succeeded:
            self._add_output(require_mapping(data.get("output"), file=file, key="output"), file, "output.")
        elif data.get("output") is not None:
            refuse(file, f"a call that failed has the output {quote(data['output'])}", "say which it is", key="output")
        else:
            self.failed += 1

    def _add_output(self, output: Mapping[str, Any], file: str, at: str) -> None:
        """Add the output of a tool; `at` is the prefix of its keys in errors."""
        index, self.outputs = self.outputs, self.outputs + 1
        is_last = _require_boolean(output.get("finished", False), file, f"{at}finished")
        if output.get("reward") is None:
            return
        key = f"{at}reward"
        value = clamp_to_range(require_number(output["reward"], file=file, key=key), self.allowed, file=file, key=key)
        if is_last:
            self._add_statement(value, file)
        self.events.append(
            RewardEvent(
                granularity="terminal" if is_last else "step",
                value=value,
                source="ors",
                ts=self.now,
                meta={"output": index, "at": file},
            )
        )

    def _add_payload(self, data: Mapping[str, Any], file: str) -> None:
        """Add a reward payload. Its metadata may hold items, events, space and granularity."""
        for name in sorted(data.keys() - _PAYLOAD):
            refuse(file, f"{quote(name)} is not a key of a reward payload", "put it under metadata", key=name)
        metadata = require_mapping(data.get("metadata") or {}, file=file, key="metadata")
        complaint = metadata.get("error")
        if not _require_boolean(data.get("is_valid", True), file, "is_valid"):
            why = f": {quote(complaint)}" if complaint else ""
            refuse(
                file,
                f"the reward {quote(data.get('reward'))} is said not to be valid{why}",
                "see why the episode could not be scored",
                key="is_valid",
            )
        if complaint:
            self.warnings.append(f"{file}: the reward came with an error: {quote(complaint)}")
        document = {name: metadata[name] for name in _STATED if metadata.get(name) is not None}
        document["metadata"] = {name: value for name, value in metadata.items() if name not in _STATED}
        if "reward" in data:
            document["reward"] = data["reward"]
        found = self._make_document(document, file).read_result()
        self._add_statement(cast(float, found.reward), file)
        for name, value in found.items.items():
            if self.items.setdefault(name, value) != value:
                refuse(
                    file, f"{value!r} contradicts {self.items[name]!r}", "give it once", key=f"metadata.items.{name}"
                )
        self.events += found.events
        self.last = found

    def _make_document(self, data: Mapping[str, Any], file: str) -> RewardDocument:
        return RewardDocument(dict(data), file, "ors", self.allowed, None, self.now)

    def _add_statement(self, value: float, file: str) -> None:
        """Add a statement of the scalar. Raise `RewardFileError` if it contradicts the first one."""
        if self.stated and abs(self.stated[0][0] - value) > AGREEMENT:
            first, where = self.stated[0]
            refuse(file, f"says {value!r} while {where} says {first!r}", "state one reward of an episode", key="reward")
        self.stated.append((value, file))


def _require_boolean(value: object, file: str, key: str) -> bool:
    if not isinstance(value, bool):
        refuse(file, f"{quote(value)} is neither true nor false", "write true or false", key=key)
    return value
