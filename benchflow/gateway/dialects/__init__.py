"""The wire formats, as far as the gateway reads them: one module each.

Nothing is translated. A dialect tells which paths ask a model, what was asked and answered (for the record, the meter
and the rules about side calls), where sampling parameters belong, and what an error of the gateway's own looks like.
"""

from __future__ import annotations

from benchflow.contracts.gateway import Api
from benchflow.gateway.dialects.anthropic_messages import AnthropicMessages
from benchflow.gateway.dialects.dialect import Answered, Asked, Dialect, Document
from benchflow.gateway.dialects.gemini import Gemini
from benchflow.gateway.dialects.openai_chat import OpenAIChat
from benchflow.gateway.dialects.openai_responses import OpenAIResponses
from benchflow.gateway.dialects.reading import documents, read_json

__all__ = ["DIALECTS", "Answered", "Asked", "Dialect", "Document", "dialect_of", "documents", "read_json"]

_ALL: tuple[Dialect, ...] = (OpenAIChat(), OpenAIResponses(), AnthropicMessages(), Gemini())

DIALECTS: dict[Api, Dialect] = {dialect.api: dialect for dialect in _ALL}


def dialect_of(path: str) -> Dialect | None:
    """The dialect in which a path asks a model; None for a path that asks none. Whatever comes before is free."""
    return next((dialect for dialect in _ALL if dialect.path.search(path)), None)
