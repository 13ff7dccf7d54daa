"""What is recorded of a call: both sides of it, whose it was, what it used; and nothing of any key."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.gateway_fixture import APIS, KEY, KEY_NAME, GatewayFixture, ask
from support.raw_upstream import DONE, JSON_HEAD, Visit, answer, raw_upstream

from benchflow import secrets
from benchflow.contracts.gateway import Api, RequestLine, ResponseLine
from benchflow.testing.scripted_model import Reply, ScriptedModel, TokenCounts
from benchflow.testing.waiting import until

HI = Reply(text="Hi", usage=TokenCounts(input=900, output=12, cached=800), times="always")


def base_url(model: ScriptedModel, api: Api) -> str:
    return model.openai_base_url if api.startswith("openai") else model.base_url


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("api", APIS)
async def test_a_call_is_two_lines_that_say_all_of_it(gateway: GatewayFixture, api: Api, stream: bool) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent(api, base_url(model, api))
        await agent.call(stream=stream)
    [(request, response)] = await agent.answered()
    asked, answered = RequestLine.model_validate(request), ResponseLine.model_validate(response)
    assert (asked.seq, asked.api, asked.method, asked.model, asked.stream) == (0, api, "POST", "scripted", stream)
    assert (asked.side, asked.source, asked.sampling_applied) == (False, "live", None)
    ends = {"openai-chat": "stop", "openai-responses": "completed", "anthropic-messages": "end_turn", "gemini": "STOP"}
    assert (answered.status, answered.finish_reason, answered.error) == (200, ends[api], None)
    assert answered.usage is not None
    assert (answered.usage.input_tokens, answered.usage.output_tokens, answered.usage.cached_tokens) == (900, 12, 800)
    assert answered.headers["request-id"].startswith("req_")
    timing = answered.timing
    assert timing.first_byte_ms is not None and timing.upstream_first_byte_ms is not None
    assert 0 < timing.upstream_first_byte_ms <= timing.first_byte_ms <= timing.total_ms


async def test_blanks_that_keep_a_connection_open_are_silence(gateway: GatewayFixture) -> None:
    async def drip(visit: Visit) -> None:
        await visit.send(JSON_HEAD + b"Connection: close\r\n\r\n")
        while not visit.gone.is_set():
            await visit.send(b" \n")
            await asyncio.sleep(0.05)

    async with raw_upstream(drip) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, stall_sec=1)
        async with agent.open_call(stream=False) as response:
            assert await response.content.readexactly(2) == b" \n"

            async def silence() -> bool:
                return max((await gateway.client.status(agent.id)).silent.values()) > 0.5

            await until(silence)
        [(_, line)] = await agent.answered()
    assert line["timing"]["upstream_first_byte_ms"] is None


@pytest.mark.parametrize("content_type", [b"Text/Event-Stream", b"text/plain", b"application/json", b""])
async def test_a_stream_is_read_whatever_its_content_type_says(gateway: GatewayFixture, content_type: bytes) -> None:
    events = [{"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}, {"usage": TOLD}]
    body = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)

    async def say(visit: Visit) -> None:
        named = b"Content-Type: " + content_type + b"\r\n" if content_type else b""
        await visit.send(b"HTTP/1.1 200 OK\r\n" + named + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    async with raw_upstream(say) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        await agent.call()
    [(_, response)] = await agent.answered()
    assert (response["finish_reason"], response["error"]) == ("stop", None)
    assert (response["usage"]["input_tokens"], response["usage"]["is_estimated"]) == (11, False)


TOLD = {"prompt_tokens": 11, "completion_tokens": 7}


async def test_a_call_belongs_to_whoever_acts_when_it_comes(gateway: GatewayFixture) -> None:
    with ScriptedModel([Reply(text="Hi", hold="slow"), HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        await gateway.client.attribute(agent.id, node="n1", role="agent", turn=1)
        first = asyncio.create_task(agent.call())
        await model.arrived(1)
        await gateway.client.attribute(agent.id, node="n2", role="critic", turn=2)
        model.release("slow")
        await first
        await agent.call()
    told = [(request["node"], request["role"], request["turn"]) for request, _ in await agent.answered(2)]
    assert told == [("n1", "agent", 1), ("n2", "critic", 2)]


async def test_calls_are_numbered_in_their_order_and_joined_by_id(gateway: GatewayFixture) -> None:
    with ScriptedModel([Reply(text="slow", hold="slow"), HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        slow = asyncio.create_task(agent.call("slow"))
        await model.arrived(1)
        await agent.call("fast")
        model.release("slow")
        await slow
    calls = await agent.answered(2)
    assert [(request["seq"], request["request"]["messages"][0]["content"]) for request, _ in calls] == [
        (0, "slow"),
        (1, "fast"),
    ]
    assert [line["type"] for line in agent.lines()] == ["request", "request", "response", "response"]
    assert "slow" in calls[0][1]["response"] and "Hi" in calls[1][1]["response"]


@pytest.mark.parametrize(
    ("agent_name", "api", "more", "reason"),
    [
        ("policy", "openai-chat", {"tools": []}, "no_tools"),
        (
            "opencode",
            "openai-chat",
            {"messages": [{"role": "system", "content": "You are a title generator."}]},
            "title",
        ),
        ("acpx/claude-agent-acp", "anthropic-messages", {"system": "You are naming a coding session: "}, "title"),
        (
            "claude-agent-acp",
            "anthropic-messages",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "[SUGGESTION MODE: what next?"}]}]},
            "suggestion",
        ),
        (
            "codex-acp",
            "openai-responses",
            {"input": "Your task is to generate a very short title for a conversation"},
            "title",
        ),
        ("gemini", "anthropic-messages", {"system": "You are naming a coding session: "}, None),
        ("codex-acp", "openai-responses", {"tools": [], "input": [{"type": "additional_tools", "tools": [{}]}]}, None),
    ],
)
async def test_side_calls_are_marked(
    gateway: GatewayFixture, agent_name: str, api: Api, more: dict[str, object], reason: str | None
) -> None:
    async def say(visit: Visit) -> None:
        await visit.send(answer(DONE))

    async with raw_upstream(say) as upstream:
        agent = await gateway.agent(api, upstream.base_url, agent=agent_name)
        await agent.call(stream=False, **more)
    [(request, _)] = await agent.answered()
    assert (request["side"], request["side_reason"]) == (reason is not None, reason)
    usage = (await gateway.client.status(agent.id)).usage
    assert (usage.calls, usage.side_calls) == (1, int(reason is not None))


async def test_logprobs_and_token_ids_are_in_the_record_where_the_endpoint_tells_them(gateway: GatewayFixture) -> None:
    events = [
        {"choices": [{"token_ids": [5, 6], "logprobs": {"content": [{"token": "He", "logprob": -0.1}]}}]},
        {"choices": [{"token_ids": [7], "logprobs": {"content": [{"token": "y", "logprob": -0.2}]}}]},
        {"choices": [{"token_ids": None, "logprobs": None, "finish_reason": "stop"}]},
    ]
    body = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"

    async def say(visit: Visit) -> None:
        head = JSON_HEAD.replace(b"application/json", b"text/event-stream")
        await visit.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    async with raw_upstream(say) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        await agent.call()
    [(_, response)] = await agent.answered()
    assert response["token_ids"] == [5, 6, 7]
    assert [entry["logprob"] for entry in response["logprobs"]] == [-0.1, -0.2]
    assert response["usage"]["is_estimated"] is True
    assert (await gateway.client.status(agent.id)).usage.unmetered == 1


async def test_an_answer_that_is_no_text_is_recorded_all_the_same(gateway: GatewayFixture) -> None:
    async def say(visit: Visit) -> None:
        await visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\xff\xfe\x00")

    async with raw_upstream(say) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        assert (await agent.call()).body == b"\xff\xfe\x00"
    [(_, response)] = await agent.answered()
    assert ResponseLine.model_validate(response).response_base64 == "//4A"


@pytest.mark.parametrize(
    "body",
    [
        b'{\n  "model": "x",\r\n  "messages": []\n}',
        b'{"messages": [{"role": "user", "content": "\\ud83d"}]}',
    ],
    ids=["on several lines", "half a character"],
)
async def test_every_line_of_the_record_is_json_whatever_the_body(gateway: GatewayFixture, body: bytes) -> None:
    async def say(visit: Visit) -> None:
        assert visit.body == body
        await visit.send(answer(DONE))

    async with raw_upstream(say) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        assert (await agent.post("/chat/completions", body)).body == DONE
    [(request, _)] = await agent.answered()
    assert request["request"] == json.loads(body)


async def test_neither_token_nor_key_is_written_anywhere_whoever_says_it(gateway: GatewayFixture) -> None:
    async def tell_it_all(visit: Visit) -> None:
        key = next(line for line in visit.head.split(b"\r\n") if line.lower().startswith(b"authorization"))
        status = "401 Unauthorized" if b"wrong" in visit.body else "200 OK"
        await visit.send(answer(b'{"error": "your key is %s"}' % key, status))

    async with raw_upstream(tell_it_all) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        token = agent.registration.token
        await agent.call(f"env says {token} and {KEY}")
        refused = await agent.call("wrong")
        body = json.dumps({"messages": [], "user": token}).encode()
        other = await agent.post(f"/chat/completions?key={token}&a=1", body)
    assert other.status == 200
    # A key that an endpoint repeats in an error does not reach the sandbox.
    covered = f"[{KEY_NAME}]".ljust(len(KEY), "*")
    assert refused.json == {"error": f"your key is Authorization: Bearer {covered}"}
    calls = await agent.answered(3)
    assert calls[0][0]["request"]["messages"][0]["content"] == f"env says [GATEWAY_TOKEN] and [{KEY_NAME}]"
    await gateway.kill()
    allowed = {gateway.paths.secrets: KEY.encode(), gateway.paths.gateway.rollouts: token.encode()}
    places = [*gateway.directory.rglob("*"), *gateway.paths.root.rglob("*")]
    for file in (path for path in places if path.is_file()):
        data = file.read_bytes()
        for secret in (KEY.encode(), token.encode()):
            assert secret not in data or allowed.get(file.parent) == secret, file


async def test_a_key_that_is_a_number_is_taken_out_of_numbers_too(gateway: GatewayFixture) -> None:
    secrets.store_secrets(gateway.paths, "job/other", set(), {KEY_NAME: "1234567890"})
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        await gateway.client.register(agent.registration.model_copy(update={"job_id": "job/other"}))
        await agent.call("it is 1234567890", seed=1234567890)
    request = (await agent.answered())[0][0]["request"]
    assert (request["messages"][0]["content"], request["seed"]) == (f"it is [{KEY_NAME}]", f"[{KEY_NAME}]")


async def test_what_it_knows_of_rollouts_is_nobody_elses(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        await gateway.agent("openai-chat", model.openai_base_url)
    files = list(gateway.paths.gateway.rollouts.iterdir())
    assert sorted(file.suffix for file in files) == [".blocked", ".json"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert gateway.paths.gateway.control.stat().st_mode & 0o777 == 0o600
    assert gateway.paths.gateway.root.stat().st_mode & 0o077 == 0
    assert [path.name for path in gateway.paths.gateway.public.iterdir()] == ["gateway.sock"]


async def test_a_call_that_cannot_be_recorded_is_not_made(gateway: GatewayFixture) -> None:
    (gateway.directory / "jobs").write_text("no directory")
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        got = await agent.call()
        assert got.status == 503
        assert "cannot be recorded" in got.json["error"]["message"]
        assert not model.calls
        assert str(gateway.directory / "jobs") in str((await gateway.client.status(agent.id)).failure)
        (gateway.directory / "jobs").unlink()
        assert (await agent.call()).status == 200


async def test_prefixes_of_a_conversation_are_equal_in_the_record(gateway: GatewayFixture) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        path, body = ask("openai-chat")
        for text in ("Hi", "And then?"):
            await agent.post(path, json.dumps(body).encode())
            body["messages"] += [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": text}]
    (first, _), (second, _) = await agent.answered(2)
    earlier, later = first["request"]["messages"], second["request"]["messages"]
    assert later[: len(earlier)] == earlier


async def test_a_record_is_read_by_a_line_that_is_whole(gateway: GatewayFixture, tmp_path: Path) -> None:
    with ScriptedModel([HI]) as model:
        agent = await gateway.agent("openai-chat", model.openai_base_url)
        await asyncio.gather(*(agent.call(f"call {number}") for number in range(20)))
    await until(lambda: len(agent.lines()) == 40)
    assert sorted(request["seq"] for request, _ in agent.calls()) == list(range(20))
