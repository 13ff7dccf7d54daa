"""The wire formats (dialects), as far as the gateway reads them: one module each.

Nothing is translated. A dialect parses requests and responses (for the record, the meter and the rules about side
calls), sets sampling parameters, and formats the gateway's own errors.
"""

from __future__ import annotations

from benchflow.contracts.gateway import Api
from benchflow.gateway.dialects.anthropic_messages import AnthropicMessages
from benchflow.gateway.dialects.dialect import Answered, Dialect, Document, ParsedRequest
from benchflow.gateway.dialects.gemini import Gemini
from benchflow.gateway.dialects.openai_chat import OpenAIChat
from benchflow.gateway.dialects.openai_responses import OpenAIResponses
from benchflow.gateway.dialects.reading import count_spoken, documents, is_answer, read_json, tables

__all__ = [
    "DIALECTS",
    "Answered",
    "Dialect",
    "Document",
    "ParsedRequest",
    "count_spoken",
    "documents",
    "is_answer",
    "read_json",
    "tables",
]

_ALL: tuple[Dialect, ...] = (OpenAIChat(), OpenAIResponses(), AnthropicMessages(), Gemini())

DIALECTS: dict[Api, Dialect] = {dialect.api: dialect for dialect in _ALL}
"""Every dialect by its API."""
