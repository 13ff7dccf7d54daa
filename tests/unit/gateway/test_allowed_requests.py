"""Paths in one form, and which requests are passed on."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from benchflow.contracts.gateway import TOKEN_PREFIX, Registration
from benchflow.gateway.allowed_requests import allowed_requests, canonical_path, find_allowed
from benchflow.planes.agent.registry import find_agent

QUICK = settings(max_examples=60, deadline=None, database=None)
"""Few enough for every run, whose time a busy machine does not bound; nothing is left in the working directory."""

PARTS = st.sampled_from(
    ["v1", "chat", "completions", "messages", "models", "..", ".", "", "a:b", "%", "2e", "\x00", "é"]
)


def registration(api: Any, **more: Any) -> Registration:
    given = {"id": "r", "token": TOKEN_PREFIX + "0" * 48, "job_id": "j", "agent": "a", "record": "/r"}
    return Registration(api=api, base_url="https://x/v1", **(given | more))


def encoded(path: str, which: list[bool]) -> str:
    """Return the path with some of its characters percent-encoded."""
    some = zip(path, which + [False] * len(path), strict=False)
    return "".join("".join(f"%{byte:02x}" for byte in char.encode()) if is_one else char for char, is_one in some)


@QUICK
@given(st.lists(PARTS), st.lists(st.booleans(), max_size=40))
def test_a_path_has_one_form_however_it_is_spelled(parts: list[str], which: list[bool]) -> None:
    path = "/" + "/".join(parts)
    form = canonical_path(path)
    if form is not None:
        assert canonical_path(encoded(path, which)) == form
        # It is its own form, and says what it says, to whoever would resolve it once more.
        assert canonical_path(form) == form
        assert re.fullmatch(r"/|(/[A-Za-z0-9._~:-]+)+", form)
        assert not {".", ".."} & set(form.split("/"))


@QUICK
@given(st.text(max_size=60), st.text(max_size=30), st.sampled_from(["POST", "GET", "PUT", "post"]))
def test_whatever_is_asked_only_a_path_of_the_list_is_passed_on(path: str, query: str, method: str) -> None:
    for row in allowed_requests():
        for raw in (path, f"{row.path}{path}", f"/{path}{row.path}", row.path.replace("{model}", path)):
            passed = find_allowed(registration(row.api), method, raw, query)
            if passed is not None:
                assert method == "POST"
                assert any(one.pattern.fullmatch(passed.path.partition("?")[0]) for one in allowed_requests())
                assert passed.path.partition("?")[2] in ("", "beta=true", "alt=sse")


@pytest.mark.parametrize(
    ("api", "path", "form"),
    [
        ("openai-chat", "/v1/chat/completions", "/v1/chat/completions"),
        ("openai-chat", "//v1/x/..//chat/completion%73/", "/v1/chat/completions"),
        ("openai-chat", "/chat/completions", None),
        ("openai-chat", "/v1/responses", None),
        ("openai-chat", "/v1/chat/completion%2573", None),
        ("openai-chat", "/v1/chat/Completions", None),
        ("openai-responses", "/v1/responses/resp_1", None),
        ("openai-responses", "/v1/models", None),
        ("anthropic-messages", "/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("anthropic-messages", "/v1/messages/batches", None),
        ("anthropic-messages", "/v1/messages/batches/..", "/v1/messages"),
        ("gemini", "/v1beta/models/gemini-2.5-pro:countTokens", "/v1beta/models/gemini-2.5-pro:countTokens"),
        ("gemini", "/v1beta/models/a%2F..%2Fb:generateContent", "/v1beta/models/b:generateContent"),
        ("gemini", "/v1beta/models/..:generateContent", None),
        ("gemini", "/v1beta/models/:generateContent", None),
        ("gemini", "/v1beta/models/a:b:generateContent", None),
        ("gemini", "/v1beta/models/a/b:generateContent", None),
        ("gemini", "/v1beta/models/a:batchGenerateContent", None),
        ("gemini", "/v1beta/models/a:generateContent/operations", None),
        ("gemini", f"/v1beta/models/{'a' * 129}:generateContent", None),
        ("gemini", "/v1beta/models/m:generateContent%0a", None),
    ],
)
def test_what_is_passed_on(api: str, path: str, form: str | None) -> None:
    passed = find_allowed(registration(api), "POST", path, "")
    assert (passed.path if passed else None) == form


@pytest.mark.parametrize(
    ("query", "passing"),
    [
        ("alt=sse", "?alt=sse"),
        ("key=x&alt=sse&access_token=y", "?alt=sse"),
        ("alt=json", ""),
        ("alt=sse&alt=media", ""),
        ("ALT=sse", ""),
        ("alt=sse%26key=x", ""),
        ("%61lt=%73se", "?alt=sse"),
        ("", ""),
    ],
)
def test_of_a_query_only_what_the_list_names_passes(query: str, passing: str) -> None:
    path = "/v1beta/models/m:streamGenerateContent"
    passed = find_allowed(registration("gemini"), "POST", path, query)
    assert passed is not None and passed.path == path + passing


def test_an_agents_own_requests_are_passed_on_without_a_query_and_count_as_calls() -> None:
    own = registration("openai-chat", requests=("POST /v1/embeddings",))
    passed = find_allowed(own, "POST", "/v1//embeddings/", "key=x")
    assert passed is not None
    assert (passed.path, passed.is_generation, passed.counts_as) == ("/v1/embeddings", False, "call")
    assert find_allowed(own, "GET", "/v1/embeddings", "") is None


@pytest.mark.parametrize("name", ["PUT /v1/x", "POST /v1/../x", "POST /v1//x", "POST v1", "POST /v1/%73", "POST /v1/"])
def test_an_agents_own_request_is_written_in_one_form(name: str) -> None:
    with pytest.raises(ValidationError):
        registration("openai-chat", requests=(name,))


def test_the_list_names_agents_of_the_registry_by_the_wire_formats_that_they_have() -> None:
    for row in allowed_requests():
        assert row.agents
        for name in row.agents:
            assert row.api in {endpoint.api for endpoint in find_agent(name).endpoints}
