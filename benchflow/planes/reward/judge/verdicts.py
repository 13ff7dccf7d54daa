"""The format of a judge's answer, as a tool's schema, and the parser of answers.

A model that can't call tools may answer with the same JSON. A score that is no number on its scale is refused, never
guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from benchflow.contracts.reward import JudgeScale, Verdict

TOOL = "verdict"
"""Name of the tool by which a judge answers."""

_WORDS = {"pass": True, "passed": True, "yes": True, "met": True, "true": True} | {
    "fail": False, "failed": False, "no": False, "unmet": False, "not met": False, "false": False
}  # fmt: skip
_SCORES = ("score", "verdict")
_REASONS = ("reasoning", "reason", "explanation", "rationale")
_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)


class NotAVerdictError(Exception):
    """Error for an invalid answer. Its message is written for the model, which is asked again."""


class AttemptFailedError(Exception):
    """A call without a usable answer.

    Args:
        message: Reason.
        again: Whether a retry may help.
        is_away: Whether the endpoint did not answer, or refused the call for now; the model has said nothing.
        wait: Seconds that the endpoint wants to pass first; None if it names none.
        remedy: Remedy for the user; None for a general one.
    """

    def __init__(
        self,
        message: str,
        *,
        again: bool,
        is_away: bool = False,
        wait: float | None = None,
        remedy: str | None = None,
    ) -> None:
        """Make it."""
        self.again, self.is_away, self.wait, self.remedy = again, is_away, wait, remedy
        super().__init__(message)


@dataclass
class JudgeResponse:
    """The answer of a model to one call."""

    text: str
    """Text of the answer, without tool calls."""

    calls: list[tuple[str, str | dict[str, Any]]]
    """(name, arguments) of its tool calls; arguments are JSON text, or parsed."""

    is_cut: bool
    """Whether it ended at the limit of output tokens."""

    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """Cost in USD; None if the model's price is not known."""

    response: Any = field(repr=False)
    """Response as an object of the library."""


def describe_scale(scale: JudgeScale) -> str:
    """Return a scale in words: `a whole number from 1 to 5`."""
    return f"a {'whole ' if scale.is_whole else ''}number from {scale.low:g} to {scale.high:g}"


def format_task(scales: Sequence[JudgeScale]) -> str:
    """Return the last part of a prompt: the criteria to judge, and the format of the answer."""
    if len(scales) == 1:
        shape = '{"reasoning": "…", "score": number}'
        return (
            f"Judge this:\n{scales[0].description}\n\nScore: {describe_scale(scales[0])}.\n"
            f"Answer by calling `{TOOL}` once with {shape}: first the reasons, from what you were shown, in a few"
            " sentences, then the score that follows from them. If you cannot call it, answer with that JSON alone."
        )
    listed = "\n".join(f"- {json.dumps(one.id)}: {one.description}\n  Score: {describe_scale(one)}." for one in scales)
    shape = '{"verdicts": [{"id": "…", "reasoning": "…", "score": number}, …]}'
    return (
        f"Judge each of these by itself:\n{listed}\n\nAnswer by calling `{TOOL}` once with {shape}, a verdict for every"
        " id: first the reasons, from what you were shown, in a few sentences, then the score that follows from them."
        " If you cannot call it, answer with that JSON alone."
    )


def make_tool_schema(scales: Sequence[JudgeScale]) -> dict[str, Any]:
    """Return the JSON schema of the tool's arguments. It has no bounds: not every endpoint knows their keywords."""
    one = {"reasoning": {"type": "string", "description": "Why, from what was shown."}}
    if len(scales) == 1:
        return _make_object_schema(one | {"score": {"type": "number", "description": describe_scale(scales[0])}})
    verdict = {"id": {"type": "string", "enum": [scale.id for scale in scales]}} | one | {"score": {"type": "number"}}
    return _make_object_schema({"verdicts": {"type": "array", "items": _make_object_schema(verdict)}})


def _make_object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def read_verdicts(
    calls: Sequence[tuple[str, str | Mapping[str, Any]]], text: str, scales: Sequence[JudgeScale]
) -> dict[str, Verdict]:
    """Return the verdict on each scale, by its id.

    Args:
        calls: (name, arguments) of the tool calls.
        text: Text of the answer, which is read if the tool was not called.
        scales: Scales of the question.

    Raises:
        NotAVerdictError: The answer is invalid or incomplete.
    """
    answers = [arguments for name, arguments in calls if name == TOOL]
    documents = [_parse_json(each) if isinstance(each, str) else dict(each) for each in answers] or [_find_json(text)]
    known = {scale.id: scale for scale in scales}
    found: dict[str, Verdict] = {}
    for name, row in (pair for document in documents for pair in _list_pairs(document, scales)):
        if name not in known:
            raise NotAVerdictError(f"there is nothing called {name!r} to judge")
        verdict = _read_verdict(row, known[name])
        if found.get(name, verdict) != verdict:
            raise NotAVerdictError(f"there are two verdicts on {name!r}")
        found[name] = verdict
    if missing := [name for name in known if name not in found]:
        raise NotAVerdictError(f"there is no verdict on {', '.join(map(repr, missing))}")
    return {name: found[name] for name in known}


def _find_json(text: str) -> Any:
    """Return the JSON in a text: all of it, its one fenced block, or its one object. Raises `NotAVerdictError`."""
    stripped = text.strip()
    blocks = _FENCED.findall(stripped) or [stripped]
    if len(blocks) > 1:
        raise NotAVerdictError("there is more than one block of JSON in the answer")
    block = blocks[0].strip()
    start, end = block.find("{"), block.rfind("}")
    if start < 0 or end < start:
        raise NotAVerdictError(f"`{TOOL}` was not called, and the answer holds no JSON object")
    # Two objects do not parse as one, so a quoted verdict is never taken for the judge's own.
    return _parse_json(block[start : end + 1])


def _parse_json(text: str) -> Any:
    """Parse JSON. Raise `NotAVerdictError` for invalid JSON, NaN and infinity."""

    def refuse(word: str) -> Any:
        raise NotAVerdictError(f"{word} is not a number")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise NotAVerdictError("the answer is nested too deeply") from None
    except ValueError as error:
        raise NotAVerdictError(f"the answer is not valid JSON: {error}") from None


def _list_pairs(document: Any, scales: Sequence[JudgeScale]) -> Iterator[tuple[str, Any]]:
    """Yield (id, verdict) of a list of verdicts, a table by id, or, if there is one scale only, a single verdict."""
    if isinstance(document, dict) and isinstance(document.get("verdicts"), list | dict):
        document = document["verdicts"]
    if isinstance(document, list):
        for row in document:
            if not isinstance(row, dict):
                raise NotAVerdictError(f"{_quote(row)} is not a verdict")
            yield (str(row.get("id", scales[0].id if len(scales) == 1 else "")), row)
    elif not isinstance(document, dict):
        raise NotAVerdictError(f"{_quote(document)} is not an object")
    elif any(key in document for key in _SCORES) and (len(scales) == 1 or "id" in document):
        yield str(document.get("id", scales[0].id)), document
    else:
        yield from document.items()


def _read_verdict(row: Any, scale: JudgeScale) -> Verdict:
    """Return the verdict of a parsed object. Raise `NotAVerdictError` if it has no valid score."""
    if not isinstance(row, dict):
        raise NotAVerdictError(f"{_quote(row)} is not a verdict on {scale.id!r}")
    value = next((row[key] for key in _SCORES if row.get(key) is not None), None)
    if value is None:
        raise NotAVerdictError(f"there is no score for {scale.id!r}")
    reasoning = next((row[key] for key in _REASONS if isinstance(row.get(key), str)), "")
    return Verdict(score=_read_score(value, scale), reasoning=reasoning.strip())


def _read_score(value: Any, scale: JudgeScale) -> float:
    """Return a score as a number on the scale; words such as `pass` count as 1 or 0. Raises `NotAVerdictError`."""
    if isinstance(value, str):
        value = _WORDS.get(value.strip().lower(), value)
    if isinstance(value, bool) and (scale.low, scale.high) == (0, 1):
        value = int(value)
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,9}(\.\d{1,9})?\s*", value):
        value = float(value)
    # An integer can be too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:
        raise NotAVerdictError(f"the score of {scale.id!r} must be {describe_scale(scale)}, not {_quote(value)}")
    score = float(value)
    off = not scale.low <= score <= scale.high or (scale.is_whole and not score.is_integer())
    if off or not isfinite(score):
        raise NotAVerdictError(f"the score of {scale.id!r} must be {describe_scale(scale)}, not {_quote(value)}")
    return score


def _quote(value: object) -> str:
    """Return a value as JSON of at most 80 characters."""
    shown = json.dumps(value, default=str)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
