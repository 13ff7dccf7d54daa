"""What a service is: a name, tables, shapes of its answers, operations, and how a world fills it.

Every service module makes one `Service`; all else (HTTP, OpenAPI, MCP, command line, action log) is made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from office_core.arguments import Argument, line
from office_core.errors import Invalid
from office_core.people import Directory
from office_core.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from office_core.worlds import World

    Schema = dict[str, Any]
    Handler = Callable[..., dict[str, Any]]


class Operation:
    """One thing to be asked for. name: of the MCP tool; method, path: of the route, `{argument}` in it for its parts.

    handler: called with a `Call` and the arguments that were given, by name. result: JSON Schema of what it returns.
    status: of success.
    """

    def __init__(
        self,
        name: str,
        route: str,
        handler: Handler,
        about: str,
        arguments: Mapping[str, Argument] | None = None,
        *,
        result: Schema,
        status: int = 200,
    ) -> None:
        self.name = name
        self.method, self.path = route.split()
        self.handler = handler
        self.about = about
        self.arguments = dict(arguments or {})
        self.result = result
        self.status = status
        self.parts = self.path.strip("/").split("/")
        self.path_arguments = [part[1:-1] for part in self.parts if part.startswith("{")]

    @property
    def reads(self) -> bool:
        return self.method == "GET"

    def take(self, given: Mapping[str, Any], directory: Directory) -> dict[str, Any]:
        """The handler's arguments, checked. Raises `Invalid`."""
        for name in given:
            if name not in self.arguments:
                raise Invalid(f"{name}: {self.name} has no such argument; it has {', '.join(self.arguments) or 'none'}")
        for name, argument in self.arguments.items():
            if argument.required and name not in given:
                raise Invalid(f"{name}: is required")
        return {name: self.arguments[name].take(name, value, directory) for name, value in given.items()}


class Call:
    """What a handler works with. n: the operation's number in the log; now: the clock, which it moves; me: who acts."""

    def __init__(self, store: Store, n: int) -> None:
        self.store = store
        self.directory = Directory(store)
        self.n = n
        self.now = (datetime.fromisoformat(store.meta("now")) + timedelta(seconds=n)).isoformat()

    @property
    def handle(self) -> str:
        return self.store.meta("me")

    @property
    def me(self) -> str:
        return self.directory.email(self.handle)


class Service:
    """Everything that tells one service from another.

    shapes: JSON Schemas by the names that results refer to. tables: SQL of its own tables. seed: fills them.
    """

    def __init__(
        self,
        name: str,
        port: int,
        about: str,
        *,
        tables: str,
        shapes: Mapping[str, Schema],
        operations: Sequence[Operation],
        seed: Callable[[World, Store], None],
    ) -> None:
        self.name = name
        self.port = port
        self.about = about
        self.tables = tables
        self.shapes = {**COMMON_SHAPES, **shapes}
        self.operations = (*COMMON_OPERATIONS, *operations)
        self.seed = seed

    def operation(self, name: str) -> Operation | None:
        return next((operation for operation in self.operations if operation.name == name), None)


# --- shapes ---------------------------------------------------------------------------------------------

TEXT: Schema = {"type": "string"}
WORD_OR_NULL: Schema = {"type": ["string", "null"]}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer"}
TIME: Schema = {"type": "string", "format": "date-time"}
TEXTS: Schema = {"type": "array", "items": TEXT}


def shape(**fields: Schema) -> Schema:
    """An object with exactly these fields."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def refer(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def listing(field: str, name: str) -> Schema:
    """A page of things of one shape, and how many there are in all."""
    return shape(**{field: list_of(refer(name)), "total": COUNT})


# --- common operations ----------------------------------------------------------------------------------


def who_am_i(call: Call) -> dict[str, Any]:
    return {
        "person": call.store.get("people", call.handle, "handle"),
        "company": call.store.meta("company"),
        "timezone": call.store.meta("timezone"),
        "now": call.now,
    }


def list_people(call: Call, q: str = "") -> dict[str, Any]:
    found = call.directory.find(q)
    return {"people": found, "total": len(found)}


COMMON_SHAPES = {
    "Person": shape(handle=TEXT, name=TEXT, email=TEXT, title=TEXT, team=TEXT, external=FLAG),
    "Me": shape(person=refer("Person"), company=TEXT, timezone=TEXT, now=TIME),
}

COMMON_OPERATIONS = (
    Operation("who_am_i", "GET /me", who_am_i, "Who I act for, where, and what time it is.", result=refer("Me")),
    Operation(
        "list_people",
        "GET /people",
        list_people,
        "The directory: colleagues first, then people outside of the company.",
        {"q": line("Words of a name, an address, a title or a team.")},
        result=listing("people", "Person"),
    ),
)
