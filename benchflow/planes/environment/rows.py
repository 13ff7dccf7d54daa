"""Reading the world's state on this host: the tables of downloaded databases, as rows and digests.

Values are told apart as SQLite does: NULL, an integer, a real, text and a blob of the same look are five values.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import sqlite3
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from pydantic import ValidationError

from benchflow.contracts.environment import DatabaseState, StateSnapshot, TableState, WorldState
from benchflow.errors import StateError

RECORD = "snapshot.json"
"""The file of a snapshot that tells what it is; databases lie beside it as its `files` say."""

FENCE_TABLE = "benchflow_fence"
"""The table of a snapshot's copies that holds the fence; worlds do not have it."""

Value: TypeAlias = int | float | str | bytes | None
Row: TypeAlias = tuple[Value, ...]

_MODULE = re.compile(r"\bUSING\s+[\"'`\[]?(\w+)", re.IGNORECASE)
_CONTENTLESS = re.compile(r"\bcontent\s*=\s*(''|\"\")", re.IGNORECASE)
_FTS4 = ("content", "segments", "segdir", "docsize", "stat")
_RTREE = ("node", "rowid", "parent")
_SHADOWS = {
    "fts3": _FTS4,
    "fts4": _FTS4,
    "fts5": ("data", "idx", "content", "docsize", "config"),
    "rtree": _RTREE,
    "rtree_i32": _RTREE,
    "geopoly": _RTREE,
}
"""By module, the ends of the names of the tables that its virtual tables keep their rows in."""


@dataclass(frozen=True)
class Table:
    """columns: names in their order; types: as declared; key: the columns of the primary key, in its order."""

    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[str, ...]


def read_state(directory: Path, *, rows: int | None) -> WorldState:
    """The state that a fetched snapshot holds. directory: as `SqliteStore.fetch` has made it.

    rows: the most rows whose values are given, a table; None for none. Left out: SQLite's own tables, the fence, and
    the tables behind a full-text or R-tree index, whose rows are shown in their place. A value that JSON does not know
    is `{"blob": <hex>}`, `{"text": <hex>}` for text that is no UTF-8, or `{"real": "inf"}`. Raises `StateError`.
    """
    databases = []
    for file in snapshot_at(directory).files:
        tables: tuple[TableState, ...] = ()
        if file.present:
            with opened(directory, file.path, file.file) as database:
                tables = tuple(_state_of(database, table, rows) for table in tables_of(database))
        databases.append(DatabaseState(path=file.path, present=file.present, tables=tables))
    told = [[each.path, each.present, [[t.name, t.rows, t.digest] for t in each.tables]] for each in databases]
    return WorldState(databases=tuple(databases), digest=_sha256(told))


def snapshot_at(directory: Path) -> StateSnapshot:
    """What a fetched snapshot is. Raises `StateError`."""
    file = directory / RECORD
    try:
        return StateSnapshot.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise StateError("is not a snapshot that was fetched", file=str(file), remedy="fetch it first") from error


@contextlib.contextmanager
def opened(directory: Path, path: str, file: str | None) -> Iterator[sqlite3.Connection]:
    """A database of a fetched snapshot, to read; nothing is written, not even a lock.

    path: where the world has it, for the errors. All that goes wrong in the block with it is raised as `StateError`.
    """
    place = quote(str((directory / str(file)).absolute()))
    try:
        with contextlib.closing(sqlite3.connect(f"file:{place}?immutable=1", uri=True)) as database:
            database.text_factory = _text
            yield database
    except sqlite3.Error as error:
        raise StateError(
            f"cannot be read on this host, with SQLite {sqlite3.sqlite_version}: {error}",
            key=path,
            remedy="look whether it is whole, and whether it needs a newer SQLite",
        ) from error


def tables_of(database: sqlite3.Connection) -> list[Table]:
    """The tables that hold the world's own rows, by name."""
    listed = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    listed = [(name, sql or "") for name, sql in listed if not name.startswith("sqlite_") and name != FENCE_TABLE]
    behind: set[str] = set()
    found = []
    for name, sql in listed:
        virtual = sql.lstrip()[:40].upper().startswith("CREATE VIRTUAL")
        module = _MODULE.search(sql) if virtual else None
        table = _table(database, name, virtual)
        if table is None or (virtual and _CONTENTLESS.search(sql)):
            # Its module is not here, or it forgets its rows: what it keeps is all that can be told of it.
            continue
        behind |= {f"{name}_{end}".lower() for end in _SHADOWS.get(module.group(1).lower() if module else "", ())}
        found.append(table)
    return [table for table in found if table.name.lower() not in behind]


def _table(database: sqlite3.Connection, name: str, virtual: bool) -> Table | None:
    """A table, or None for a virtual one that cannot be read here."""
    try:
        told = database.execute(f"PRAGMA table_xinfo({quoted(name)})").fetchall()
        if virtual:
            database.execute(f"SELECT * FROM {quoted(name)} LIMIT 1").fetchone()
    except sqlite3.OperationalError:
        if virtual:
            return None
        raise
    # Of a row: number, name, type, NOT NULL, default, place in the key, hidden (1: of a virtual table's own).
    shown = [row for row in told if row[6] != 1]
    key = tuple(row[1] for row in sorted(shown, key=lambda row: row[5]) if row[5])
    return Table(name, tuple(row[1] for row in shown), tuple(row[2] for row in shown), key)


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def shown(value: Value) -> Any:
    """A value as JSON has it."""
    if isinstance(value, bytes):
        return {"blob": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"real": str(value)}
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return {"text": _raw(value).hex()}
    return value


def order_of(row: Row) -> tuple[Any, ...]:
    """A key that sorts rows as SQLite does, with no collation but the binary one."""
    return tuple(_order(value) for value in row)


def written(row: Row) -> bytes:
    """The row as bytes: equal for equal rows, and for no others."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in map(_written, row))


def _state_of(database: sqlite3.Connection, table: Table, most: int | None) -> TableState:
    columns = ", ".join(map(quoted, table.columns))
    count, digests = 0, 0
    kept: list[Row] | None = None if most is None else []
    for row in database.execute(f"SELECT {columns} FROM {quoted(table.name)}"):
        count += 1
        digests += int.from_bytes(hashlib.sha256(written(row)).digest(), "big")
        if kept is not None:
            kept.append(row)
            kept = None if most is not None and count > most else kept
    if kept is not None:
        key = [table.columns.index(name) for name in table.key]
        kept.sort(key=lambda row: (order_of(tuple(row[at] for at in key)), order_of(row), written(row)))
    return TableState(
        name=table.name,
        columns=table.columns,
        rows=count,
        # A sum does not know the order of what was added.
        digest=_sha256([table.columns, count, f"{digests % 2**256:x}"]),
        values=None if kept is None else [[shown(value) for value in row] for row in kept],
    )


def _written(value: Value) -> bytes:
    match value:
        case None:
            return b"n"
        case int():
            return b"i%d" % value
        case float():
            # There is a second zero, which SQLite takes for the first.
            return b"r" + struct.pack(">d", value + 0.0)
        case str():
            return b"t" + _raw(value)
        case bytes():
            return b"b" + value


def _order(value: Value) -> tuple[int, Any]:
    match value:
        case None:
            return 0, 0
        case int() | float():
            return 1, value
        case str():
            return 2, _raw(value)
        case bytes():
            return 3, value


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _sha256(told: Any) -> str:
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
