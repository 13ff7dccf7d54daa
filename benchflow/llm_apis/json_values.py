"""Tolerant reading of JSON whose parts may be missing or of other types, and setting of values in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from benchflow.llm_apis.value_counts import MAX_VALUES, count_values

Document = Mapping[str, Any]
"""A JSON object of a request or a response."""

_LINE = re.compile(rb"([^\r\n]*)(?:\r\n|[\r\n]|\Z)")

_MAX_COUNT = 2**53
"""Beyond it, floats skip integers, so that a price could not be multiplied exactly."""


def read_json(data: bytes) -> Any:
    """Parse a JSON document. Raise `ValueError` if it is none, or is nested too deeply."""
    try:
        return from_json(data)
    except ValueError as error:
        # Code that walks through a document nested more deeply would fail, too.
        if str(error).startswith("recursion limit"):
            raise
    # Some agents cut an emoji in half: the faster parser refuses the lone surrogate, this one does not.
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def documents(data: bytes) -> Iterator[Document]:
    """Yield the JSON objects of a response: the events of a stream, the items of an array, or its single document.

    The body's first character decides which, since some servers send a wrong content type or none, and clients read
    their responses. Invalid JSON and documents with too many values are skipped: this is for the record, and the agent
    has the response already.
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
    """Yield the data of each event of a stream of server-sent events."""
    lines: list[bytes] = []
    # A list of all lines could have as many items as the body has bytes.
    for found in _LINE.finditer(data):
        line = found.group(1)
        if line.startswith(b"data:"):
            lines.append(line[5:].strip())
        elif not line and lines:
            yield b"\n".join(lines)
            lines = []


_OUTPUT_KEYS = frozenset(
    {"text", "content", "delta", "thinking", "reasoning", "reasoning_content", "arguments", "partial_json"}
)
"""Members under which the dialects' events have model output."""

_ARGUMENT_KEYS = frozenset({"input", "args"})
"""Members that hold the arguments of a tool call as an object, whose keys are the tool's own."""


def count_output(value: Any, *, is_output: bool = False, is_argument: bool = False) -> int:
    """Return the number of characters of model output in a document of any dialect.

    Args:
        value: The document, or a part of it.
        is_output: Whether a text in the place of `value` is model output.
        is_argument: Whether `value` is inside a tool call's arguments, where every text is model output.
    """
    if isinstance(value, str):
        # Some servers send blanks to keep a connection open.
        return len(value) if is_output and not value.isspace() else 0
    if isinstance(value, list):
        return sum(count_output(item, is_output=is_output, is_argument=is_argument) for item in value)
    if isinstance(value, dict):
        count = 0
        for key, inner in value.items():
            argues = is_argument or key in _ARGUMENT_KEYS
            count += count_output(inner, is_output=argues or key in _OUTPUT_KEYS, is_argument=argues)
        return count
    return 0


_RESPONSE_KEYS = (
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
"""Members of which a response, or an event of one, has at least one, in any dialect."""


def is_answer(document: Document) -> bool:
    """Return whether a document has the form of a model's response, unlike an error page of a proxy."""
    is_streamed_text = isinstance(document.get("delta"), str)
    has_part = any(isinstance(document.get(name), dict | list) for name in _RESPONSE_KEYS)
    return has_part or is_streamed_text or document.get("type") == "message"


def table(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty object."""
    return value if isinstance(value, dict) else {}


def tables(value: Any) -> list[dict[str, Any]]:
    """Return the objects in an array; empty if the value is no array."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def is_count(value: Any) -> bool:
    """Return whether a value can be a number of tokens: absent, or a non-negative integer.

    It must also be small enough that its product with a price is exact.
    """
    return value is None or (type(value) is int and 0 <= value < _MAX_COUNT)


def count(value: Any) -> int:
    """Return a number of tokens; 0 if the value cannot be one."""
    return value if is_count(value) and value else 0


def word(value: Any) -> str | None:
    """Return the value if it is a text that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def document_index(document: Document) -> int | None:
    """Return the number of the block or call that a streamed document is about; None if it has none."""
    index = document.get("index")
    return index if isinstance(index, int) else None


def put(body: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """Set a value at a place such as `a.b`. Return it by its place if that changed the body, else an empty dict."""
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
    """Return the smaller of the requested number and the cap; the cap if the number is no positive integer."""
    return min(asked, cap) if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0 else cap
