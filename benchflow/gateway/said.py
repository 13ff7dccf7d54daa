"""A model's output, parsed from its response and from the conversation in which an agent repeats it.

The two are written differently: a response comes in pieces, and an agent joins texts, renames calls and omits
reasoning. They have in common the text, and the tools that were called with their arguments.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchflow.gateway.dialects import Document
from benchflow.gateway.dialects.reading import table, tables, word

_MODELS = ("assistant", "model")
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}


@dataclass
class ModelOutput:
    """Output of a model."""

    text: str = ""
    """All of its text."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    """Names and arguments of tool calls."""

    def call(self, name: Any, given: Any) -> None:
        """Add a tool call. Arguments given as JSON text are parsed."""
        if isinstance(given, str):
            with contextlib.suppress(ValueError, RecursionError):
                given = json.loads(given or "{}")
        self.calls.append((str(name), {} if given is None else given))

    @property
    def form(self) -> dict[str, Any]:
        """Return a form to compare and to show. Text is stripped: not every agent keeps surrounding blanks."""
        return {"text": self.text.strip(), "calls": [{"tool": name, "input": given} for name, given in self.calls]}


def said_in(api: str, answer: Sequence[Document]) -> ModelOutput:
    """Return the output in a response.

    Args:
        api: Dialect.
        answer: The events of the response in order, or its single document.
    """
    match api:
        case "openai-chat":
            return _chat_answer(answer)
        case "openai-responses":
            return _of_items(_responses_output(answer))
        case "anthropic-messages":
            return _of_blocks(_messages_content(answer))
        case "gemini":
            candidates = [one for document in answer for one in tables(document.get("candidates"))[:1]]
            return _of_parts([part for one in candidates for part in tables(table(one.get("content")).get("parts"))])
    return ModelOutput()


def repeated_in(api: str, items: Sequence[Any]) -> ModelOutput:
    """Return the output in the first items of a conversation, up to the first item that is not the model's.

    Args:
        api: Dialect.
        items: Items of a conversation.
    """
    own: list[Mapping[str, Any]] = []
    for item in items:
        if not isinstance(item, dict) or not _is_models(item):
            break
        own.append(item)
    match api:
        case "openai-chat":
            said = ModelOutput()
            for message in own:
                _add_message(said, message)
            return said
        case "openai-responses":
            return _of_items(own)
        case "anthropic-messages":
            return _of_blocks([block for message in own for block in _blocks(message.get("content"))])
        case "gemini":
            return _of_parts([part for content in own for part in tables(content.get("parts"))])
    return ModelOutput()


def _is_models(item: Mapping[str, Any]) -> bool:
    """Return whether an item of a conversation is the model's."""
    return item.get("role") in _MODELS or item.get("type") in (*_CALLS, "reasoning")


def _blocks(content: Any) -> list[dict[str, Any]]:
    """Return the content of a message as blocks; a text becomes a block of its own."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else tables(content)


# --- each dialect


def _chat_answer(answer: Sequence[Document]) -> ModelOutput:
    said, open_calls = ModelOutput(), dict[Any, dict[str, str]]()
    for document in answer:
        for choice in tables(document.get("choices"))[:1]:
            message = table(choice.get("message"))
            _add_message(said, message)
            delta = table(choice.get("delta"))
            said.text += word(delta.get("content")) or ""
            for piece in tables(delta.get("tool_calls")):
                call = open_calls.setdefault(_index(piece), {"name": "", "arguments": ""})
                for part in call:
                    call[part] += word(table(piece.get("function")).get(part)) or ""
    for call in open_calls.values():
        said.call(call["name"], call["arguments"])
    return said


def _add_message(said: ModelOutput, message: Mapping[str, Any]) -> None:
    said.text += "".join(str(block.get("text") or "") for block in _blocks(message.get("content")))
    for call in tables(message.get("tool_calls")):
        function = table(call.get("function"))
        said.call(function.get("name"), function.get("arguments"))


def _responses_output(answer: Sequence[Document]) -> list[dict[str, Any]]:
    """Return the completed items of a stream; for a single document, its output."""
    done = [table(event.get("item")) for event in answer if event.get("type") == "response.output_item.done"]
    if done:
        return done
    whole = [table(document.get("response")) or document for document in answer]
    return next((output for document in reversed(whole) if (output := tables(document.get("output")))), [])


def _of_items(items: Sequence[Mapping[str, Any]]) -> ModelOutput:
    said = ModelOutput()
    for item in items:
        kind = item.get("type")
        if kind in _CALLS:
            said.call(item.get("name"), item.get(_CALLS[kind]))
        elif item.get("role") in _MODELS:
            said.text += "".join(str(block.get("text") or "") for block in _blocks(item.get("content")))
    return said


def _index(event: Document) -> int | None:
    """Return the number of the block or call that an event is about; None if it has none."""
    index = event.get("index")
    return index if isinstance(index, int) else None


def _messages_content(answer: Sequence[Document]) -> list[dict[str, Any]]:
    """Return the content blocks of an answer, assembled from its events."""
    blocks: dict[Any, dict[str, Any]] = {}
    for document in answer:
        if document.get("type") == "message":
            return tables(document.get("content"))
        if document.get("type") == "content_block_start":
            blocks[_index(document)] = dict(table(document.get("content_block")))
        block, delta = blocks.get(_index(document)), table(document.get("delta"))
        if block is None:
            continue
        if delta.get("type") == "text_delta":
            block["text"] = str(block.get("text") or "") + str(delta.get("text") or "")
        elif delta.get("type") == "input_json_delta":
            block["json"] = str(block.get("json") or "") + str(delta.get("partial_json") or "")
    return list(blocks.values())


def _of_blocks(blocks: Sequence[Mapping[str, Any]]) -> ModelOutput:
    said = ModelOutput()
    for block in blocks:
        if block.get("type") == "text":
            said.text += str(block.get("text") or "")
        elif block.get("type") == "tool_use":
            said.call(block.get("name"), block.get("json") or block.get("input"))
    return said


def _of_parts(parts: Sequence[Mapping[str, Any]]) -> ModelOutput:
    said = ModelOutput()
    for part in parts:
        call = table(part.get("functionCall"))
        if call:
            said.call(call.get("name"), call.get("args"))
        elif not part.get("thought"):
            said.text += str(part.get("text") or "")
    return said
