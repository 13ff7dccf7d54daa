"""The formats (dialects) of the LLM APIs: one module each, for the gateway and for the scripted model.

Nothing is translated from one to another. A dialect parses requests and responses, sets sampling parameters, and
formats errors. `side_calls` lists the calls that agents make beside their task.
"""

from __future__ import annotations

from benchflow.llm_apis.anthropic_messages import AnthropicMessages
from benchflow.llm_apis.dialect import Dialect, ParsedRequest, ParsedResponse
from benchflow.llm_apis.gemini import Gemini
from benchflow.llm_apis.json_values import Document, count_output, documents, is_answer, read_json
from benchflow.llm_apis.openai_chat import OpenAIChat
from benchflow.llm_apis.openai_responses import OpenAIResponses

__all__ = [
    "DIALECTS",
    "Dialect",
    "Document",
    "ParsedRequest",
    "ParsedResponse",
    "count_output",
    "documents",
    "find_dialect",
    "is_answer",
    "read_json",
]

_ALL: tuple[Dialect, ...] = (OpenAIChat(), OpenAIResponses(), AnthropicMessages(), Gemini())

DIALECTS: dict[str, Dialect] = {dialect.api: dialect for dialect in _ALL}
"""Every dialect by its API."""


def find_dialect(path: str) -> Dialect | None:
    """Return the dialect of a generation call by its path, without the query; None if the path is of none."""
    return next((dialect for dialect in _ALL if dialect.path_end.search(path)), None)
