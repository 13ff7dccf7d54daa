"""Rows and tables of a database, as a check reads them.

A row that is not there is a `MISSING` one: it has every field, and each equals nothing, so that a check need not ask.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from office_check.texts import same_time, says

LISTS = frozenset(
    {"to", "cc", "bcc", "labels", "attachments", "members", "reactions", "attendees", "shared", "arguments"}
)
FLAGS = frozenset({"read", "edited", "archived", "private", "trashed", "resolved", "external"})
KEYS: dict[str, tuple[str, ...]] = {
    "accounts": ("email",),
    "actions": ("n",),
    "folders": ("path",),
    "meta": ("key",),
    "people": ("handle",),
    "revisions": ("document", "revision"),
}
"""What names a row, where it is not its `id`."""


def key_of(table: str, row: Mapping[str, Any]) -> Any:
    """What names a row: a value, or a tuple where several columns do."""
    values = tuple(row[column] for column in KEYS.get(table, ("id",)))
    return values[0] if len(values) == 1 else values


class Missing:
    """The value of a field that is not there: equal to nothing, false, without parts."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __contains__(self, part: object) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __getitem__(self, key: object) -> Missing:
        return self

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __add__

    def __repr__(self) -> str:
        return "nothing"


MISSING = Missing()


class Row:
    """A row. Fields are attributes and items (`row.folder`, `row["from"]`); lists and flags are decoded."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = {name: _decoded(name, value) for name, value in fields.items()}

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_fields"][name]
        except KeyError:
            raise AttributeError(
                f"there is no field {name!r}; there is {', '.join(self.__dict__.get('_fields', ()))}"
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and self._fields == other._fields

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        name = self._fields.get("id") or self._fields.get("path") or next(iter(self._fields.values()), "")
        about = next(
            (self._fields[field] for field in ("subject", "title", "text", "operation") if field in self._fields), ""
        )
        return f"{name} {about!r:.60}" if about else str(name)

    def fields(self) -> dict[str, Any]:
        return dict(self._fields)

    def matches(self, **conditions: Any) -> bool:
        """Whether all hold: `field=value`, `field__has=part`, `field__says=text` (or several), `field__at=time`."""
        return all(self._holds(name, wanted) for name, wanted in conditions.items())

    def _holds(self, name: str, wanted: Any) -> bool:
        field, _, kind = name.partition("__")
        value = self[field]
        if kind == "has":
            return wanted in value
        if kind == "says":
            return says(value, *([wanted] if isinstance(wanted, str) else wanted))
        if kind == "at":
            return same_time(value, wanted)
        if kind:
            raise TypeError(f"{name}: a condition is has, says or at")
        return bool(value == wanted)


class Table:
    """The rows of a table, by their keys, in order."""

    def __init__(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self.name = name
        self.by_key = {key_of(name, row): Row(row) for row in rows}

    def __getitem__(self, key: Any) -> Any:
        return self.by_key.get(key, MISSING)

    def __contains__(self, key: object) -> bool:
        return key in self.by_key

    def __iter__(self) -> Iterator[Row]:
        return iter(self.by_key.values())

    def __len__(self) -> int:
        return len(self.by_key)

    def where(self, **conditions: Any) -> list[Row]:
        return [row for row in self if row.matches(**conditions)]


def _decoded(name: str, value: Any) -> Any:
    if name in LISTS and isinstance(value, str):
        return json.loads(value)
    if name in FLAGS and isinstance(value, int):
        return bool(value)
    return value
