"""Reading the world's state on this host: the tables of downloaded databases, as rows and digests.

Values of different SQLite types are different values: NULL, integer, real, text and blob, even if they print alike.
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
"""File of a fetched snapshot with its `StateSnapshot` as JSON; the databases lie beside it, at the paths in `files`."""

FENCE_TABLE = "benchflow_fence"
"""Table, in a snapshot's copies of the databases alone, that holds the consistency token (fence)."""

Value: TypeAlias = int | float | str | bytes | None
Row: TypeAlias = tuple[Value, ...]

TIMEOUT = 300.0
"""Timeout, in seconds, of reading one database."""

_STEPS = 100_000
"""Instructions of SQLite's virtual machine between two checks of the deadline: some milliseconds."""

_LIMITS = {
    # Bytes of a text, a blob and a row. The default is 1 GB, which a generated column can fill in an empty row.
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
"""Suffixes of the names of shadow tables, in which virtual tables store their rows, by module."""


@dataclass(frozen=True)
class Table:
    """Schema of a table."""

    name: str
    columns: tuple[str, ...]
    """Names of the columns, in order."""

    types: tuple[str, ...]
    """Declared types of the columns."""

    key: tuple[str, ...]
    """Columns of the primary key, in the key's order; empty without one."""


def read_state(directory: Path, *, rows: int | None) -> WorldState:
    """Return the state in a fetched snapshot: each table's row count and digest, and the values of small tables.

    Left out are SQLite's own tables, the fence, and the shadow tables of a full-text or R-tree index, whose rows the
    virtual table has. Values without a JSON form are `{"blob": <hex>}`, `{"text": <hex>}` for text that is no UTF-8,
    or `{"real": "inf"}`.

    Args:
        directory: Directory that `SqliteStore.fetch` has made.
        rows: Maximum number of rows of a table up to which their values are included; None for no values.

    Raises:
        StateError: The snapshot or a database cannot be read.
    """
    databases = []
    for file in read_record(directory).files:
        tables: tuple[TableState, ...] = ()
        if file.present:
            with open_database(directory, file.path, file.file) as database:
                tables = tuple(_read_table_state(database, table, rows) for table in list_tables(database))
        databases.append(DatabaseState(path=file.path, present=file.present, tables=tables))
    told = [[each.path, each.present, [[t.name, t.rows, t.digest] for t in each.tables]] for each in databases]
    return WorldState(databases=tuple(databases), digest=_compute_sha256(told))


def read_record(directory: Path) -> StateSnapshot:
    """Return the record of the fetched snapshot in `directory`. Raise `StateError` if there is none."""
    file = directory / RECORD
    try:
        return StateSnapshot.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise StateError("is not a snapshot that was fetched", file=str(file), remedy="fetch it first") from error


@contextlib.contextmanager
def open_database(
    directory: Path, path: str, file: str | None, *, timeout: float = TIMEOUT
) -> Iterator[sqlite3.Connection]:
    """Open a database of a fetched snapshot for reading in a block. Nothing is written, not even a lock.

    The file is untrusted: its schema may be made to run for ever, to fill the memory, or to call functions of this
    host. The connection is restricted accordingly.

    Args:
        directory: Directory of the snapshot.
        path: Path of the database in the world, for errors.
        file: Path of its copy, relative to `directory`.
        timeout: Seconds for all reads in the block.

    Raises:
        StateError: The file cannot be opened, or SQLite fails in the block.
    """
    place = directory / str(file)
    try:
        # Refuses symbolic links. SQLite opens by path alone, but no process of this host changes the file in between;
        # `-wal` and `-journal` files beside it are not opened, because the database is immutable.
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
    """Keep the schema of an untrusted database from doing more than to hold rows: limits, authorizer, deadline."""
    for pragma in ("cell_size_check = ON", "query_only = ON", "mmap_size = 0"):
        database.execute(f"PRAGMA {pragma}")
    for limit, most in _LIMITS.items():
        database.setlimit(limit, most)
    database.text_factory = _decode_text
    database.set_authorizer(_authorize)
    database.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)


def _authorize(action: int, one: str | None, other: str | None, schema: str | None, source: str | None) -> int:
    """Allow reads of tables, as SQLite's authorizer callback. `source` is the view or trigger that causes an access."""
    # A view may stand in the schema as a table, and its query may have no end. Functions are SQLite's own alone;
    # `trusted_schema` would refuse those that harmless generated columns use (json_extract, in 3.40).
    is_denied = action in _DENIED or source is not None or (action == sqlite3.SQLITE_FUNCTION and other in _UNSAFE)
    return sqlite3.SQLITE_DENY if is_denied else sqlite3.SQLITE_OK


def list_tables(database: sqlite3.Connection) -> list[Table]:
    """Return the tables with the world's own rows, sorted by name; without SQLite's, the fence and shadow tables."""
    listed = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    listed = [(name, sql or "") for name, sql in listed if not name.startswith("sqlite_") and name != FENCE_TABLE]
    behind: set[str] = set()
    found = []
    for name, sql in listed:
        virtual = sql.lstrip()[:40].upper().startswith("CREATE VIRTUAL")
        module = _MODULE.search(sql) if virtual else None
        table = _read_table(database, name, virtual)
        if table is None or (virtual and _CONTENTLESS.search(sql)):
            # Its module is missing on this host, or it is contentless: only its shadow tables can be read.
            continue
        behind |= {f"{name}_{end}".lower() for end in _SHADOWS.get(module.group(1).lower() if module else "", ())}
        found.append(table)
    return [table for table in found if table.name.lower() not in behind]


def _read_table(database: sqlite3.Connection, name: str, virtual: bool) -> Table | None:
    """Return the schema of a table; None for a virtual one that this host cannot read."""
    try:
        told = database.execute(f"PRAGMA table_xinfo({quote_identifier(name)})").fetchall()
        if virtual:
            database.execute(f"SELECT * FROM {quote_identifier(name)} LIMIT 1").fetchone()
    except sqlite3.OperationalError:
        if virtual:
            return None
        raise
    # Columns of the pragma: number, name, type, NOT NULL, default, position in the key, hidden (1: of a virtual table).
    visible = [row for row in told if row[6] != 1]
    key = tuple(row[1] for row in sorted(visible, key=lambda row: row[5]) if row[5])
    return Table(name, tuple(row[1] for row in visible), tuple(row[2] for row in visible), key)


def quote_identifier(name: str) -> str:
    """Return a name quoted as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def convert_value(value: Value) -> Any:
    """Return a value in its JSON form (see `read_state`)."""
    if isinstance(value, bytes):
        return {"blob": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"real": str(value)}
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return {"text": _encode_text(value).hex()}
    return value


def make_sort_key(row: Row) -> tuple[Any, ...]:
    """Return a sort key that orders rows as SQLite does with the binary collation."""
    return tuple(_make_value_key(value) for value in row)


def encode_row(row: Row) -> bytes:
    """Return the row as bytes that are equal for equal rows only."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in map(_encode_value, row))


def _read_table_state(database: sqlite3.Connection, table: Table, most: int | None) -> TableState:
    """Return a table's row count, a digest that does not depend on the rows' order, and its sorted values.

    Without values if it has more than `most` rows, or if `most` is None.
    """
    columns = ", ".join(map(quote_identifier, table.columns))
    count, digests = 0, 0
    kept: list[Row] | None = None if most is None else []
    for row in database.execute(f"SELECT {columns} FROM {quote_identifier(table.name)}"):
        count += 1
        digests += int.from_bytes(hashlib.sha256(encode_row(row)).digest(), "big")
        if kept is not None:
            kept.append(row)
            kept = None if most is not None and count > most else kept
    if kept is not None:
        key = [table.columns.index(name) for name in table.key]
        kept.sort(key=lambda row: (make_sort_key(tuple(row[at] for at in key)), make_sort_key(row), encode_row(row)))
    return TableState(
        name=table.name,
        columns=table.columns,
        rows=count,
        # A sum of hashes does not depend on the order of the rows.
        digest=_compute_sha256([table.columns, count, f"{digests % 2**256:x}"]),
        values=None if kept is None else [[convert_value(value) for value in row] for row in kept],
    )


def _encode_value(value: Value) -> bytes:
    match value:
        case None:
            return b"n"
        case int():
            return b"i%d" % value
        case float():
            # Adding 0.0 turns -0.0, which SQLite takes for equal, into 0.0.
            return b"r" + struct.pack(">d", value + 0.0)
        case str():
            return b"t" + _encode_text(value)
        case bytes():
            return b"b" + value


def _make_value_key(value: Value) -> tuple[int, Any]:
    match value:
        case None:
            return 0, 0
        case int() | float():
            return 1, value
        case str():
            return 2, _encode_text(value)
        case bytes():
            return 3, value


def _decode_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _compute_sha256(told: Any) -> str:
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
