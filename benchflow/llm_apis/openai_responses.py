"""OpenAI responses: POST …/responses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchflow.contracts.gateway import Api, CallUsage, Sampling
from benchflow.llm_apis.conversation import Message, OfferedTool, ToolResult, iter_texts, join_texts
from benchflow.llm_apis.dialect import ParsedResponse
from benchflow.llm_apis.json_values import Document, capped, count, is_count, put, table, tables, word
from benchflow.llm_apis.openai_chat import OpenAIDialect

_SEARCH = "web_search_call"
_MORE_TOOLS = "additional_tools"
_ENDS = ("completed", "incomplete", "failed", "cancelled")


class OpenAIResponses(OpenAIDialect):
    """The dialect of OpenAI's responses."""

    api: Api = "openai-responses"
    path = "/v1/responses"
    path_end = re.compile(r"/responses$")
    conversation = "input"
    unsupported = frozenset({"seed"})
    forbidden: frozenset[str] = frozenset({"background"})
    refused = 400

    def instructions(self, body: Document) -> Any:
        """Return the instructions."""
        return body.get("instructions")

    def items(self, body: Document) -> Sequence[Document]:
        """Return the items of a request's input, which may be a single text. Lists of tools among them are left out."""
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else tables(given)
        return [item for item in items if item.get("type") != _MORE_TOOLS]

    def parse_message(self, item: Document) -> Message:
        """Parse an item of a conversation."""
        kind = word(item.get("type")) or "message"
        if kind.endswith("_call_output"):
            result = ToolResult(str(item.get("call_id") or ""), join_texts(item.get("output")))
            return Message("user", results=(result,))
        if kind.endswith("_call"):
            arguments = item.get("input") if kind == "custom_tool_call" else item.get("arguments")
            return Message("assistant", calls=((str(item.get("name", kind)), arguments),))
        is_models = kind == "reasoning" or item.get("role") == "assistant"
        return Message("assistant" if is_models else "user", tuple(iter_texts(item.get("content"))))

    def tool_entries(self, body: Document) -> list[Any]:
        """Return the entries of `tools`, and of lists of tools that some clients put among the messages."""
        more = [item for item in tables(body.get("input")) if item.get("type") == _MORE_TOOLS]
        return [entry for owner in (body, *more) for entry in super(OpenAIResponses, self).tool_entries(owner)]

    def parse_tools(self, entry: Document) -> Iterator[OfferedTool]:
        """Yield the tools of an entry: built-in ones (web search) by their type, a namespace's one by one."""
        if entry.get("type") == "namespace":
            for inner in tables(entry.get("tools")):
                for tool in self.parse_tools(inner):
                    yield replace(tool, namespace=str(entry.get("name")))
            return
        kind: Any = "custom" if entry.get("type") == "custom" else "function"
        name = str(entry.get("name") or entry.get("type") or "")
        yield OfferedTool(name, kind, table(entry.get("parameters")))

    def parse_response(self, documents: Iterable[Document]) -> ParsedResponse:
        """Parse a response: its events in their order, or its single document."""
        response: Document = {}
        failed = False
        for document in documents:
            if isinstance(document.get("response"), dict):
                response = document["response"]
            elif document.get("object") == "response":
                response = document
            failed = failed or document.get("type") == "error" or bool(document.get("error"))
        status = word(response.get("status"))
        reason = word(table(response.get("incomplete_details")).get("reason"))
        logprobs = [
            entry
            for item in tables(response.get("output"))
            for part in tables(item.get("content"))
            for entry in tables(part.get("logprobs"))
        ]
        return ParsedResponse(
            usage=_usage(response["usage"], response) if isinstance(response.get("usage"), dict) else None,
            finish="error" if failed else (reason or status) if status in _ENDS else None,
            logprobs=logprobs or None,
            model=word(response.get("model")),
        )

    def apply_sampling(self, body: dict[str, Any], sampling: Sampling, base_url: str) -> dict[str, Any]:
        """Set temperature, top_p and max_output_tokens in a request body, and return the values that changed."""
        new: dict[str, Any] = {}
        for name in ("temperature", "top_p"):
            if name in sampling.given:
                new |= put(body, name, sampling.given[name])
        if sampling.max_tokens is not None:
            name = "max_output_tokens"
            new |= put(body, name, capped(body.get(name), sampling.max_tokens))
        return new

    def output_items(self, documents: Sequence[Document]) -> list[Document]:
        """Return the completed items of a stream; for a single document, its output."""
        done = [table(event.get("item")) for event in documents if event.get("type") == "response.output_item.done"]
        if done:
            return list(done)
        whole = [table(document.get("response")) or document for document in documents]
        return next((list(output) for one in reversed(whole) if (output := tables(one.get("output")))), [])


def _usage(usage: Document, response: Document) -> CallUsage:
    # Each search is charged, and one item may hold several.
    actions = [table(item.get("action")) for item in tables(response.get("output")) if item.get("type") == _SEARCH]
    searches = (action.get("queries") for action in actions)
    details = table(usage.get("input_tokens_details"))
    return CallUsage(
        is_estimated=not (is_count(usage.get("input_tokens")) and is_count(usage.get("output_tokens"))),
        input_tokens=count(usage.get("input_tokens")),
        output_tokens=count(usage.get("output_tokens")),
        cached_tokens=count(details.get("cached_tokens")),
        cache_write_tokens=count(details.get("cache_write_tokens")),
        reasoning_tokens=count(table(usage.get("output_tokens_details")).get("reasoning_tokens")),
        web_searches=sum(max(1, len(queries)) if isinstance(queries, list) else 1 for queries in searches),
    )
