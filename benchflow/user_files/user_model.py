"""Models made of what a user wrote, and all that is wrong with it: key, message and remedy of each fault."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from benchflow.contracts.base import non_finite
from benchflow.errors import BenchFlowError
from benchflow.user_files.problems import KeyPath, format_path, suggest_known

M = TypeVar("M", bound=BaseModel)
E = TypeVar("E", bound=BenchFlowError)

_WORDS = {
    "string_type": "must be a text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "dataclass_type": "must be a table",
    "extra_forbidden": "is not a known key",
    "unexpected_keyword_argument": "is not a known key",
}
"""Messages in the words of the files, by the type of pydantic's error."""

_MISSING = ("missing", "missing_argument", "union_tag_not_found")
_NO_CHOICE = ("literal_error", "union_tag_invalid")


class KeyFault(NamedTuple):
    """A fault in the data of a file."""

    at: KeyPath
    """Path of its key."""

    message: str
    """Predicate of a sentence of which the key is the subject."""

    remedy: str
    """Advice to the author, as an imperative."""

    def as_error(self, kind: type[E], file: str | None) -> E:
        """Return the fault as an error of this type."""
        return kind(self.message, file=file, key=format_path(self.at) or None, remedy=self.remedy)

    def __str__(self) -> str:
        """Return the fault as one line, without the remedy."""
        return f"{format_path(self.at)}: {self.message}" if self.at else self.message


def make_model(
    model: type[M],
    data: Any,
    report: Callable[[KeyFault], None],
    *,
    unknown: Callable[[KeyFault, Any], None] | None = None,
    header: Callable[[KeyPath], str] | None = None,
    strict: bool = False,
) -> M | None:
    """Return data as a model; None if it is none. Unknown keys are removed from it first, in place.

    Args:
        model: The model.
        data: Its data: a table, or else what the model is made of.
        report: Receives the faults. Unknown keys come first: a key that is missing is often one that is misspelled.
        unknown: Receives the unknown keys, with their values, in its place.
        header: Returns the header of the table at a path, as the file would write it.
        strict: Convert no text into a number, nor the other way round.
    """
    if isinstance(data, dict):
        for fault, value in take_unknown(model, data):
            if unknown is None:
                report(fault)
            else:
                unknown(fault, value)
        for fault in find_booleans_as_numbers(model, data):
            report(fault)
    try:
        # Strict validation of JSON accepts lists for tuples.
        made = model.model_validate_json(json.dumps(data), strict=True) if strict else model.model_validate(data)
    except ValidationError as error:
        for fault in list_faults(error, data, header):
            report(fault)
        return None
    for at in non_finite(made):
        report(KeyFault(at, "must be a finite number", "give a smaller number"))
    return made


def require_model(
    model: type[M],
    data: Any,
    error: Callable[[KeyFault], BenchFlowError],
    *,
    header: Callable[[KeyPath], str] | None = None,
    strict: bool = False,
) -> M:
    """Return data as a model, as `make_model` does. Raise the error for its first fault."""

    def report(fault: KeyFault) -> None:
        raise error(fault)

    made = make_model(model, data, report, header=header, strict=strict)
    assert made is not None
    return made


# --- before validation ----------------------------------------------------------------------------------


def take_unknown(model: type, table: dict[str, Any], at: KeyPath = ()) -> Iterator[tuple[KeyFault, Any]]:
    """Remove every key that `model` doesn't know from a table and the tables in it, in place.

    Args:
        model: Model of the table, or dataclass of pydantic.
        table: The table.
        at: Path of the table.

    Yields:
        The fault of each removed key, and its value.
    """
    known = list_fields(model)
    if not hasattr(model, "__pydantic_fields__"):
        return
    for key in [key for key in table if key not in known]:
        yield KeyFault((*at, key), "is not a known key", suggest_known(key, known)), table[key]
        del table[key]
    for path, inner, part in _list_inner_tables(model, table, at):
        yield from take_unknown(inner, part, path)


def find_booleans_as_numbers(model: type, table: dict[str, Any], at: KeyPath = ()) -> Iterator[KeyFault]:
    """Yield a fault for each `true` and `false` given for a number: pydantic would take them for 1 and 0."""
    for key, field in list_fields(model).items():
        if isinstance(table.get(key), bool):
            members = typing.get_args(field.annotation) or (field.annotation,)
            if (int in members or float in members) and bool not in members:
                yield KeyFault((*at, key), "must be a number, not true or false", f"change {_format_value(table[key])}")
    for path, inner, part in _list_inner_tables(model, table, at):
        yield from find_booleans_as_numbers(inner, part, path)


def list_fields(model: type) -> dict[str, FieldInfo]:
    """Return the fields of a model, or dataclass of pydantic, by name; none for another class."""
    return getattr(model, "__pydantic_fields__", {})


def find_models(annotation: Any) -> Iterator[type]:
    """Yield the models in a field's annotation: itself, or in an optional, a union, a list or a dict."""
    if isinstance(annotation, type) and list_fields(annotation):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from find_models(argument)


def _list_inner_tables(
    model: type, table: dict[str, Any], at: KeyPath
) -> Iterator[tuple[KeyPath, type, dict[str, Any]]]:
    """Yield the tables in a table that have a model of their own: path, model and table."""
    for key, field in list_fields(model).items():
        value = table.get(key)
        parts: list[tuple[KeyPath, Any]] = [((*at, key), value)]
        if isinstance(value, list | tuple):
            parts = [((*at, key, index), item) for index, item in enumerate(value)]
        elif isinstance(value, dict) and _is_dict_of_models(field.annotation):
            parts = [((*at, key, name), item) for name, item in value.items()]
        for path, part in parts:
            inner = _choose_model(field.annotation, part) if isinstance(part, dict) else None
            if inner is not None:
                yield path, inner, part


def _choose_model(annotation: Any, table: dict[str, Any]) -> type | None:
    """Return the model of a table: the only one in the annotation, or the one whose `Literal` fields agree with it."""
    models = list(find_models(annotation))
    if len(models) > 1:
        models = [
            model
            for model in models
            if all(
                table.get(name) in typing.get_args(field.annotation)
                for name, field in list_fields(model).items()
                if typing.get_origin(field.annotation) is Literal
            )
        ]
    return models[0] if len(models) == 1 else None


def _is_dict_of_models(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_is_dict_of_models(argument) for argument in typing.get_args(annotation))
    return typing.get_origin(annotation) is dict and any(find_models(annotation))


# --- errors of pydantic ---------------------------------------------------------------------------------


def list_faults(
    error: ValidationError, data: Any, header: Callable[[KeyPath], str] | None = None
) -> Iterator[KeyFault]:
    """Yield the faults of a validation error. The messages of one path, as of a union, are joined by "or".

    Args:
        error: The error.
        data: The data that was validated.
        header: As for `make_model`.
    """
    found: dict[KeyPath, list[Any]] = {}
    for detail in error.errors(include_url=False):
        found.setdefault(_find_path(data, detail), []).append(detail)
    for at, details in found.items():
        first = details[0]
        kind, given = first["type"], first["input"]
        if kind in _MISSING:
            to = f" to {header(at[:-1])}" if header and at[:-1] else ""
            yield KeyFault(
                at, "is missing", f"add `{at[-1]}`{to}" if isinstance(at[-1], str) else "give one more value"
            )
            continue
        message = " or ".join(dict.fromkeys(_format_message(detail) for detail in details))
        remedy = f"change {_format_value(given)}" if isinstance(given, str | int | float) else "change the value"
        if kind in _NO_CHOICE:
            given = first["ctx"].get("tag", given)
            remedy = suggest_known(str(given), re.findall(r"'([^']*)'", _format_expected(first)))
        elif kind not in ("extra_forbidden", "unexpected_keyword_argument"):
            remedy = _suggest_type(kind, given, at, header) or remedy
        # A validator's own message, and one about a table as a whole, has what it needs.
        if message.startswith("must be") and kind != "value_error" and not isinstance(given, dict | list):
            message += f", not {_format_value(given)}" if len(_format_value(given)) <= 80 else ""
        yield KeyFault(at, message, remedy)


def _find_path(data: Any, detail: Any) -> KeyPath:
    """Return the part of an error's location that exists in the data, and the key that is missing.

    pydantic inserts the names of union members and dataclasses.
    """
    path: KeyPath = ()
    for index, part in enumerate(detail["loc"], start=1):
        inside = (isinstance(data, dict) and part in data) or (
            isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
        )
        if inside:
            path, data = (*path, part), data[part]
        elif isinstance(data, dict | list | tuple) and detail["type"] in _MISSING and index == len(detail["loc"]):
            return (*path, part)
    if detail["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return (*path, detail["ctx"]["discriminator"].strip("'"))
    return path


def _format_message(detail: Any) -> str:
    """Return the message of one error, without the input."""
    kind = detail["type"]
    if kind in _NO_CHOICE:
        return f"must be {_format_expected(detail)}"
    message = str(_WORDS.get(kind, detail["msg"])).removeprefix("Value error, ").replace("Input should be", "must be")
    return message[:1].lower() + message[1:]


def _format_expected(detail: Any) -> str:
    """Return the allowed values of a `Literal`, or the tags of a union: `'a', 'b' or 'c'`."""
    context = detail["ctx"]
    return str(context["expected"]) if "expected" in context else " or ".join(context["expected_tags"].rsplit(", ", 1))


def _format_value(value: Any) -> str:
    """Return a value as a file would write it."""
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def _suggest_type(kind: str, given: Any, at: KeyPath, header: Callable[[KeyPath], str] | None) -> str | None:
    """Return the remedy for a value of the wrong type; None if there is none but to change it."""
    if kind == "string_type" and isinstance(given, int | float):
        return "write it in quotes"
    if kind in ("int_type", "float_type") and isinstance(given, str) and given.strip().isdigit():
        return f"write it without quotes: {given.strip()}"
    if kind == "bool_type" and str(given).lower() in ("true", "false"):
        return f"write it without quotes: {str(given).lower()}"
    if kind in ("tuple_type", "list_type"):
        if isinstance(given, dict) and header:
            return f"write each as a table of its own: {header((*at, 0))}"
        return f"write [{json.dumps(given)}]" if isinstance(given, str | int) else "write a list: [...]"
    if kind in ("model_type", "model_attributes_type", "dataclass_type") and at:
        return f"write {header(at) if header else f'`{format_path(at)}`'} and its keys below it"
    return None
