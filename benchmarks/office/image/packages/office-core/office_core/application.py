"""A service at work: it finds the operation of a request, carries it out in one transaction, and logs it there.

What HTTP and MCP have in common is `perform`; `answer` is the HTTP side.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Mapping

from office_core import mcp, openapi, page
from office_core.errors import Busy, Invalid, MethodNotAllowed, NotFound, Refused
from office_core.http import Request, Response
from office_core.people import Directory
from office_core.service import Call, Operation, Service
from office_core.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Application:
    """A service with its database. token: opens the admin pages. with_mcp: whether there is an MCP endpoint."""

    def __init__(self, service: Service, store: Store, token: str, *, with_mcp: bool = True) -> None:
        self.service = service
        self.store = store
        self._token = token
        self._with_mcp = with_mcp

    # --- operations ---------------------------------------------------------------------------------

    def perform(self, operation: Operation, given: Mapping[str, Any], via: str) -> tuple[int, dict[str, Any]]:
        """Carry out an operation; the HTTP status and the result or error. What was refused has changed nothing."""
        try:
            with self.store.transaction():
                return self._logged(operation, given, via)
        except sqlite3.OperationalError as problem:
            busy = Busy(f"the database cannot be used now: {problem}")
            return busy.status, busy.as_json()

    def _logged(self, operation: Operation, given: Mapping[str, Any], via: str) -> tuple[int, dict[str, Any]]:
        n = self.store.value("select coalesce(max(n), 0) + 1 from actions")
        call = Call(self.store, n)
        try:
            with self.store.attempt():
                result = operation.handler(call, **operation.take(given, Directory(self.store)))
            status = operation.status
        except Refused as refusal:
            status, result = refusal.status, refusal.as_json()
        except sqlite3.OperationalError:
            raise
        except Exception:
            sys.excepthook(*sys.exc_info())  # to the service's log, as if it ended
            status, result = 500, {"error": {"code": "internal", "message": "the service has a fault; see its log"}}
        entry = {"n": n, "at": call.now, "actor": call.handle, "operation": operation.name, "arguments": dict(given)}
        self.store.insert("actions", {**entry, "status": status, "via": via})
        print(f"{n} {via} {operation.name} {status}", file=sys.stderr)
        return status, result

    # --- HTTP ---------------------------------------------------------------------------------------

    def answer(self, request: Request) -> Response:
        try:
            return self._answer(request)
        except Refused as refusal:
            return Response.of_json(refusal.as_json(), refusal.status)

    def _answer(self, request: Request) -> Response:
        fixed = self._fixed_page(request)
        if fixed is not None:
            return fixed
        operation, given = self._route(request.method, request.parts)
        if operation.method in ("GET", "DELETE"):
            from_request = {name: self._from_text(operation, name, text) for name, text in request.query}
        else:
            from_request = _json_object(request.body)
        twice = given.keys() & from_request.keys()
        if twice:
            raise Invalid(f"{sorted(twice)[0]}: is given by the path already")
        status, result = self.perform(operation, {**given, **from_request}, "http")
        return Response.of_json(result, status)

    def _from_text(self, operation: Operation, name: str, text: str) -> Any:
        argument = operation.arguments.get(name)
        return text if argument is None else argument.from_text(name, text)

    def _route(self, method: str, parts: list[str]) -> tuple[Operation, dict[str, Any]]:
        """The operation of a path, and the arguments in it. Written parts win over arguments."""
        fitting = [operation for operation in self.service.operations if _fits(operation, parts)]
        if not fitting:
            raise NotFound(f"nothing is at /{'/'.join(parts)}; GET / tells what there is")
        chosen = [operation for operation in fitting if operation.method == method]
        if not chosen:
            raise MethodNotAllowed(
                f"it takes {', '.join(sorted({operation.method for operation in fitting}))}, not {method}"
            )
        operation = min(chosen, key=lambda one: len(one.path_arguments))
        taken = {name[1:-1]: parts[i] for i, name in enumerate(operation.parts) if name.startswith("{")}
        return operation, {name: self._from_text(operation, name, text) for name, text in taken.items()}

    def _fixed_page(self, request: Request) -> Response | None:
        """The pages that are no operations."""
        path = "/" + "/".join(request.parts)
        if path == "/mcp" and self._with_mcp:
            return mcp.answer(self, request)
        if path not in ("/", "/health", "/openapi.json", "/admin/state", "/admin/actions"):
            return None
        if request.method != "GET":
            raise MethodNotAllowed(f"it takes GET, not {request.method}")
        if path == "/":
            return Response(200, page.write(self.service, self._with_mcp).encode(), "text/plain; charset=utf-8")
        if path == "/health":
            return Response.of_json({"status": "ok", "service": self.service.name, "task": self.store.meta("task")})
        if path == "/openapi.json":
            return Response.of_json(openapi.describe(self.service))
        return self._admin_page(request, path)

    def _admin_page(self, request: Request, path: str) -> Response:
        """To everybody without the token, there is no such page."""
        from hmac import compare_digest  # it loads OpenSSL, and only verifiers come here

        shown = request.headers.get("authorization", "")
        if not compare_digest(shown.encode(), f"Bearer {self._token}".encode()):
            raise NotFound(f"nothing is at {path}; GET / tells what there is")
        if path == "/admin/actions":
            return Response.of_json({"actions": self.store.rows("select * from actions order by n")})
        return Response.of_json({"service": self.service.name, "tables": self.store.tables()})


def _fits(operation: Operation, parts: list[str]) -> bool:
    if len(operation.parts) != len(parts):
        return False
    return all(name == parts[i] or (name.startswith("{") and parts[i]) for i, name in enumerate(operation.parts))


def _json_object(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        value = json.loads(body)
    except ValueError as problem:
        raise Invalid(f"the body is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise Invalid("the body must be a JSON object")
    return value
