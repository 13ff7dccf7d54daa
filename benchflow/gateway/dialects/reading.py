"""Reading JSON of which any part may be missing or of another type, and putting values into it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from benchflow.gateway.dialects.dialect import Document
from benchflow.gateway.values import MAX_VALUES, count_values

_LINE = re.compile(rb"([^\r\n]*)(?:\r\n|[\r\n]|\Z)")

_MAX_COUNT = 2**53
"""Beyond it a float, which a price is, skips integers."""


def read_json(data: bytes) -> Any:
    """A JSON document. Raises `ValueError`."""
    try:
        return from_json(data)
    except ValueError as error:
        # What is nested more deeply than that, nothing that goes through it could go through either.
        if str(error).startswith("recursion limit"):
            raise
    # Half a character, which some agents cut an emoji to, is refused by the faster one.
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def documents(data: bytes) -> Iterator[Document]:
    """Yield the JSON objects of an answer: the events of a stream, the items of an array, or the one that it is.

    Its own beginning says which: servers are found that name another content type, or none, and clients read their
    answers. What is no JSON, or has too many values, is passed over, since this is for the record and the agent has it
    already.
    """
    data = data.removeprefix(_BYTE_ORDER_MARK)
    for text in [data] if data.lstrip()[:1] in (b"{", b"[") else _events(data):
        if count_values(text) > MAX_VALUES:
            continue
        try:
            found = read_json(text)
        except ValueError:
            continue
        yield from (item for item in (found if isinstance(found, list) else [found]) if isinstance(item, dict))


def _events(data: bytes) -> Iterator[bytes]:
    """Yield the data of each event of a stream."""
    said: list[bytes] = []
    # All lines at once may be as many as bytes.
    for found in _LINE.finditer(data):
        line = found.group(1)
        if line.startswith(b"data:"):
            said.append(line[5:].strip())
        elif not line and said:
            yield b"\n".join(said)
            said = []


_SPOKEN = frozenset(
    {"text", "content", "delta", "thinking", "reasoning", "reasoning_content", "arguments", "partial_json"}
)
"""Members under which the dialects' events have a part of what the model says."""

_ARGUMENTS = frozenset({"input", "args"})
"""Members that are arguments of a tool's call as a whole, with names of their own."""


def count_spoken(value: Any, *, is_spoken: bool = False, is_argument: bool = False) -> int:
    """Return how many characters of a document are what the model says, in any dialect."""
    if isinstance(value, str):
        # Some send blanks to keep a connection open.
        return len(value) if is_spoken and not value.isspace() else 0
    if isinstance(value, list):
        return sum(count_spoken(item, is_spoken=is_spoken, is_argument=is_argument) for item in value)
    if isinstance(value, dict):
        count = 0
        for key, inner in value.items():
            argues = is_argument or key in _ARGUMENTS
            count += count_spoken(inner, is_spoken=argues or key in _SPOKEN, is_argument=argues)
        return count
    return 0


_ANSWERS = (
    "choices",
    "candidates",
    "promptFeedback",
    "output",
    "response",
    "delta",
    "message",
    "content_block",
    "item",
)
"""Members of which an answer, or an event of one, has one at least, in any dialect."""


def is_answer(document: Document) -> bool:
    """Return whether a document has the form of an answer, and is not what a proxy says in the place of one."""
    is_streamed_text = isinstance(document.get("delta"), str)
    has_part = any(isinstance(document.get(name), dict | list) for name in _ANSWERS)
    return has_part or is_streamed_text or document.get("type") == "message"


def table(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def tables(value: Any) -> list[dict[str, Any]]:
    """The objects of an array."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def is_count(value: Any) -> bool:
    """Return whether it can be a number of tokens: not negative, and small enough to be multiplied by a price exactly.

    One that is left out is 0.
    """
    return value is None or (type(value) is int and 0 <= value < _MAX_COUNT)


def count(value: Any) -> int:
    """Return a number of tokens; 0 for what can be none."""
    return value if is_count(value) and value else 0


def word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def text_of(content: Any) -> str:
    """The text of a message's content, which is a string or an array of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in tables(content) if isinstance(part.get("text"), str))


def put(body: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """Set a value at a place like `a.b`; what is new, by its place."""
    *outer, last = place.split(".")
    inner = body
    for name in outer:
        if not isinstance(inner.get(name), dict):
            inner[name] = {}
        inner = inner[name]
    if inner.get(last) == value and last in inner:
        return {}
    inner[last] = value
    return {place: value}


def capped(asked: Any, cap: int) -> int:
    """The smaller of what was asked and the cap."""
    return min(asked, cap) if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0 else cap
