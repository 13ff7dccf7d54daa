"""An agent that attacks: other requests, other spellings, more than its budget, the key in an answer, a full disk."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import zlib
from urllib.parse import quote

import pytest
from support.gateway_fixture import APIS, KEY, KEY_NAME, Agent, GatewayFixture, ask, key_header
from support.raw_upstream import DONE, SSE_HEAD, RawUpstream, Visit, answer, chunk, event, raw_upstream

from benchflow import secrets
from benchflow.contracts.gateway import Api
from benchflow.gateway.budget import MAX_TOKEN_COUNTS
from benchflow.gateway.refusals import MAX_NAMES, MAX_PATH_LENGTH

ODD_KEY = 'sk-"odd"/the+real=key%0123456789\\'
"""A key that is written otherwise in JSON, HTML and a URL."""

ONCE = {"max_retries": 0}
COVERED = f"[{KEY_NAME}]".ljust(len(KEY), "*")


async def send_raw(
    gateway: GatewayFixture, agent: Agent, line: str, body: bytes = b"{}", head: str = "", api: Api | None = None
) -> bytes:
    """Send a request whose first line is exactly this. Returns the whole answer."""
    [(name, value)] = key_header(api or agent.registration.api, agent.registration.token).items()
    reader, writer = await asyncio.open_unix_connection(gateway.socket)
    length = "" if "transfer-encoding" in head.lower() else f"Content-Length: {len(body)}\r\n"
    given = f"{line}\r\nHost: gateway\r\nConnection: close\r\n{name}: {value}\r\n{length}{head}\r\n"
    writer.write(given.encode("latin-1") + body)
    got = await asyncio.wait_for(reader.read(), 300)
    writer.close()
    return got


async def answer_done(visit: Visit) -> None:
    await visit.send(answer(DONE))


async def exhausted(gateway: GatewayFixture, upstream: RawUpstream) -> Agent:
    """Return an agent that has made the one call that it may."""
    agent = await gateway.agent("openai-chat", upstream.base_url, limits={"calls": 1})
    assert (await agent.call(stream=False)).status == 200
    assert len(upstream.visits) == 1
    return agent


@pytest.mark.parametrize(
    "line",
    [
        "POST /v1/embeddings HTTP/1.1",
        "POST /v1/completions HTTP/1.1",
        "POST /v1/responses HTTP/1.1",
        "POST /v1/chat/completions/ HTTP/1.1",
        "POST /v1/chat/completions// HTTP/1.1",
        "POST //v1//chat/completions HTTP/1.1",
        "POST /v1/chat/completion%73 HTTP/1.1",
        "POST /v1%2fchat%2Fcompletions HTTP/1.1",
        "POST /v1/chat/completion%2573 HTTP/1.1",
        "POST /v1/chat/./completions?a=1 HTTP/1.1",
        "POST /v1/x/../chat/completions HTTP/1.1",
        "POST /V1/Chat/Completions HTTP/1.1",
        "POST /v1/chat/completions;x=1 HTTP/1.1",
        "POST /v1/chat/completions%00 HTTP/1.1",
        "POST /v1/chat\\completions HTTP/1.1",
        "PUT /v1/chat/completions HTTP/1.1",
        "GET /v1/chat/completions HTTP/1.1",
        "PATCH /v1/chat/completions HTTP/1.1",
        "DELETE /v1/files/1 HTTP/1.1",
        "POST /v1/../../admin HTTP/1.1",
        "POST /v1/%2e%2e/%2e%2e/admin HTTP/1.1",
        "POST /v1/chat/completions/../../embeddings HTTP/1.1",
        "POST http://elsewhere.example/v1/embeddings HTTP/1.1",
        "POST http://elsewhere.example/v1/chat/completions HTTP/1.1",
        "CONNECT elsewhere.example:443 HTTP/1.1",
        "TRACE /v1/chat/completions HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "HEAD /v1/models HTTP/1.1",
        "GET /v1/models HTTP/1.1",
        "BREW /v1/chat/completions HTTP/1.1",
    ],
)
async def test_nothing_reaches_the_endpoint_when_the_budget_is_used_up(gateway: GatewayFixture, line: str) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await exhausted(gateway, upstream)
        got = await send_raw(gateway, agent, line)
    assert int(got.split(b" ", 2)[1]) in (400, 402, 404), got
    assert KEY.encode() not in got
    assert len(upstream.visits) == 1


async def test_no_websocket_is_opened(gateway: GatewayFixture) -> None:
    head = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eHg=\r\n"
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        got = await send_raw(gateway, agent, "GET /v1/chat/completions HTTP/1.1", b"", head)
        assert got.startswith(b"HTTP/1.1 404 ")
        assert not upstream.visits
        # With a method that is passed on, it is a call like any other.
        got = await send_raw(gateway, agent, "POST /v1/chat/completions HTTP/1.1", b"{}", head)
    assert got.startswith(b"HTTP/1.1 200 ")
    assert b"upgrade" not in upstream.visits[0].head.lower()
    assert (await gateway.client.status(agent.id)).usage.calls == 1


@pytest.mark.parametrize(
    ("api", "spelled", "path"),
    [
        ("openai-chat", "//v1/./x/../chat/completion%73/?user=a&key=b", "/v1/chat/completions"),
        ("openai-responses", "/v1/responses/", "/v1/responses"),
        ("anthropic-messages", "/v1/%6dessages?beta=true&x=1", "/v1/v1/messages?beta=true"),
        ("anthropic-messages", "/v1/messages?beta=false&beta=true%26x=1", "/v1/v1/messages"),
        (
            "gemini",
            "/v1beta//models/m-1.5%3AgenerateContent?key=x&access_token=y",
            "/v1/v1beta/models/m-1.5:generateContent",
        ),
        (
            "gemini",
            "/v1beta/models/m:streamGenerateContent?%24httpMethod=GET&alt=sse",
            "/v1/v1beta/models/m:streamGenerateContent?alt=sse",
        ),
    ],
)
async def test_the_endpoint_gets_the_one_form_of_a_path(
    gateway: GatewayFixture, api: Api, spelled: str, path: str
) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent(api, upstream.base_url)
        await send_raw(gateway, agent, f"POST {spelled} HTTP/1.1")
    [visit] = upstream.visits
    assert visit.head.split(b"\r\n")[0].decode() == f"POST {path} HTTP/1.1"
    assert (await gateway.client.status(agent.id)).usage.calls == 1


async def test_no_header_makes_another_request_of_a_call(gateway: GatewayFixture) -> None:
    path, body = ask("openai-chat", stream=False)
    names = (
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
        "x-original-url",
        "x-rewrite-url",
        "cookie",
        "x-portkey-custom-host",
        "helicone-target-url",
        "x-forwarded-host",
        "openai-organization",
        "openai-project",
    )
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        await agent.post(path, json.dumps(body).encode(), **dict.fromkeys(names, "DELETE"))
    assert b"DELETE" not in upstream.visits[0].head


@pytest.mark.parametrize("api", APIS)
async def test_a_refused_request_is_told_in_the_dialects_shape_and_named(gateway: GatewayFixture, api: Api) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent(api, upstream.base_url)
        got = [await agent.post("/v1/embeddings/", b"{}") for _ in range(3)]
    assert not upstream.visits
    assert {(one.status, one.headers["x-should-retry"]) for one in got} == {(404, "false")}
    inner = got[0].json["error"]
    told = {"anthropic-messages": ("type", "not_found_error"), "gemini": ("status", "NOT_FOUND")}
    name, value = told.get(api, ("type", "invalid_request_error"))
    assert inner[name] == value
    [refused] = (await gateway.client.status(agent.id)).refused
    assert (refused.method, refused.count) == ("POST", 3)
    assert refused.path is not None and refused.path.endswith("/v1/embeddings/")
    assert [(line["type"], line["path"], line["count"]) for line in agent.lines()] == [
        ("refused", refused.path, 1),
        ("refused", refused.path, 2),
    ]


async def test_names_of_refused_requests_are_bounded(gateway: GatewayFixture) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        secret = agent.registration.token
        got = await send_raw(gateway, agent, f'POST /{secret}/[red]%0a"<b>{"x" * 1000} HTTP/1.1')
        assert got.startswith(b"HTTP/1.1 404 ")
        for number in range(MAX_NAMES + 12):
            await agent.post(f"/{number}", b"")
    assert not upstream.visits
    refused = (await gateway.client.status(agent.id)).refused
    assert len(refused) == MAX_NAMES + 1
    path = refused[0].path or ""
    assert len(path) == MAX_PATH_LENGTH
    assert secret not in path and not set('<>[]"\n') & set(path)
    assert (refused[-1].method, refused[-1].path, refused[-1].count) == (None, None, 13)
    # Their number is written down whenever it has doubled.
    assert len(agent.lines()) == MAX_NAMES + 4


async def test_what_was_counted_outlives_the_gateway(own_gateway: GatewayFixture) -> None:
    gateway = own_gateway
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("anthropic-messages", upstream.base_url, limits={"calls": 1})
        for _ in range(4):
            assert (await agent.post("/v1/messages/count_tokens", b"{}")).status == 200
            assert (await agent.post("/v1/files", b"{}")).status == 404
        assert (await agent.call(stream=False)).status == 200
        assert (await agent.post("/v1/messages/count_tokens", b"{}")).status == 402
        before = await gateway.client.status(agent.id)
        await gateway.kill()
        await gateway.start()
        after = await gateway.client.status(agent.id)
    assert (after.usage.token_counts, after.usage.calls, after.budget_exhausted) == (4, 1, None)
    assert before.usage == after.usage
    assert [(one.path, one.count) for one in after.refused] == [("/v1/files", 4)]


async def test_the_body_of_a_refused_request_is_not_waited_for(gateway: GatewayFixture) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        reader, writer = await asyncio.open_unix_connection(gateway.socket)
        head = f"Authorization: Bearer {agent.registration.token}\r\nContent-Length: 100000000\r\n\r\n"
        writer.write(f"POST /v1/files HTTP/1.1\r\nHost: gateway\r\n{head}".encode())
        assert (await asyncio.wait_for(reader.readline(), 300)).startswith(b"HTTP/1.1 404 ")
        writer.close()
    assert not upstream.visits


@pytest.mark.parametrize("head", ["Expect: 100-continue\r\n", "Transfer-Encoding: chunked\r\n"])
async def test_an_upload_in_another_way_is_an_ordinary_call(gateway: GatewayFixture, head: str) -> None:
    body = json.dumps(ask("openai-chat", stream=False)[1]).encode()
    sent = chunk(body) + chunk(b"") if "chunked" in head else body
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        got = await send_raw(gateway, agent, "POST /v1/chat/completions HTTP/1.1", sent, head)
    assert b"HTTP/1.1 200 OK" in got
    [visit] = upstream.visits
    assert visit.body == body
    assert b"expect" not in visit.head.lower() and b"chunked" not in visit.head.lower()


# --- token counts


async def test_a_token_count_needs_a_budget_and_ends_no_rollout(gateway: GatewayFixture) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("anthropic-messages", upstream.base_url, limits={"calls": 1})
        count = "/v1/messages/count_tokens?beta=true"
        assert (await agent.post(count, b"{}")).status == 200
        assert (await agent.call(stream=False)).status == 200
        got = await agent.post(count, b"{}")
    assert (got.status, got.json["error"]["type"]) == (402, "billing_error")
    assert len(upstream.visits) == 2
    status = await gateway.client.status(agent.id)
    assert (status.budget_exhausted, status.usage.token_counts) == (None, 1)


async def test_token_counts_are_bounded(gateway: GatewayFixture) -> None:
    count = "/v1beta/models/m:countTokens"
    async with raw_upstream(answer_done) as upstream:
        first = await gateway.agent("gemini", upstream.base_url, id="first")
        await first.post(count, b"{}")
        asked, answered = [json.dumps(line) + "\n" for line in next(iter(await first.answered()))]
        # The record of a rollout that has counted often, as its gateway finds it.
        lines = [asked + answered for _ in range(MAX_TOKEN_COUNTS - 1)]
        first.record.with_name("often.jsonl").write_text("".join(lines))
        agent = await gateway.agent("gemini", upstream.base_url, record=str(first.record.with_name("often.jsonl")))
        assert [(await agent.post(count, b"{}")).status for _ in range(3)] == [200, 402, 402]
        assert (await agent.call(stream=False)).status == 200
    assert len(upstream.visits) == 3
    status = await gateway.client.status(agent.id)
    assert (status.budget_exhausted, status.usage.calls, status.usage.token_counts) == (None, 1, MAX_TOKEN_COUNTS)


async def test_token_counts_wait_while_calls_are_held(gateway: GatewayFixture) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("gemini", upstream.base_url)
        await gateway.client.hold(agent.id)
        waiting = asyncio.create_task(agent.post("/v1beta/models/m:countTokens", b"{}"))
        while not (await gateway.client.status(agent.id)).waiting:
            await asyncio.sleep(0.01)
        assert not upstream.visits
        await gateway.client.release(agent.id)
        assert (await waiting).status == 200


# --- the record


async def test_a_full_record_ends_calls_and_grows_no_more(gateway: GatewayFixture) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, record_limit_bytes=20_000)
        assert (await agent.call("x" * 20_000, stream=False)).status == 200
        await agent.answered()
        size = agent.record.stat().st_size
        got = [await agent.call("x" * 20_000, stream=False) for _ in range(3)]
    assert {one.status for one in got} == {402}
    assert len(upstream.visits) == 1
    assert agent.record.stat().st_size == size
    assert "full" in str((await gateway.client.status(agent.id)).failure)


async def test_what_a_used_up_limit_forbids_is_recorded_without_its_body(gateway: GatewayFixture) -> None:
    async with raw_upstream(answer_done) as upstream:
        agent = await exhausted(gateway, upstream)
        await agent.call("x" * 100_000, stream=False)
    _, (request, response) = await agent.answered(2)
    assert (request["request"], response["error"]["kind"]) == (None, "budget_exhausted")
    assert agent.record.stat().st_size < 10_000


# --- the key in an answer


async def test_a_key_that_an_endpoint_repeats_is_covered_everywhere(gateway: GatewayFixture) -> None:
    text = f'{{"choices": [], "echo": "Bearer {KEY}"}}'.encode()

    async def repeat(visit: Visit) -> None:
        head = (
            f"HTTP/1.1 200 {KEY}\r\nX-Echo: Bearer {KEY}\r\nX-{KEY}: 1\r\nX-Request-Id: {KEY}\r\nSet-Cookie: {KEY}\r\n"
        )
        basic = base64.b64encode(f"user:{KEY}".encode()).decode()
        await visit.send(f"{head}X-Basic: {basic}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)

    async with raw_upstream(repeat) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        got = await send_raw(gateway, agent, "POST /v1/chat/completions HTTP/1.1")
    assert KEY.encode() not in got and base64.b64encode(KEY.encode())[:-4] not in got
    assert base64.b64encode(f"user:{KEY}".encode())[8:-4] not in got
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"set-cookie" not in got.lower()
    # As long as it was: the head was sent before.
    assert got.endswith(text.replace(KEY.encode(), COVERED.encode()))
    [(_, response)] = await agent.answered()
    assert KEY not in json.dumps(response)


@pytest.mark.parametrize("split", [1, 5, len(KEY) - 1])
async def test_a_key_in_two_pieces_of_a_stream_is_covered(gateway: GatewayFixture, split: int) -> None:
    async def in_pieces(visit: Visit) -> None:
        await visit.send(SSE_HEAD + chunk(b"data: " + KEY[:split].encode()))
        # So that the gateway reads it by itself.
        await asyncio.sleep(0.05)
        await visit.send(chunk(KEY[split:].encode() + b"\n\n") + chunk(b""))

    async with raw_upstream(in_pieces) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        got = await agent.call()
    assert got.body == f"data: {COVERED}\n\n".encode()
    [(_, response)] = await agent.answered()
    assert response["response"] == got.body.decode()


async def test_an_event_is_not_held_back_for_the_next_one(gateway: GatewayFixture) -> None:
    seen = asyncio.Event()

    async def one_by_one(visit: Visit) -> None:
        await visit.send(SSE_HEAD + event(f"one {KEY} s"))
        await asyncio.wait_for(seen.wait(), 300)
        await visit.send(chunk(b""))

    async with raw_upstream(one_by_one) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        async with agent.open_call() as response:
            assert (await asyncio.wait_for(response.content.readuntil(b"\n\n"), 300)).count(COVERED.encode()) == 1
            seen.set()


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "deflate without a head", "gzip of two members"])
async def test_a_packed_answer_does_not_hide_the_key(gateway: GatewayFixture, encoding: str, status: str) -> None:
    plain = f'{{"echo": "{KEY}"}}'.encode()
    if encoding == "deflate":
        packed = zlib.compress(plain)
    elif encoding == "deflate without a head":
        packed = zlib.compress(plain, wbits=-zlib.MAX_WBITS)
    elif encoding == "gzip":
        packed = gzip.compress(plain)
    else:
        packed = gzip.compress(plain[:12]) + gzip.compress(plain[12:])

    async def pack(visit: Visit) -> None:
        await visit.send(answer(packed, status, f"Content-Encoding: {encoding.split()[0]}\r\n"))

    async with raw_upstream(pack) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        got = await agent.call(stream=False)
    assert got.json == {"echo": COVERED}
    assert "content-encoding" not in got.headers


ODD_FORMS = {
    "in JSON": json.dumps({"echo": ODD_KEY}),
    "in JSON of PHP": json.dumps({"echo": ODD_KEY}).replace("/", "\\/"),
    "in JSON in JSON": json.dumps({"echo": json.dumps({"echo": ODD_KEY})}),
    "in a URL": f"https://x/?key={quote(ODD_KEY, safe='')}",
    "in base64": base64.b64encode(f"Bearer {ODD_KEY}".encode()).decode(),
    "in base64 of a URL": base64.urlsafe_b64encode(f"user:{ODD_KEY}".encode()).decode(),
}


@pytest.mark.parametrize("form", ODD_FORMS)
async def test_a_key_is_covered_however_it_is_written(gateway: GatewayFixture, form: str) -> None:
    async def write(visit: Visit) -> None:
        await visit.send(answer(ODD_FORMS[form].encode()))

    secrets.store_secrets(gateway.paths, "job/odd", set(), {KEY_NAME: ODD_KEY})
    async with raw_upstream(write) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        await gateway.client.register(agent.registration.model_copy(update={"job_id": "job/odd"}))
        got = await agent.call(stream=False)
    assert len(got.body) == len(ODD_FORMS[form])
    assert f"[{KEY_NAME}]***".encode() in got.body
    assert b"0123456789" not in got.body and b"MTIzNDU2" not in got.body and b"AxMjM0NTY" not in got.body


UNUSABLE = {
    "a redirect": "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/?key={key}\r\nContent-Length: 0\r\n\r\n",
    "not modified": "HTTP/1.1 304 Not Modified\r\nX-Key: {key}\r\n\r\n",
    "another protocol": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n{key}",
    "an unknown packing": "HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 26\r\n\r\n{key}",
    "two packings": "HTTP/1.1 200 OK\r\nContent-Encoding: gzip, gzip\r\nContent-Length: 26\r\n\r\n{key}",
    "a packing that is told twice": "HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Encoding: gzip\r\n"
    "Content-Length: 26\r\n\r\n{key}",
    "a packed transfer": "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1a\r\n{key}\r\n0\r\n\r\n",
    "an answer that is not packed as it says": "HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n"
    "Content-Length: 27\r\n\r\n\x07{key}",
    "what is not packed as it says": "HTTP/1.1 400 Bad\r\nContent-Encoding: gzip\r\nContent-Length: 26\r\n\r\n{key}",
}


@pytest.mark.parametrize("what", UNUSABLE)
async def test_an_answer_that_cannot_be_passed_on_is_an_error_of_the_gateways_own(
    gateway: GatewayFixture, what: str
) -> None:
    async def send(visit: Visit) -> None:
        await visit.send(UNUSABLE[what].format(key=KEY).encode())

    async with raw_upstream(send) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url, retries=ONCE)
        got = await send_raw(gateway, agent, "POST /v1/chat/completions HTTP/1.1")
    assert got.startswith(b"HTTP/1.1 502 ")
    assert KEY.encode() not in got and b"ocation" not in got
    assert len(upstream.visits) == 1
    assert (await agent.answered())[0][1]["error"]["kind"] in ("unusable", "unreachable")


async def test_a_header_with_control_characters_is_not_passed_on(gateway: GatewayFixture) -> None:
    async def steer(visit: Visit) -> None:
        head = b"X-Good: 1\r\nX-Steer: \x1b[2J\x07\x01\r\nContent-Type: application/json\r\n"
        await visit.send(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s" % (head, len(DONE), DONE))

    async with raw_upstream(steer) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        got = await agent.call(stream=False)
    assert (got.status, got.body) == (200, DONE)
    assert ("x-good" in got.headers, "x-steer" in got.headers) == (True, False)


async def test_early_hints_and_trailers_are_not_passed_on(gateway: GatewayFixture) -> None:
    async def hint(visit: Visit) -> None:
        await visit.send(f"HTTP/1.1 103 Early Hints\r\nLink: <{KEY}>\r\n\r\n".encode() + SSE_HEAD)
        await visit.send(event("one") + f"0\r\nX-Trailer: {KEY}\r\n\r\n".encode())

    async with raw_upstream(hint) as upstream:
        agent = await gateway.agent("openai-chat", upstream.base_url)
        got = await send_raw(gateway, agent, "POST /v1/chat/completions HTTP/1.1")
    assert got.startswith(b"HTTP/1.1 200 ") and got.endswith(b"0\r\n\r\n")
    assert KEY.encode() not in got


async def test_an_endpoints_own_login_is_not_told(gateway: GatewayFixture) -> None:
    agent = await gateway.agent("openai-chat", f"http://user:{KEY}@127.0.0.1:9/v1", credentials=(), retries=ONCE)
    got = await agent.call()
    assert got.status == 502
    assert KEY.encode() not in got.body
