"""The OpenAPI 3.1 document of a service, made from its table of operations."""

from __future__ import annotations

from office_core.service import Operation, Service, shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = "1.0.0"
ERROR = {"error": shape(code={"type": "string"}, message={"type": "string"})}


def describe(service: Service) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in service.operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Office {service.name}", "version": VERSION, "description": service.about},
        "servers": [{"url": f"http://localhost:{service.port}"}],
        "paths": paths,
        "components": {
            "schemas": {**service.shapes, "Error": shape(**ERROR)},
            "responses": {"Error": {"description": "It was refused; nothing has changed.", "content": _json("Error")}},
        },
    }


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _operation(operation: Operation) -> dict[str, Any]:
    success = {"description": operation.about, "content": {"application/json": {"schema": operation.result}}}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.about,
        "parameters": [*_parameters(operation)],
        "responses": {str(operation.status): success, "default": {"$ref": "#/components/responses/Error"}},
    }
    body = body_schema(operation)
    if body is not None:
        described["requestBody"] = {
            "required": bool(body["required"]),
            "content": {"application/json": {"schema": body}},
        }
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found = []
    for name, argument in operation.arguments.items():
        if name in operation.path_arguments:
            found.append({"name": name, "in": "path", "required": True, "schema": argument.schema})
        elif operation.method in ("GET", "DELETE"):
            parameter = {"name": name, "in": "query", "required": argument.required, "schema": argument.schema}
            if argument.schema["type"] == "array":
                parameter.update(style="form", explode=False)
            found.append(parameter)
    return found


def body_schema(operation: Operation) -> dict[str, Any] | None:
    """Of the JSON body: what is neither in the path nor in the query. None where there is no body."""
    if operation.method in ("GET", "DELETE"):
        return None
    named = {name: one for name, one in operation.arguments.items() if name not in operation.path_arguments}
    return input_schema(named) if named else None


def input_schema(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: argument.schema for name, argument in arguments.items()},
        "required": [name for name, argument in arguments.items() if argument.required],
        "additionalProperties": False,
    }
