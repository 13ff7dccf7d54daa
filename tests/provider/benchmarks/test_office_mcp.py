"""The MCP endpoint of the office services: the handshake, the tools, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.office_services import SERVICES, Answer, Running, problem_with

Start = Callable[..., Running]


def post(running: Running, message: Any, **headers: str) -> Answer:
    accepted = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers}
    return running.request("POST", "/mcp", json.dumps(message), accepted)


def ask(running: Running, method: str, **params: Any) -> dict[str, Any]:
    """The JSON-RPC answer to a request."""
    answer = post(running, {"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
    assert (answer.status, answer.body["jsonrpc"], answer.body["id"]) == (200, "2.0", 7)
    found: dict[str, Any] = answer.body
    return found


@pytest.mark.parametrize(("asked", "spoken"), [("2025-03-26", "2025-03-26"), ("1999-01-01", "2025-06-18")])
def test_the_handshake_agrees_on_a_version(office: Start, asked: str, spoken: str) -> None:
    running = office("mail")
    about = {"name": "test", "version": "1"}
    result = ask(running, "initialize", protocolVersion=asked, capabilities={}, clientInfo=about)["result"]
    assert result["protocolVersion"] == spoken
    assert result["serverInfo"]["name"] == "office-mail" and "tools" in result["capabilities"]
    answer = post(running, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (answer.status, answer.body) == (202, "")
    assert ask(running, "ping")["result"] == {}


@pytest.mark.parametrize("name", SERVICES)
def test_every_operation_is_a_tool_with_the_arguments_of_its_route(office: Start, name: str) -> None:
    running = office(name)
    tools = {tool["name"]: tool for tool in ask(running, "tools/list")["result"]["tools"]}
    document = running.get("/openapi.json")
    operations = {one["operationId"]: one for path in document["paths"].values() for one in path.values()}
    assert tools.keys() == operations.keys()
    for operation_name, operation in operations.items():
        schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        names = {one["name"] for one in operation["parameters"]} | schema.get("properties", {}).keys()
        assert tools[operation_name]["inputSchema"]["properties"].keys() == names
        assert "$ref" not in json.dumps(tools[operation_name])


def test_a_tool_does_what_its_route_does(start: Start) -> None:
    running = start("mail")
    result = ask(running, "tools/call", name="archive_mail", arguments={"id": "m-0045"})["result"]
    assert result["isError"] is False
    assert result["structuredContent"] == running.get("/messages/m-0045")
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert [(one["operation"], one["via"]) for one in running.actions()] == [
        ("archive_mail", "mcp"),
        ("read_mail", "http"),
    ]


def test_results_have_the_shape_that_the_tool_promises(office: Start) -> None:
    running = office("calendar")
    tools = {tool["name"]: tool for tool in ask(running, "tools/list")["result"]["tools"]}
    for name, arguments in (("list_events", {}), ("list_calendars", {}), ("read_event", {"id": "e-0001"})):
        result = ask(running, "tools/call", name=name, arguments=arguments)["result"]
        assert problem_with(result["structuredContent"], tools[name]["outputSchema"], {}) is None


def test_what_is_refused_is_a_result_that_the_model_can_read(office: Start) -> None:
    running = office("mail")
    result = ask(running, "tools/call", name="move_mail", arguments={"id": "m-0045", "folder": "attic"})["result"]
    assert result["isError"] is True and "structuredContent" not in result
    assert result["content"][0]["text"] == "invalid_argument: folder: must be one of inbox, archive, trash, not 'attic'"


def test_arguments_without_a_value_are_as_if_they_were_not_there(office: Start) -> None:
    arguments = {"folder": "inbox", "label": None, "unread": None}
    result = ask(office("mail"), "tools/call", name="list_mail", arguments=arguments)["result"]
    assert result["structuredContent"]["total"] > 10


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"jsonrpc": "2.0", "id": 1, "method": "resources/list"}, -32601),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "fly"}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": []}, None),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": [1]}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_mail", "arguments": 3}}, -32602),
        ({"id": 1, "method": "ping"}, -32600),
        ("hello", -32600),
    ],
)
def test_faults_of_the_protocol_are_json_rpc_errors(office: Start, message: Any, code: int | None) -> None:
    answer = post(office("mail"), message)
    assert answer.status == 200
    assert answer.body["error"]["code"] == (code or -32602)


def test_what_is_not_json_is_a_parse_error(office: Start) -> None:
    answer = office("mail").request("POST", "/mcp", "{")
    assert (answer.status, answer.body["error"]["code"]) == (400, -32700)


def test_several_messages_may_come_together(office: Start) -> None:
    running = office("mail")
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
    assert [one["id"] for one in post(running, [ping, note, {**ping, "id": 2}]).body] == [1, 2]
    assert post(running, [note]).status == 202


def test_there_are_no_streams_and_no_foreign_pages(office: Start) -> None:
    running = office("mail")
    assert running.request("GET", "/mcp").status == 405
    assert running.request("DELETE", "/mcp").status == 405
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert post(running, ping, Origin="http://evil.example").status == 403
    assert post(running, ping, Origin="http://localhost:8000").status == 200


def test_it_can_be_left_out(start: Start) -> None:
    running = start("mail", "--no-mcp")
    assert running.request("POST", "/mcp", "{}").status == 404
    assert "/mcp" not in running.get("/")
