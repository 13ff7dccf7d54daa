"""The kinds of arguments that operations take: how each is described (JSON Schema) and how a value becomes one.

A value comes from a JSON body, from an MCP call, or as text from a path or a query. `take` gives the handler's value
or raises `Invalid` with the argument's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime

from office_core.errors import Invalid
from office_core.people import Directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Schema = dict[str, Any]
    Take = Callable[[Any, Directory], Any]

LONGEST_LINE = 1_000
LONGEST_TEXT = 1_000_000
TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|z|[+-]\d\d:\d\d)?)?")


class Argument:
    """schema: what callers are told. take: from the checked JSON value to the handler's."""

    def __init__(self, schema: Schema, take: Take | None = None, *, required: bool = False, about: str = "") -> None:
        self.schema = {**schema, "description": about} if about else schema
        self.required = required
        self._take = take

    def take(self, name: str, value: Any, directory: Directory) -> Any:
        try:
            _check(self.schema, value)
            return value if self._take is None else self._take(value, directory)
        except Invalid as problem:
            raise Invalid(f"{name}: {problem.message}") from None

    def from_text(self, name: str, text: str) -> Any:
        """What a text in a path or a query means."""
        kind = self.schema["type"]
        if kind == "array":
            return [part.strip() for part in text.split(",") if part.strip()]
        if kind == "boolean":
            if text not in ("true", "false"):
                raise Invalid(f"{name}: must be true or false, not {text!r}")
            return text == "true"
        if kind == "integer":
            if not re.fullmatch(r"-?\d{1,12}", text):
                raise Invalid(f"{name}: must be a whole number, not {text!r}")
            return int(text)
        return text


def _check(schema: Schema, value: Any) -> None:
    """The part of JSON Schema that is used here."""
    kinds: dict[str, tuple[Any, str]] = {
        "string": (str, "a text"),
        "array": (list, "a list"),
        "boolean": (bool, "true or false"),
        "integer": (int, "a whole number"),
        "object": (dict, "an object"),
    }
    kind, word = kinds[schema["type"]]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Invalid(f"must be {word}, not {value!r:.60}")
    if "enum" in schema and value not in schema["enum"]:
        raise Invalid(f"must be one of {', '.join(schema['enum'])}, not {value!r:.60}")
    if kind is int and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        raise Invalid(f"must be from {schema['minimum']} to {schema['maximum']}, not {value}")
    if kind is str and not schema.get("minLength", 0) <= len(value.strip() if "minLength" in schema else value):
        raise Invalid("must not be empty")
    if kind is str and len(value) > schema.get("maxLength", len(value)):
        raise Invalid(f"is longer than {schema['maxLength']} characters")
    if kind is list:
        if len(value) < schema.get("minItems", 0):
            raise Invalid("must not be empty")
        for part in value:
            _check(schema["items"], part)
    if kind is dict:
        _check_object(schema, value)


def _check_object(schema: Schema, value: dict[str, Any]) -> None:
    for key in value:
        if key not in schema["properties"]:
            raise Invalid(f"has no {key!r}; it has {', '.join(schema['properties'])}")
    for key in schema["required"]:
        if key not in value:
            raise Invalid(f"needs {key!r}")
    for key, part in value.items():
        _check(schema["properties"][key], part)


# --- kinds ----------------------------------------------------------------------------------------------


def text(about: str = "", *, required: bool = False, longest: int = LONGEST_TEXT) -> Argument:
    """Any text; one that is required may not be blank."""
    schema: Schema = {"type": "string", "maxLength": longest}
    if required:
        schema["minLength"] = 1
    return Argument(schema, required=required, about=about)


def content(about: str = "") -> Argument:
    """A required text that may be empty."""
    return Argument({"type": "string", "maxLength": LONGEST_TEXT * 4}, required=True, about=about)


def line(about: str = "", *, required: bool = False) -> Argument:
    """A text without line breaks."""

    def take(value: str, directory: Directory) -> str:
        if "\n" in value or "\r" in value:
            raise Invalid("must be one line")
        return value.strip()

    schema: Schema = {"type": "string", "maxLength": LONGEST_LINE}
    if required:
        schema["minLength"] = 1
    return Argument(schema, take, required=required, about=about)


def lines(about: str = "", *, required: bool = False) -> Argument:
    """A list of texts."""
    schema = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": LONGEST_LINE}}
    return Argument(schema, required=required, about=about)


def choice(values: Sequence[str], about: str = "", *, required: bool = False) -> Argument:
    return Argument({"type": "string", "enum": list(values)}, required=required, about=about)


def flag(about: str = "", *, required: bool = False) -> Argument:
    return Argument({"type": "boolean"}, required=required, about=about)


def number(least: int, most: int, about: str = "", *, required: bool = False) -> Argument:
    return Argument({"type": "integer", "minimum": least, "maximum": most}, required=required, about=about)


def person(about: str = "", *, required: bool = False) -> Argument:
    """An address or a handle; handlers get the address."""
    schema = {"type": "string", "minLength": 1}
    return Argument(schema, lambda value, directory: directory.email(value), required=required, about=about)


def people(about: str = "", *, required: bool = False) -> Argument:
    """Addresses or handles; handlers get addresses, each once."""
    schema: Schema = {"type": "array", "items": {"type": "string", "minLength": 1}}
    if required:
        schema["minItems"] = 1

    def take(value: list[str], directory: Directory) -> list[str]:
        return list(dict.fromkeys(directory.email(one) for one in value))

    return Argument(schema, take, required=required, about=about)


def members(about: str = "", *, required: bool = False) -> Argument:
    """Addresses or handles of people in the directory; handlers get handles, each once."""
    schema: Schema = {"type": "array", "items": {"type": "string", "minLength": 1}}
    if required:
        schema["minItems"] = 1

    def take(value: list[str], directory: Directory) -> list[str]:
        return list(dict.fromkeys(directory.handle(one) for one in value))

    return Argument(schema, take, required=required, about=about)


def time(about: str = "", *, required: bool = False) -> Argument:
    """A date or a time; handlers get a datetime, without a zone if none was given."""
    return Argument({"type": "string"}, lambda value, directory: parse_time(value), required=required, about=about)


def objects(properties: dict[str, Schema], required: Sequence[str], about: str = "") -> Argument:
    """A list of objects with these fields."""
    item = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return Argument({"type": "array", "items": item}, about=about)


def parse_time(value: str) -> datetime:
    if TIME.fullmatch(value):
        try:
            return datetime.fromisoformat(value.upper().replace("Z", "+00:00"))
        except ValueError:
            pass
    raise Invalid(f"must be a time such as 2026-03-12T14:30:00+01:00, not {value!r:.60}")


PAGE = {
    "limit": number(1, 200, "The most to answer; 50 unless given."),
    "offset": number(0, 1_000_000, "How many to leave out first."),
}
"""The arguments of operations that list."""
