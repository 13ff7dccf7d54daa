"""Each dialect as the official client of its provider reads it: text, thinking, parallel tools, usage, errors.

The clients are imported where they are used: they take seconds, and every process of a run collects this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from benchflow.testing.scripted_model import ScriptedModel

if TYPE_CHECKING:
    import anthropic
    import openai
    from google import genai
    from google.genai.types import GenerateContentConfig

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TEXT = "I will look around, and then tell you what is there."
THINKING = "They want to know what is there."
COMMANDS = ["ls -l /app", "echo 'grüße'"]
REPLY = {
    "text": TEXT,
    "thinking": THINKING,
    "tools": [{"name": "shell", "arguments": {"command": command}} for command in COMMANDS],
    "usage": {"input": 900, "output": 50, "cached": 800, "reasoning": 10},
    "times": "always",
}
ERROR = {"error": {"status": 429, "retry_after": 0.01, "message": "slow down"}}
ASK: list[Any] = [{"role": "user", "content": "what is there?"}]


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel([REPLY]) as model:
        yield model


def openai_client(model: ScriptedModel, retries: int = 0) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=model.openai_base_url, api_key="test", max_retries=retries)


def anthropic_client(model: ScriptedModel, retries: int = 0) -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(base_url=model.base_url, api_key="test", max_retries=retries)


def gemini_client(model: ScriptedModel) -> genai.Client:
    from google import genai

    return genai.Client(api_key="test", http_options=genai.types.HttpOptions(base_url=model.base_url))


def gemini_config() -> GenerateContentConfig:
    """Return a request's configuration with one tool, which the client doesn't call by itself."""
    from google.genai import types

    return types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[{"name": "shell", "parameters_json_schema": SCHEMA}])],  # type: ignore[list-item]
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )


CHAT_TOOLS: list[Any] = [{"type": "function", "function": {"name": "shell", "parameters": SCHEMA}}]
RESPONSES_TOOLS: list[Any] = [{"type": "function", "name": "shell", "parameters": SCHEMA, "strict": False}]
MESSAGES_TOOLS: list[Any] = [{"name": "shell", "input_schema": SCHEMA}]


def test_chat_completions_are_what_openais_client_expects(model: ScriptedModel) -> None:
    client = openai_client(model)
    whole = client.chat.completions.create(model="m", messages=ASK, tools=CHAT_TOOLS)
    message = whole.choices[0].message
    assert message.content == TEXT
    assert message.reasoning_content == THINKING  # type: ignore[attr-defined]
    assert [call.function.arguments for call in message.tool_calls or []] == [  # type: ignore[union-attr]
        '{"command":"ls -l /app"}',
        '{"command":"echo \'grüße\'"}',
    ]
    assert whole.choices[0].finish_reason == "tool_calls"
    assert whole.usage and whole.usage.total_tokens == 950
    assert whole.usage.prompt_tokens_details and whole.usage.prompt_tokens_details.cached_tokens == 800


def test_streamed_chat_completions_add_up_to_the_same(model: ScriptedModel) -> None:
    strict = {"name": "shell", "strict": True, "parameters": {**SCHEMA, "additionalProperties": False}}
    with openai_client(model).chat.completions.stream(
        model="m",
        messages=ASK,
        tools=[{"type": "function", "function": strict}],  # type: ignore[typeddict-item]
        stream_options={"include_usage": True},
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert kinds.count("content.delta") == 1 + 3  # an empty one opens the message; 52 characters in pieces of 20
    assert message.content == TEXT
    assert [call.function.parsed_arguments for call in message.tool_calls or []] == [
        {"command": command} for command in COMMANDS
    ]
    assert final.usage and final.usage.completion_tokens == 50


def test_responses_are_what_openais_client_expects(model: ScriptedModel) -> None:
    client = openai_client(model)
    whole = client.responses.create(model="m", input="what is there?", tools=RESPONSES_TOOLS)
    with client.responses.stream(model="m", input="what is there?", tools=RESPONSES_TOOLS) as stream:
        numbers = [event.sequence_number for event in stream]
        streamed = stream.get_final_response()
    assert numbers == list(range(len(numbers)))
    for response in (whole, streamed):
        reasoning, message, *calls = response.output
        assert reasoning.type == "reasoning" and reasoning.summary[0].text == THINKING
        assert message.type == "message" and response.output_text == TEXT
        arguments = [call.arguments for call in calls if call.type == "function_call"]
        assert arguments == ['{"command":"ls -l /app"}', '{"command":"echo \'grüße\'"}']
        assert response.usage and response.usage.output_tokens_details.reasoning_tokens == 10
        assert response.status == "completed"


def test_messages_are_what_anthropics_client_expects(model: ScriptedModel) -> None:
    client = anthropic_client(model)
    asked: Any = {"model": "m", "max_tokens": 100, "messages": ASK, "tools": MESSAGES_TOOLS}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        thinking, text, *calls = message.content
        assert thinking.type == "thinking" and thinking.thinking == THINKING and thinking.signature
        assert text.type == "text" and text.text == TEXT
        assert [call.input for call in calls if call.type == "tool_use"] == [{"command": c} for c in COMMANDS]
        assert message.stop_reason == "tool_use"
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (100, 800)
        assert message.usage.output_tokens == 50


def test_gemini_replies_are_what_googles_client_expects(model: ScriptedModel) -> None:
    client = gemini_client(model)
    asked: Any = {"model": "m", "contents": "what is there?", "config": gemini_config()}
    whole = client.models.generate_content(**asked)
    chunks = list(client.models.generate_content_stream(**asked))
    parts = list(whole.candidates[0].content.parts)  # type: ignore[index,union-attr]
    streamed = [part for chunk in chunks for part in chunk.candidates[0].content.parts]  # type: ignore[index,union-attr]
    for found in (parts, streamed):
        assert "".join(part.text or "" for part in found if part.thought) == THINKING
        assert "".join(part.text or "" for part in found if not part.thought) == TEXT
        assert [part.function_call.args for part in found if part.function_call] == [{"command": c} for c in COMMANDS]
    last = chunks[-1]
    assert last.candidates and last.candidates[0].finish_reason == "STOP"
    assert last.usage_metadata and last.usage_metadata.total_token_count == 950
    assert last.usage_metadata.thoughts_token_count == 10


@pytest.mark.parametrize(
    ("finish", "chat", "responses", "messages", "gemini"),
    [
        ("length", "length", ("incomplete", "max_output_tokens"), "max_tokens", "MAX_TOKENS"),
        ("filtered", "content_filter", ("incomplete", "content_filter"), "refusal", "SAFETY"),
        ("stop", "stop", ("completed", None), "end_turn", "STOP"),
    ],
)
def test_a_reply_may_end_for_every_reason(
    finish: str, chat: str, responses: tuple[str, str | None], messages: str, gemini: str
) -> None:
    script = {"replies": [{"text": "so far", "finish": finish, "times": "always"}], "side": {"without_tools": False}}
    with ScriptedModel(script) as model:
        completion = openai_client(model).chat.completions.create(model="m", messages=ASK)
        assert completion.choices[0].finish_reason == chat
        response = openai_client(model).responses.create(model="m", input="?")
        details = response.incomplete_details
        assert (response.status, details.reason if details else None) == responses
        message = anthropic_client(model).messages.create(model="m", max_tokens=9, messages=ASK)
        assert message.stop_reason == messages
        with gemini_client(model) as client:
            candidates = client.models.generate_content(model="m", contents="?").candidates
        assert candidates and candidates[0].finish_reason == gemini


def test_errors_arrive_as_the_clients_own_and_are_retried_after_what_they_say() -> None:
    import anthropic
    import openai
    from google.genai.errors import ClientError

    with ScriptedModel([ERROR, ERROR, REPLY]) as model:
        with pytest.raises(openai.RateLimitError, match="slow down") as chat:
            openai_client(model).chat.completions.create(model="m", messages=ASK, tools=CHAT_TOOLS)
        assert chat.value.response.headers["retry-after"] == "0.01"
        retried = openai_client(model, retries=1).responses.create(model="m", input="?", tools=RESPONSES_TOOLS)
        assert retried.output_text == TEXT
        assert [call.reply for call in model.main_calls] == ["0", "1", "2"]
    with ScriptedModel([ERROR, {"error": {"status": 529}}, ERROR]) as model:
        asked: Any = {"model": "m", "max_tokens": 9, "messages": ASK, "tools": MESSAGES_TOOLS}
        with pytest.raises(anthropic.RateLimitError, match="slow down"):
            anthropic_client(model).messages.create(**asked)
        with pytest.raises(anthropic.InternalServerError) as overloaded:
            anthropic_client(model).messages.create(**asked)
        assert overloaded.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]
        with gemini_client(model) as client, pytest.raises(ClientError, match="RESOURCE_EXHAUSTED"):
            client.models.generate_content(model="m", contents="?", config=gemini_config())


def test_clients_find_the_models_and_can_count_tokens() -> None:
    with ScriptedModel({"models": ["small", "large"]}) as model:
        assert [entry.id for entry in openai_client(model).models.list()] == ["small", "large"]
        assert [entry.id for entry in anthropic_client(model).models.list()] == ["small", "large"]
        with gemini_client(model) as client:
            assert [entry.name for entry in client.models.list()] == ["models/small", "models/large"]
            assert (client.models.count_tokens(model="small", contents="hello").total_tokens or 0) > 0
        assert anthropic_client(model).messages.count_tokens(model="small", messages=ASK).input_tokens > 0
        assert {call.reply for call in model.calls} == {"200"}
        assert model.main_calls == []
