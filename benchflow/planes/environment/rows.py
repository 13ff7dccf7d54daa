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
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from pydantic import ValidationError

from benchflow.confined import ConfinedPath
from benchflow.contracts.environment import DatabaseState, StateSnapshot, TableState, WorldState
from benchflow.errors import StateError, UnsafePathError

RECORD = "snapshot.json"
"""The file of a snapshot that tells what it is; databases lie beside it as its `files` say."""

FENCE_TABLE = "benchflow_fence"
"""The table of a snapshot's copies that holds the fence; worlds do not have it."""

Value: TypeAlias = int | float | str | bytes | None
Row: TypeAlias = tuple[Value, ...]

TIMEOUT = 300.0
"""Seconds in which a database must have been read."""

_STEPS = 100_000
"""Of SQLite's virtual machine, between two looks at the clock: some milliseconds."""

_LIMITS = {
    # Of a text, a blob and a row. The default is 1 GB, which a generated column of an empty row can be made to be.
    sqlite3.SQLITE_LIMIT_LENGTH: 128 * 1024 * 1024,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}

_UNSAFE = ("load_extension", "fts3_tokenizer")
_DENIED = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_RECURSIVE)

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
def opened(directory: Path, path: str, file: str | None, *, timeout: float = TIMEOUT) -> Iterator[sqlite3.Connection]:
    """A database of a fetched snapshot, to read; nothing is written, not even a lock.

    A sandbox wrote it, so that its schema may be made to run for ever, to fill the memory, or to call what is here.

    path: where the world has it, for the errors. timeout: seconds for all that is read of it. All that goes wrong in
    the block with it is raised as `StateError`.
    """
    place = directory / str(file)
    try:
        # Through no link. Nothing on this host changes it until it is opened by its path, which is all that SQLite
        # knows; and what lies beside it (`-wal`, `-journal`) is not opened where a database is immutable.
        ConfinedPath(directory, str(file)).open().close()
        uri = f"file:{quote(str(place.absolute()))}?immutable=1&mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            _restrict(database, time.monotonic() + timeout)
            yield database
    except (UnsafePathError, OSError) as error:
        raise StateError(
            f"cannot be read on this host: {error}",
            key=path,
            file=str(place),
            remedy="look whether it is a regular file, and whether the snapshot was removed",
        ) from error
    except (sqlite3.Error, UnicodeError, MemoryError, OverflowError) as error:
        raise StateError(
            f"cannot be read on this host, with SQLite {sqlite3.sqlite_version}: {error}",
            key=path,
            remedy=f"look whether it is whole, whether it needs a newer SQLite, and more than {timeout:g} s to be read",
        ) from error


def _restrict(database: sqlite3.Connection, deadline: float) -> None:
    """Keep the schema of a database from doing more than to hold rows."""
    for pragma in ("cell_size_check = ON", "query_only = ON", "mmap_size = 0"):
        database.execute(f"PRAGMA {pragma}")
    for limit, most in _LIMITS.items():
        database.setlimit(limit, most)
    database.text_factory = _text
    database.set_authorizer(_authorize)
    database.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)


def _authorize(action: int, one: str | None, other: str | None, schema: str | None, source: str | None) -> int:
    """Allow to read tables. source: the view or the trigger that asks."""
    # A view may have been written into the schema as a table; its query may have no end. Of functions there are only
    # SQLite's own: `trusted_schema` would refuse those that honest generated columns use (json_extract, in 3.40).
    is_denied = action in _DENIED or source is not None or (action == sqlite3.SQLITE_FUNCTION and other in _UNSAFE)
    return sqlite3.SQLITE_DENY if is_denied else sqlite3.SQLITE_OK


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
