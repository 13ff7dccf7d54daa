"""One SQLite database: opening, rows as dictionaries, ids, and the transaction with its entry in the action log.

The columns of the tables are the fields that callers see. A column declared `json` holds a list or an object, one
declared `boolean` a flag; both are decoded where rows are read, also by whoever reads the schema.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from office_core.errors import WorldError

TYPE_CHECKING = False  # that of `typing` would cost its import at every start
if TYPE_CHECKING:
    from typing import Any

    Row = dict[str, Any]

SCHEMA_VERSION = "1"
BUSY_TIMEOUT_SECONDS = 10.0

COMMON_TABLES = """
create table meta(key text primary key, value text not null) without rowid;
create table people(handle text primary key, name text not null, email text not null unique, title text not null,
                    team text not null, external boolean not null) without rowid;
create table actions(n integer primary key, at text not null, actor text not null, operation text not null,
                     arguments json not null, status integer not null, via text not null);
"""

sqlite3.register_converter("json", json.loads)
sqlite3.register_converter("boolean", lambda value: value == b"1")
for kind in (list, dict):
    sqlite3.register_adapter(kind, lambda value: json.dumps(value, ensure_ascii=False))


def _as_dict(cursor: sqlite3.Cursor, values: Sequence[Any]) -> Row:
    return {column[0]: values[i] for i, column in enumerate(cursor.description)}


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


class Store:
    """A connection for one thread, to a database that is there. Outside of `transaction` every statement is its own."""

    def __init__(self, path: str) -> None:
        # `rw`: SQLite would else make an empty database of a wrong path.
        quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        self._connection = sqlite3.connect(
            f"file:{quoted}?mode=rw",
            uri=True,
            timeout=BUSY_TIMEOUT_SECONDS,
            isolation_level=None,
            detect_types=sqlite3.PARSE_DECLTYPES,
        )
        self._connection.row_factory = _as_dict
        self.run("pragma journal_mode = wal")
        # A crash of the process loses nothing; a power cut may lose the last commits, never tear the file.
        self.run("pragma synchronous = normal")

    def close(self) -> None:
        self._connection.close()

    # --- statements ---------------------------------------------------------------------------------

    def run(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        return self._connection.execute(statement, parameters)

    def rows(self, statement: str, *parameters: Any) -> list[Row]:
        return self.run(statement, *parameters).fetchall()

    def value(self, statement: str, *parameters: Any) -> Any:
        """The first column of the first row, or None."""
        row = self.run(statement, *parameters).fetchone()
        return next(iter(row.values())) if row else None

    def get(self, table: str, key: str, column: str = "id") -> Row | None:
        found: Row | None = self.run(f'select * from {table} where "{column}" = ?', key).fetchone()
        return found

    def insert(self, table: str, row: Mapping[str, Any]) -> None:
        marks = ", ".join("?" * len(row))
        self.run(f"insert into {table}({_quoted(list(row))}) values ({marks})", *row.values())

    def update(self, table: str, key: str, changes: Mapping[str, Any], column: str = "id") -> None:
        assignments = ", ".join(f'"{name}" = ?' for name in changes)
        self.run(f'update {table} set {assignments} where "{column}" = ?', *changes.values(), key)

    def page(
        self, table: str, conditions: Sequence[str], parameters: Sequence[Any], order: str, limit: int, offset: int
    ) -> tuple[list[Row], int]:
        """The rows from `offset` on, at most `limit`, and how many there are in all."""
        where = " and ".join(conditions) or "true"
        total = self.value(f"select count(*) from {table} where {where}", *parameters)
        statement = f"select * from {table} where {where} order by {order} limit ? offset ?"
        return self.rows(statement, *parameters, limit, offset), total

    def new_id(self, prefix: str) -> str:
        """The id after the highest that there has ever been: `m-0008` for the prefix `m-`."""
        number = int(self.meta(f"last {prefix}")) + 1
        self.set_meta(f"last {prefix}", str(number))
        return f"{prefix}{number:04d}"

    # --- meta ---------------------------------------------------------------------------------------

    def meta(self, key: str) -> str:
        value: str = self.value("select value from meta where key = ?", key)
        return value

    def set_meta(self, key: str, value: str) -> None:
        self.run("insert into meta values (?, ?) on conflict(key) do update set value = excluded.value", key, value)

    # --- transactions -------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and nobody else writes meanwhile."""
        self.run("begin immediate")
        try:
            yield
        except BaseException:
            self.run("rollback")
            raise
        self.run("commit")

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """A part of a transaction that is undone alone if it raises."""
        self.run("savepoint attempt")
        try:
            yield
        except BaseException:
            self.run("rollback to attempt")
            raise
        finally:
            self.run("release attempt")

    # --- the whole ----------------------------------------------------------------------------------

    def tables(self) -> dict[str, list[Row]]:
        """Every table's rows, in the order of the key."""
        names = self.rows("select name from sqlite_master where type = 'table' order by name")
        return {
            table["name"]: self.rows(f"select * from {table['name']} order by {self._key(table['name'])}")
            for table in names
        }

    def _key(self, table: str) -> str:
        columns = self.rows(f"pragma table_info({table})")
        return _quoted([column["name"] for column in sorted(columns, key=lambda c: c["pk"]) if column["pk"]])


def remember_last(store: Store, table: str, prefix: str) -> None:
    """Let new ids begin after the highest of a table; in it, all have the form of `m-0007`."""
    numbers = [0]
    for row in store.rows(f"select id from {table}"):
        if not re.fullmatch(re.escape(prefix) + r"\d{4,}", row["id"]):
            raise WorldError(f"{row['id']!r}: ids of {table} are {prefix}0001 and so on")
        numbers.append(int(row["id"][len(prefix) :]))
    store.set_meta(f"last {prefix}", str(max(numbers)))
