"""What a call may ask for beyond its tokens, and what of that costs nothing."""

from __future__ import annotations

from typing import Any

import pytest

from benchflow.contracts.gateway import Api
from benchflow.gateway.surcharges import find_surcharge

COSTLY: list[tuple[Api, dict[str, Any], str]] = [
    ("openai-chat", {"service_tier": "priority"}, "service_tier:priority"),
    ("openai-chat", {"service_tier": ["default"]}, "service_tier"),
    ("openai-chat", {"web_search_options": {}}, "web_search_options"),
    ("openai-chat", {"models": ["dear"]}, "models"),
    ("openai-chat", {"tools": [{"type": "function"}, {"type": "web_search"}]}, "tools:web_search"),
    ("openai-responses", {"prompt": {"id": "pmpt_1"}}, "prompt"),
    ("openai-responses", {"tools": [{"type": "image_generation"}]}, "tools:image_generation"),
    (
        "openai-responses",
        {"tools": [{"type": "namespace", "tools": [{"type": "code_interpreter"}]}]},
        "tools:code_interpreter",
    ),
    (
        "openai-responses",
        {"input": [{"type": "additional_tools", "tools": [{"type": "file_search"}]}]},
        "tools:file_search",
    ),
    ("anthropic-messages", {"speed": "fast"}, "speed:fast"),
    ("anthropic-messages", {"inference_geo": "us"}, "inference_geo:us"),
    ("anthropic-messages", {"tools": [{"name": "a"}, {"type": "code_execution_2"}]}, "tools:code_execution_2"),
    ("gemini", {"serviceTier": "priority"}, "serviceTier:priority"),
    ("gemini", {"tools": [{"functionDeclarations": [], "googleSearch": {}}]}, "tools:googleSearch"),
    ("gemini", {"tools": [{"google_search": {}}]}, "tools:google_search"),
]

ORDINARY: list[tuple[Api, dict[str, Any]]] = [
    ("openai-chat", {"service_tier": None, "tools": [{"type": "function"}], "functions": [{}]}),
    (
        "openai-responses",
        {"service_tier": "auto", "input": "hi", "tools": [{"type": "custom"}, {"type": "web_search"}]},
    ),
    ("anthropic-messages", {"tools": [{"name": "a"}, {"type": "bash_20250124"}, {"type": "web_search_20250305"}]}),
    ("gemini", {"tools": [{"functionDeclarations": []}, {"codeExecution": {}}]}),
    ("gemini", {}),
]


@pytest.mark.parametrize(("api", "body", "found"), COSTLY)
def test_what_may_cost_more_than_its_tokens_is_found(api: Api, body: dict[str, Any], found: str) -> None:
    assert find_surcharge(api, body) == found


@pytest.mark.parametrize(("api", "body"), ORDINARY)
def test_what_agents_offer_of_their_own_costs_nothing_more(api: Api, body: dict[str, Any]) -> None:
    assert find_surcharge(api, body) is None
