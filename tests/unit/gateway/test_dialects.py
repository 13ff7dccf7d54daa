"""Reading the dialects: what an answer tells while it is not at its end, and bodies that are nothing like one."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from benchflow.contracts.gateway import Sampling
from benchflow.llm_apis import DIALECTS, Dialect, count_output, documents

ODD: tuple[Any, ...] = (None, 0, -1, 1.5, True, "text", [], [None], [1, "a", {}], {}, {"a": None}, [[{}]])
KEYS = (
    *("model", "stream", "tools", "messages", "input", "contents", "system", "systemInstruction", "instructions"),
    *("choices", "usage", "response", "output", "message", "delta", "candidates", "usageMetadata", "promptFeedback"),
    *("generationConfig", "stream_options", "max_tokens", "error", "type"),
)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())
def test_odd_bodies_are_read_without_trouble(dialect: Dialect) -> None:
    deeper = [{"role": "user", "content": odd, "parts": odd, "usage": odd, "delta": odd} for odd in ODD]
    for key, odd in itertools.product(KEYS, (*ODD, *deeper, deeper)):
        body = {key: odd}
        asked = dialect.parse_request("/v1/models/x:generateContent", body)
        assert isinstance(asked.system + asked.user, str)
        dialect.parse_response([body, {"type": odd, **body}])
        copy = json.loads(json.dumps(body))
        dialect.apply_sampling(copy, Sampling(temperature=1, max_tokens=5), "https://x")
        dialect.request_usage(copy)
        json.dumps(copy)


def test_an_answer_that_was_cut_off_tells_what_it_told_before() -> None:
    usage = {"input_tokens": 40, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 60, "output_tokens": 1}
    start = {"type": "message_start", "message": {"usage": usage}}
    begun = DIALECTS["anthropic-messages"].parse_response([start])
    assert begun.finish is None and begun.usage is not None
    assert (begun.usage.input_tokens, begun.usage.cached_tokens, begun.usage.cache_write_tokens) == (1000, 900, 60)
    ends = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 55}}
    whole = DIALECTS["anthropic-messages"].parse_response(
        [{"type": "message_start", "message": {"usage": usage}}, ends]
    )
    assert whole.usage is not None
    assert (whole.finish, whole.usage.input_tokens, whole.usage.output_tokens) == ("end_turn", 1000, 55)


@pytest.mark.parametrize(
    ("api", "document", "finish"),
    [
        ("openai-responses", {"type": "response.created", "response": {"status": "in_progress"}}, None),
        (
            "openai-responses",
            {"response": {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}},
            "max_output_tokens",
        ),
        ("openai-responses", {"type": "response.failed", "response": {"status": "failed"}}, "failed"),
        ("gemini", {"promptFeedback": {"blockReason": "SAFETY"}}, "SAFETY"),
        ("openai-chat", {"error": {"message": "no"}}, "error"),
        ("anthropic-messages", {"type": "message", "stop_reason": "tool_use"}, "tool_use"),
    ],
)
def test_why_an_answer_ended_is_in_the_endpoints_own_word(api: Any, document: dict[str, Any], finish: str) -> None:
    assert DIALECTS[api].parse_response([document]).finish == finish


def test_events_are_read_however_their_lines_end_and_what_is_none_is_passed_over() -> None:
    data = b': hello\r\n\r\nevent: x\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata: [DONE]\n\ndata: {oh\n\ndata:{"b": 2}'
    assert list(documents(data)) == [{"a": 1}, {"b": 2}]
    assert list(documents(b'[{"a": 1}, 2, {"b": 2}]')) == [{"a": 1}, {"b": 2}]
    assert not list(documents(b"<html>"))


def test_an_answers_own_beginning_says_whether_it_is_a_stream() -> None:
    assert list(documents(b'\xef\xbb\xbf \n{"a": 1}')) == [{"a": 1}]
    assert list(documents(b'\xef\xbb\xbfdata: {"a": 1}\n\n')) == [{"a": 1}]


def test_an_error_is_the_end_whatever_else_is_said_and_null_is_none() -> None:
    dialect = DIALECTS["openai-chat"]
    said = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
    assert dialect.parse_response([said | {"error": {"message": "overloaded"}}]).finish == "error"
    assert dialect.parse_response([said | {"error": None}, {"choices": [], "error": None}]).finish == "stop"
    gemini = {"candidates": [{"finishReason": "STOP"}], "error": {"message": "overloaded"}}
    assert DIALECTS["gemini"].parse_response([gemini]).finish == "error"


@pytest.mark.parametrize(
    "document",
    [
        {"choices": [{"delta": {"reasoning": "12345678"}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "12345678"}}]}}]},
        {"type": "message", "content": [{"type": "tool_use", "input": {"command": "1234", "deeper": ["5678"]}}]},
        {"candidates": [{"content": {"parts": [{"functionCall": {"args": {"command": "12345678"}}}]}}]},
        {"object": "response", "output": [{"type": "custom_tool_call", "input": "12345678"}]},
    ],
)
def test_reasoning_and_arguments_of_tools_are_said_by_the_model(document: dict[str, Any]) -> None:
    assert count_output(document) == 8


def test_the_other_spelling_of_a_parameter_is_kept() -> None:
    body: dict[str, Any] = {"generation_config": {"max_output_tokens": 100, "top_p": 1}}
    new = DIALECTS["gemini"].apply_sampling(body, Sampling(max_tokens=5, top_p=0.5), "https://x")
    assert body == {"generation_config": {"max_output_tokens": 5, "top_p": 0.5}}
    assert new == {"generation_config.max_output_tokens": 5, "generation_config.top_p": 0.5}


def test_openais_own_endpoint_has_the_newer_name_of_the_cap() -> None:
    body: dict[str, Any] = {}
    DIALECTS["openai-chat"].apply_sampling(body, Sampling(max_tokens=5), "https://api.openai.com/v1")
    assert body == {"max_completion_tokens": 5}


IMPOSSIBLE: tuple[Any, ...] = (-1, 10**30, 1.5, True, "12", [])


@pytest.mark.parametrize(
    ("api", "place", "names"),
    [
        ("openai-chat", "usage", ("prompt_tokens", "completion_tokens")),
        ("anthropic-messages", "usage", ("input_tokens", "output_tokens")),
        ("gemini", "usageMetadata", ("promptTokenCount", "candidatesTokenCount")),
    ],
)
def test_a_number_of_tokens_that_can_be_none_is_not_taken_for_told(
    api: Any, place: str, names: tuple[str, str]
) -> None:
    def is_estimated(usage: dict[str, Any]) -> bool:
        told = DIALECTS[api].parse_response([{place: usage}]).usage
        assert told is not None
        return told.is_estimated

    assert not is_estimated(dict.fromkeys(names, 5))
    # Some leave out a 0.
    assert not is_estimated({names[0]: 5})
    for name, odd in itertools.product(names, IMPOSSIBLE):
        assert is_estimated(dict.fromkeys(names, 5) | {name: odd}), (name, odd)


def test_impossible_tokens_of_a_response_are_not_taken_for_told() -> None:
    for odd in IMPOSSIBLE:
        usage = {"input_tokens": 5, "output_tokens": odd}
        told = DIALECTS["openai-responses"].parse_response([{"response": {"usage": usage}}]).usage
        assert told is not None and told.is_estimated


def test_searches_of_the_endpoints_own_tool_are_told() -> None:
    calls = [
        {"type": "web_search_call", "action": {"type": "search", "queries": ["a", "b"]}},
        {"type": "web_search_call"},
    ]
    response = {"object": "response", "status": "completed", "output": calls, "usage": {"input_tokens": 1}}
    answered = DIALECTS["openai-responses"].parse_response([response])
    assert answered.usage is not None and answered.usage.web_searches == 3
    usage = {"cache_creation_input_tokens": 9, "cache_creation": {"ephemeral_1h_input_tokens": 4}}
    usage |= {"server_tool_use": {"web_search_requests": 2}}
    answered = DIALECTS["anthropic-messages"].parse_response([{"usage": usage}])
    assert answered.usage is not None
    assert (answered.usage.web_searches, answered.usage.hour_cache_write_tokens) == (2, 4)
