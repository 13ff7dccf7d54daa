"""A model endpoint that replies by a script, in the API dialect of each request.

    async with ScriptedModel("script.yaml") as model:       # or a list of replies, a Script, a Python callable
        ...                                                  # model.base_url, model.openai_base_url
        assert not model.unanswered

`script` holds the models of a script, `tools` and `agents.toml` the translation of generic tool calls to each agent's
own, `dialects` the wire formats (OpenAI chat completions and responses, Anthropic messages, Gemini). `docs/testing.md`
shows how to point an agent at it.
"""

from benchflow.llm_apis.conversation import OfferedTool, ToolResult
from benchflow.testing.scripted_model.call_log import ReceivedCall
from benchflow.testing.scripted_model.model_request import ModelRequest
from benchflow.testing.scripted_model.model_script import (
    Fault,
    HTTPError,
    Reply,
    Script,
    SideCalls,
    TokenCounts,
    ToolUse,
    When,
)
from benchflow.testing.scripted_model.model_server import ScriptedModel
from benchflow.testing.scripted_model.reply_choice import Program

__all__ = [
    "Fault",
    "HTTPError",
    "ModelRequest",
    "OfferedTool",
    "Program",
    "ReceivedCall",
    "Reply",
    "Script",
    "ScriptedModel",
    "SideCalls",
    "TokenCounts",
    "ToolResult",
    "ToolUse",
    "When",
]
