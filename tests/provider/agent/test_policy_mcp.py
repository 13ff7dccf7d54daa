"""The agent `policy` with MCP servers: what they offer, how their tools are called, and what may go wrong with them."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.mcp_server import TEXT, McpServer, Speak, one_of_a_list, stream, tool
from support.policy_process import PATIENCE, Message, RefusedError, Start, running, told, use

from benchflow.planes.agent.toolbox import Toolbox
from benchflow.testing.scripted_model import ScriptedModel
from benchflow.testing.waiting import until

SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "string", "pattern": "^m-"}, "at": {"$ref": "#/$defs/when"}},
    "required": ["id"],
    "$defs": {"when": {"type": "string", "format": "date"}},
}
ARCHIVE = {"name": "archive_mail", "description": "Archive it.", "inputSchema": SCHEMA, "outputSchema": {}}


@pytest.fixture
def start(runtime: Toolbox, tmp_path: Path) -> Start:
    """Return a function that runs the agent without a session: `async with start(model) as agent`."""
    return functools.partial(running, runtime.root / "bin" / "node", tmp_path, session=False)


def calling(name: str, **arguments: Any) -> Message:
    return {"name": name, "arguments": arguments}


def offered(model: ScriptedModel) -> dict[str, Message]:
    """The functions of a call that are not the agent's own, by name."""
    functions = [row["function"] for row in model.main_calls[0].body["tools"]]
    assert [function["name"] for function in functions[:3]] == ["read", "write", "run"]
    return {function["name"]: function for function in functions[3:]}


# --- what is offered and called --------------------------------------------------------------------------


async def test_a_servers_tools_are_offered_and_called(start: Start) -> None:
    with McpServer([ARCHIVE], [tool("list_mail")], session="s-1") as server:
        script = use(calling("mail__archive_mail", id="m-1"))
        async with ScriptedModel(script) as model, start(model) as agent:
            await agent.new(server.row("mail", Authorization="Bearer 7", Accept="text/html"))
            assert (await agent.prompt())["stopReason"] == "end_turn"
            assert list(offered(model)) == ["mail__archive_mail", "mail__list_mail"]
            assert offered(model)["mail__archive_mail"]["parameters"] == SCHEMA
            assert offered(model)["mail__archive_mail"]["description"] == "Archive it."
            assert told(model) == ["done"]
        called, update = [one for one in agent.updates if one["sessionUpdate"].startswith("tool_call")]
        assert (called["title"], called["kind"]) == ("mail: archive_mail", "other")
        assert called["rawInput"] == {"id": "m-1"}
        assert update["content"] == [{"type": "content", "content": {"type": "text", "text": "done"}}]
        assert (update["status"], update["rawOutput"]) == ("completed", {"output": "done"})
    methods = [message["method"] for message in server.sent]
    assert methods == ["initialize", "notifications/initialized", "tools/list", "tools/list", "tools/call"]
    first, *others = [message["headers"] for message in server.sent]
    assert "mcp-session-id" not in first and "mcp-protocol-version" not in first
    assert {(one["mcp-session-id"], one["mcp-protocol-version"]) for one in others} == {("s-1", "2025-06-18")}
    for headers in (first, *others):
        assert headers["authorization"] == "Bearer 7"
        assert headers["accept"] == "application/json, text/event-stream"
    assert server.sent[-1]["params"] == {"name": "archive_mail", "arguments": {"id": "m-1"}}


async def test_names_are_such_that_endpoints_take_them_and_are_told_apart(start: Start) -> None:
    long = "summarise_" * 7
    first = [tool("b__c"), tool("read.me"), tool("read me"), tool(f"{long}1"), tool(f"{long}2")]
    names: list[list[str]] = []
    with McpServer(first) as server, McpServer([tool("c"), tool("übersicht")]) as other:
        for _ in range(2):
            async with ScriptedModel(["Hi."]) as model, start(model) as agent:
                await agent.new(server.row("a"), other.row("a__b"))
                await agent.prompt()
                names.append(list(offered(model)))
    assert names[0] == names[1]
    assert len(set(names[0])) == 7
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in names[0])
    assert names[0][0] == "a__b__c" and names[0][5].startswith("a__b__c_")
    assert names[0][1].startswith("a__read_me_") and len(names[0][3]) == 64


async def test_tools_of_one_name_are_called_where_they_are(start: Start) -> None:
    def named(params: Message) -> Message:
        return {"result": {"content": [{"type": "text", "text": f"second {params['name']}"}]}}

    def ask(request: Any) -> Message | str:
        chosen = [tool.name for tool in request.tools if tool.name.startswith("a__b__c_")]
        return "Done." if request.turn else {"tools": [calling(chosen[0]), calling("a__b__c")]}

    with McpServer([tool("b__c")]) as server, McpServer([tool("c")], result=named) as other:
        async with ScriptedModel(ask) as model, start(model) as agent:
            await agent.new(server.row("a"), other.row("a__b"))
            await agent.prompt()
            assert told(model) == ["second c", "done"]


async def test_a_server_without_tools_offers_none(start: Start) -> None:
    with McpServer() as server:
        async with ScriptedModel(["Hi."]) as model, start(model) as agent:
            await agent.new(server.row("idle"))
            await agent.prompt()
            assert offered(model) == {}
    assert [message["method"] for message in server.sent] == ["initialize", "notifications/initialized"]


PING = 'data: {"jsonrpc": "2.0", "id": "p", "method": "ping"}'
ROOTS = 'data: {"jsonrpc": "2.0", "id": "r", "method": "roots/list"}'
NOTE = 'data: {"jsonrpc": "2.0", "method": "notifications/progress"}'


@pytest.mark.parametrize(
    "speak",
    [
        pytest.param(stream(), id="events", marks=pytest.mark.long),
        pytest.param(
            stream(": hello", "id: 1", "data:", "", NOTE, "", end="\r\n"),
            id="with others before",
            marks=pytest.mark.long,
        ),
        pytest.param(stream(PING, "", ROOTS, "", end="\r"), id="with requests before"),
        pytest.param(one_of_a_list, id="a list", marks=pytest.mark.long),
    ],
)
async def test_an_answer_may_be_a_stream_of_events(start: Start, speak: Speak) -> None:
    text = {"content": [{"type": "text", "text": "ü 😀 \u2028 done"}]}
    with McpServer([ARCHIVE], result=lambda params: {"result": text}, speak=speak) as server:
        script = use(calling("mail__archive_mail", id="m-1"))
        async with ScriptedModel(script) as model, start(model) as agent:
            await agent.new(server.row("mail"))
            await agent.prompt()
            assert told(model) == ["ü 😀 \u2028 done"]
        replies = {message["id"]: message for message in server.sent if "method" not in message}
        assert replies.keys() == ({"p", "r"} if PING.encode() in speak(text) else set())
        if replies:
            assert replies["p"]["result"] == {}
            assert replies["r"]["error"]["code"] == -32601


# --- what a call may give --------------------------------------------------------------------------------

PICTURE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
RESULTS: list[tuple[Message, str, str]] = [
    ({"content": [TEXT["content"][0], PICTURE]}, "completed", "done\n[image: image/png]"),
    ({"content": [], "structuredContent": {"n": 1}}, "completed", '{"n":1}'),
    ({"content": [PICTURE], "structuredContent": [1]}, "completed", "[image: image/png]\n[1]"),
    ({**TEXT, "structuredContent": {"n": 1}, "isError": False}, "completed", "done"),
    ({"content": [{"type": "resource_link", "name": "a", "uri": "file:///a"}]}, "completed", "[a](file:///a)"),
    ({"content": [{"type": "resource", "resource": {"uri": "x:y", "text": "in it"}}]}, "completed", "in it"),
    ({"content": [{"type": "resource", "resource": {"uri": "x:y", "blob": "aGk="}}]}, "completed", "[resource: x:y]"),
    ({"content": [{"type": "text", "text": "not yours"}], "isError": True}, "failed", "error: not yours"),
    ({}, "completed", ""),
]


async def test_what_a_tool_gives_is_told_as_text(start: Start) -> None:
    left = [{"result": result} for result, _, _ in RESULTS]
    with McpServer([ARCHIVE], result=lambda params: left[int(params["arguments"]["id"])]) as server:
        script = use(*(calling("mail__archive_mail", id=str(place)) for place in range(len(RESULTS))))
        async with ScriptedModel(script) as model, start(model) as agent:
            await agent.new(server.row("mail"))
            await agent.prompt()
            assert agent.outputs() == [(status, text) for _, status, text in RESULTS]
            assert told(model) == [text for _, _, text in RESULTS]


async def test_of_a_long_text_the_beginning_and_the_end_are_kept(start: Start) -> None:
    text = "first" + "x" * 100_000 + "last"
    with McpServer(
        [ARCHIVE], result=lambda params: {"result": {"content": [{"type": "text", "text": text}]}}
    ) as server:
        async with ScriptedModel(use(calling("mail__archive_mail"))) as model, start(model) as agent:
            await agent.new(server.row("mail"))
            await agent.prompt()
            (output,) = told(model)
            assert output.startswith("first") and output.endswith("last") and "bytes left out]" in output
            assert len(output) < 25_000


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"error": {"code": -32602, "message": "there is no tool"}}, "answered with an error: there is no tool"),
        (500, "answered 500: out of order"),
        (b"<html>", "answered with what is not JSON: <html>"),
        (b'{"jsonrpc": "2.0", "id": 99, "result": {}}', "ended its answer without a result"),
    ],
)
async def test_a_call_that_fails_is_told_to_the_model(start: Start, result: Any, says: str) -> None:
    with McpServer([ARCHIVE], result=lambda params: result) as server:
        async with ScriptedModel(use(calling("mail__archive_mail"))) as model, start(model) as agent:
            await agent.new(server.row("mail"))
            assert (await agent.prompt())["stopReason"] == "end_turn"
            ((status, text),) = agent.outputs()
            assert status == "failed" and text.startswith('error: the MCP server "mail" (http://') and says in text


async def test_a_server_that_is_gone_is_told_to_the_model(start: Start) -> None:
    with McpServer([ARCHIVE]) as server:
        async with ScriptedModel(use(calling("mail__archive_mail"))) as model, start(model) as agent:
            await agent.new(server.row("mail"))
            server.stop()
            assert (await agent.prompt())["stopReason"] == "end_turn"
            (text,) = told(model)
            assert 'the MCP server "mail"' in text and "cannot be reached: connect ECONNREFUSED" in text


async def test_arguments_that_are_no_object_do_not_reach_the_server(start: Start) -> None:
    wrong = [{"name": "mail__archive_mail", "arguments": text} for text in ("[1]", '{"id')]
    with McpServer([ARCHIVE]) as server:
        async with ScriptedModel(use(*wrong, calling("mail__fly"))) as model, start(model) as agent:
            await agent.new(server.row("mail"))
            await agent.prompt()
            first, second, third = told(model)
            assert "not a JSON object" in first and "not JSON" in second
            assert third.endswith('there is no tool "mail__fly": use read, write, run, mail__archive_mail')
    assert server.of("tools/call") == []


async def test_a_session_that_the_server_forgot_is_begun_anew(start: Start) -> None:
    with McpServer([ARCHIVE], session="s-1") as server:
        async with ScriptedModel(use(calling("mail__archive_mail"))) as model, start(model) as agent:
            await agent.new(server.row("mail"))
            server.session = "s-2"
            await agent.prompt()
            assert told(model) == ["done"]
    assert [one["headers"]["mcp-session-id"] for one in server.of("tools/call")] == ["s-1", "s-2"]
    assert len(server.of("initialize")) == len(server.of("notifications/initialized")) == 2


async def test_a_call_that_takes_too_long_or_is_cancelled_is_taken_back(start: Start) -> None:
    with McpServer([ARCHIVE]) as server:
        server.result = lambda params: {"result": TEXT} if server.released.wait(PATIENCE) else 500
        script = [{"tools": [calling("mail__archive_mail")]}] * 2
        async with ScriptedModel([script[0], "Hm."]) as model, start(model, command_timeout_sec=1) as agent:
            await agent.new(server.row("mail"))
            await agent.prompt()
            assert told(model)[0].endswith("gave no answer within 1 s")
            await until(lambda: server.of("notifications/cancelled"))
        async with ScriptedModel([script[1], "Hm."]) as model, start(model) as agent:
            await agent.new(server.row("mail"))
            turn = agent.begin()
            await until(lambda: len(server.of("tools/call")) == 2)
            agent.cancel()
            assert (await asyncio.wait_for(turn, PATIENCE))["stopReason"] == "cancelled"
            assert agent.outputs() == [("failed", "error: cancelled: whether it was carried out is not known")]
            await until(lambda: len(server.of("notifications/cancelled")) == 2)
    taken_back = [one["params"]["requestId"] for one in server.of("notifications/cancelled")]
    assert taken_back == [one["id"] for one in server.of("tools/call")]


# --- sessions --------------------------------------------------------------------------------------------


async def test_a_loaded_session_has_the_tools_again(start: Start, tmp_path: Path) -> None:
    script = [{"tools": [calling("mail__archive_mail", id="m-1")]}, "One.", "Two.", "Two."]
    with McpServer([ARCHIVE]) as server:
        async with ScriptedModel(script) as model:
            async with start(model) as agent:
                await agent.new(server.row("mail"))
                await agent.prompt("one")
                shutil.copytree(tmp_path / "home", tmp_path / "copy")
                heard = [*agent.updates]
                await agent.prompt("two")
            async with start(model, home="copy") as other:
                await other.load(agent.session, server.row("mail"))
                assert other.updates.pop(0)["content"]["text"] == "one"
                assert other.updates == heard
                await other.prompt("two")
            *_, third, fourth = model.main_calls
            assert json.dumps(third.body) == json.dumps(fourth.body)
    assert len(server.of("tools/call")) == 1


@contextmanager
def unused_port() -> Iterator[int]:
    """A port where nobody listens, nor can for as long as it is looked at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def test_a_server_that_cannot_be_reached_is_named_and_there_is_no_session(start: Start) -> None:
    with unused_port() as port, McpServer([ARCHIVE]) as server, McpServer([ARCHIVE], version="1999-01-01") as old:
        gone = {"type": "http", "name": "gone", "url": f"http://127.0.0.1:{port}/mcp", "headers": []}
        async with ScriptedModel([]) as model, start(model) as agent:
            hello = await agent.call("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
            assert hello["agentCapabilities"]["mcpCapabilities"] == {"http": True, "sse": False}
            with pytest.raises(
                RefusedError, match=r'-32603: the MCP server "gone" .*cannot be reached: .*ECONNREFUSED'
            ):
                await agent.new(server.row("mail"), gone)
            with pytest.raises(RefusedError, match=r'-32603: the MCP server "old" .*speaks MCP 1999-01-01'):
                await agent.new(old.row("old"))
            wrong_path = server.row("lost") | {"url": model.openai_base_url + "/mcp"}
            with pytest.raises(RefusedError, match=r'-32603: the MCP server "lost" .*answered 404'):
                await agent.new(wrong_path)
            assert list((agent.work.parent / "home").rglob("*.json")) == []


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ({"name": "web", "command": "web", "args": [], "env": []}, '"web" is offered by stdio'),
        ({"type": "sse", "name": "web", "url": "http://x/", "headers": []}, '"web" is offered by sse'),
        ({"type": "http", "name": "web", "url": "/mcp", "headers": []}, '"web" has no address of HTTP'),
        ({"type": "http", "name": "", "url": "http://x/", "headers": []}, "has no name"),
    ],
)
async def test_servers_that_it_cannot_reach_are_refused(start: Start, server: Message, says: str) -> None:
    async with ScriptedModel([]) as model, start(model) as agent:
        with pytest.raises(RefusedError, match=f"-32602: .*{says}"):
            await agent.new(server)


async def test_two_servers_of_one_name_are_refused(start: Start) -> None:
    with McpServer([ARCHIVE]) as server:
        async with ScriptedModel([]) as model, start(model) as agent:
            with pytest.raises(RefusedError, match='-32602: the MCP server "mail" is there twice'):
                await agent.new(server.row("mail"), server.row("mail"))
    assert server.sent == []
