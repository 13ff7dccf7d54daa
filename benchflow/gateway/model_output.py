"""A model's output, parsed from its response and from the conversation in which an agent repeats it.

The two are written differently: a response comes in pieces, and an agent joins texts, renames calls and omits
reasoning. They have in common the text, and the tools that were called with their arguments.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

from benchflow.llm_apis import DIALECTS, Dialect, Document


def response_output(api: str, answer: Sequence[Document]) -> dict[str, Any]:
    """Return the output in a response, in a form to compare and to show.

    Args:
        api: Dialect.
        answer: The events of the response in order, or its single document.
    """
    return _output(DIALECTS[api], DIALECTS[api].output_items(answer))


def repeated_output(api: str, items: Sequence[Any]) -> dict[str, Any]:
    """Return the output in the first items of a conversation, up to the first item that is not the model's.

    Args:
        api: Dialect.
        items: Items of a conversation.
    """

    def is_models(item: Any) -> bool:
        return isinstance(item, dict) and DIALECTS[api].parse_message(item).role == "assistant"

    return _output(DIALECTS[api], itertools.takewhile(is_models, items))


def _output(dialect: Dialect, items: Iterable[Document]) -> dict[str, Any]:
    """Return the texts and the tool calls in a model's items of a conversation.

    Not every agent repeats surrounding blanks, reasoning, and calls of tools that the endpoint runs itself.
    """
    messages = [dialect.parse_message(item) for item in items if item.get("type") != "reasoning"]
    text = "".join(text for message in messages for text in message.texts)
    calls = [call for message in messages for call in message.calls if call[1] is not None]
    return {"text": text.strip(), "calls": [{"tool": name, "input": _parse(given)} for name, given in calls]}


def _parse(arguments: Any) -> Any:
    """Return the arguments of a tool call, parsed if they are JSON text."""
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(arguments or "{}")
    return arguments
