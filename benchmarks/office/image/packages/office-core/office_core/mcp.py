"""The MCP endpoint: streamable HTTP without sessions or streams, every operation of the service as a tool."""

from __future__ import annotations

import json

from office_core.errors import Forbidden, MethodNotAllowed
from office_core.http import Request, Response
from office_core.openapi import VERSION, input_schema
from office_core.service import Operation, Service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from office_core.application import Application

PROTOCOLS = ("2025-06-18", "2025-03-26", "2024-11-05")
"""The versions that are spoken, the newest first."""
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
LOCAL = ("http://localhost", "http://127.0.0.1", "http://[::1]")


class Fault(Exception):
    """A JSON-RPC error: code, message."""


def answer(application: Application, request: Request) -> Response:
    origin = request.headers.get("origin", LOCAL[0])
    if not any(origin == local or origin.startswith(local + ":") for local in LOCAL):
        raise Forbidden("only pages of this machine may use the MCP endpoint")
    if request.method != "POST":
        raise MethodNotAllowed("it takes POST: there are no streams and no sessions")
    try:
        message = json.loads(request.body)
    except ValueError as problem:
        return Response.of_json(_error(None, PARSE_ERROR, f"not JSON: {problem}"), 400)
    if isinstance(message, list):
        answers = [found for found in (_message(application, one) for one in message) if found is not None]
        return Response.of_json(answers) if answers else Response(202)
    found = _message(application, message)
    return Response(202) if found is None else Response.of_json(found)


def _message(application: Application, message: Any) -> dict[str, Any] | None:
    """The answer to one message; None for notifications and answers."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return _error(None, INVALID_REQUEST, "not a JSON-RPC 2.0 message")
    if "method" not in message or "id" not in message:
        return None
    params = message.get("params") or {}
    try:
        if not isinstance(params, dict):
            raise Fault(INVALID_PARAMS, "params must be an object")
        return {"jsonrpc": "2.0", "id": message["id"], "result": _result(application, str(message["method"]), params)}
    except Fault as fault:
        return _error(message["id"], *fault.args)


def _error(id: Any, code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}


def _result(application: Application, method: str, params: dict[str, Any]) -> dict[str, Any]:
    service = application.service
    if method == "initialize":
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in PROTOCOLS else PROTOCOLS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": f"office-{service.name}", "version": VERSION},
            "instructions": service.about,
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [_tool(service, operation) for operation in service.operations]}
    if method == "tools/call":
        return _call(application, params)
    raise Fault(METHOD_NOT_FOUND, f"there is no method {method!r}")


def _tool(service: Service, operation: Operation) -> dict[str, Any]:
    return {
        "name": operation.name,
        "description": operation.about,
        "inputSchema": input_schema(operation.arguments),
        "outputSchema": _without_references(service, operation.result),
        "annotations": {"readOnlyHint": operation.reads, "openWorldHint": False},
    }


def _without_references(service: Service, schema: Any) -> Any:
    """A schema with the shapes that it refers to in their places: a tool's stands alone."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _without_references(service, service.shapes[schema["$ref"].rpartition("/")[2]])
        return {key: _without_references(service, value) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_without_references(service, value) for value in schema]
    return schema


def _call(application: Application, params: dict[str, Any]) -> dict[str, Any]:
    operation = application.service.operation(str(params.get("name")))
    if operation is None:
        raise Fault(INVALID_PARAMS, f"there is no tool {params.get('name')!r}")
    arguments = params.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise Fault(INVALID_PARAMS, "arguments must be an object")
    # Some clients send every argument that the schema has, null for those without a value.
    given = {name: value for name, value in arguments.items() if value is not None}
    status, result = application.perform(operation, given, "mcp")
    failed = status >= 400
    text = (
        f"{result['error']['code']}: {result['error']['message']}" if failed else json.dumps(result, ensure_ascii=False)
    )
    answer: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": failed}
    if not failed:
        answer["structuredContent"] = result
    return answer
