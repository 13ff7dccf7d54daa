"""The wire formats, as far as the gateway reads them: one module each.

Nothing is translated. A dialect tells what was asked and answered (for the record, the meter and the rules about side
calls), where sampling parameters belong, and what an error of the gateway's own looks like.
"""

from __future__ import annotations

from benchflow.contracts.gateway import Api
from benchflow.gateway.dialects.anthropic_messages import AnthropicMessages
from benchflow.gateway.dialects.dialect import Answered, Asked, Dialect, Document
from benchflow.gateway.dialects.gemini import Gemini
from benchflow.gateway.dialects.openai_chat import OpenAIChat
from benchflow.gateway.dialects.openai_responses import OpenAIResponses
from benchflow.gateway.dialects.reading import count_spoken, documents, is_answer, read_json, tables

__all__ = [
    "DIALECTS",
    "Answered",
    "Asked",
    "Dialect",
    "Document",
    "count_spoken",
    "documents",
    "is_answer",
    "read_json",
    "tables",
]

_ALL: tuple[Dialect, ...] = (OpenAIChat(), OpenAIResponses(), AnthropicMessages(), Gemini())

DIALECTS: dict[Api, Dialect] = {dialect.api: dialect for dialect in _ALL}
