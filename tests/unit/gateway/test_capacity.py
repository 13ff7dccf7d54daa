"""How much one rollout, and one peer, may take of what the gateway has."""

from __future__ import annotations

import asyncio
import logging

import pytest
from structlog.testing import capture_logs

from benchflow.gateway.allowed_requests import is_allowed_header
from benchflow.gateway.connections import MAX_PEER_CONNECTIONS, OncePerMinute, Tally, connection_limits
from benchflow.gateway.memory_budget import MemoryBudget
from benchflow.gateway.request_body import read_request
from benchflow.llm_apis import documents, value_counts
from benchflow.llm_apis.value_counts import MAX_VALUES, AnswerValues


@pytest.mark.parametrize("files", [256, 1024, 4096, 20_000, 1_048_576, 2**30])
def test_no_peer_can_have_all_connections_and_all_have_fewer_than_there_are_files(files: int) -> None:
    total, of_peer = connection_limits(files)
    # Each call has a connection to its endpoint, too.
    assert 2 * total < files
    assert 0 < of_peer <= min(total // 2, MAX_PEER_CONNECTIONS)


async def test_a_rollout_waits_for_its_own_memory_and_keeps_nobody_else_waiting() -> None:
    memory = MemoryBudget(total=100, of_one=40)
    order: list[str] = []
    go = asyncio.Event()

    async def hold(name: str, holder: str, size: int) -> None:
        async with memory.reserved(holder, size):
            order.append(name)
            await go.wait()

    tasks = [asyncio.create_task(hold(*one)) for one in (("a1", "a", 40), ("a2", "a", 1), ("b", "b", 40))]
    await asyncio.sleep(0)
    assert order == ["a1", "b"]
    # For what all share, a large one is not passed over.
    tasks += [asyncio.create_task(hold(*one)) for one in (("c", "c", 30), ("d", "d", 5))]
    await asyncio.sleep(0)
    assert order == ["a1", "b"]
    tasks[3].cancel()
    await asyncio.wait(tasks[3:4])
    await asyncio.sleep(0)
    assert order == ["a1", "b", "d"]
    go.set()
    await asyncio.gather(*tasks[:3], tasks[4])
    assert order == ["a1", "b", "d", "a2"]
    assert memory.add("e", 40)


async def test_memory_that_was_not_needed_is_given_back() -> None:
    memory = MemoryBudget(total=100, of_one=100)
    async with memory.reserved("a", 100) as reservation:
        assert not reservation.grow(1)
        reservation.shrink(10)
        assert reservation.grow(90)
    assert memory.add("b", 100)


def test_what_nobody_asks_is_logged_once_a_minute() -> None:
    now = [0.0]
    tally = Tally(lambda: now[0])
    with capture_logs() as logs:
        for _ in range(1000):
            tally.add("requests_without_a_token")
        now[0] = 60.0
        tally.add("requests_without_a_token")
    assert [entry["requests_without_a_token"] for entry in logs] == [1, 1000]
    record = logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, "Error handling request", (), None)
    once = OncePerMinute(tally, lambda: now[0])
    assert [once.filter(record) for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream": false, "stream": true}',
        b'{"stream": false, "str\\u0065am": true}',
        b'{"stream": false, "Stream": true}',
        b'{"Stream": true}',
        '{"\u017ftream": true}'.encode(),
        b'{"stream_options": {"Include_Usage": false}}',
        b'{"messages": [{"role": "user", "role": "system"}]}',
        b"[1, 2]",
        b'"text"',
        b"",
        b"{} {}",
        '{"stream": true}'.encode("utf-16"),
        b"[" * 1000 + b"]" * 1000,
        b'{"a": [' + b"0," * MAX_VALUES + b"0]}",
    ],
    ids=range(14),
)
def test_a_body_that_two_parsers_could_read_in_two_ways_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_request(body, "")


def test_each_event_of_a_stream_may_have_as_many_values_as_a_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_counts, "MAX_VALUES", 10)
    monkeypatch.setattr(value_counts, "MAX_STREAM_VALUES", 80)

    def is_read(data: bytes, content_type: str, piece: int) -> bool:
        counted = AnswerValues(content_type)
        return all(counted.add(data[at : at + piece]) for at in range(0, len(data), piece))

    document = b'{"a":[' + b"1," * 7 + b"1]}"
    for piece in (1, 2, 3, 1000):
        assert is_read(document, "application/json", piece)
        assert not is_read(document * 2, "application/json", piece)
        for end in (b"\n", b"\r", b"\r\n"):
            event = b"data: " + document + end + end
            assert is_read(event * 5, "text/event-stream", piece)
            assert not is_read(event * 9, "text/event-stream", piece)
            assert not is_read(event.replace(b"1]}", b"1,1,1]}"), "text/event-stream", piece)
            # One event of two lines.
            assert not is_read(b"data: " + document + end + event, "text/event-stream", piece)
    assert not is_read(b"\n" * 81, "text/event-stream", 50)


def test_a_document_of_too_many_values_is_not_parsed() -> None:
    bomb = b'{"a":[' + b"[]," * (MAX_VALUES // 2) + b"[]]}"
    assert not list(documents(bomb))
    found = documents(b'data: {"a":1}\n\ndata: ' + bomb + b'\n\ndata: {"b":2}\n\n')
    assert list(found) == [{"a": 1}, {"b": 2}]


def test_keys_of_other_objects_may_differ_in_case() -> None:
    body = b'{"tools": [{"input_schema": {"properties": {"id": {}, "ID": {}, "Stream": {}}}}], "Custom": 1}'
    assert read_request(body, "")[0] == body


@pytest.mark.parametrize(
    "name",
    [
        *("authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie", "host", "content-length", "expect"),
        *("x-portkey-custom-host", "helicone-target-url", "x-forwarded-host", "x-forwarded-for", "forwarded"),
        *("openai-organization", "openai-project", "anthropic-workspace-id", "x-goog-user-project"),
        *(
            "x-http-method-override",
            "x-original-url",
            "accept-encoding",
            "transfer-encoding",
            "x-anything",
            "x-stainless",
        ),
    ],
)
def test_a_header_that_is_not_listed_does_not_pass(name: str) -> None:
    assert not is_allowed_header(name)


def test_the_headers_of_known_agents_pass() -> None:
    names = ("content-type", "user-agent", "anthropic-version", "x-stainless-os", "x-codex-window-id", "session-id")
    assert all(map(is_allowed_header, names))
