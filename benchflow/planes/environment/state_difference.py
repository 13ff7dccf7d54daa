"""Difference of two states of the world, row by row.

Both sides are read in the same order and merged, so that a table of any size needs no more memory than its differences.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from benchflow.contracts.environment import DatabaseDiff, RowChange, StateDiff, StateFile, TableDiff
from benchflow.planes.environment.rows import (
    Row,
    Table,
    convert_value,
    encode_row,
    list_tables,
    make_sort_key,
    open_database,
    quote_identifier,
    read_record,
)

_Placed: TypeAlias = tuple[tuple[Any, ...], Row]
"""A sort key, and its row."""


def diff_snapshots(before: Path, after: Path, *, limit: int = 1000) -> StateDiff:
    """Return the difference of two fetched snapshots.

    Rows are matched by primary key; without a key, or with NULL in it, as whole rows, so that none of them is
    `changed`. A table with other column names, types or another key has the change `columns`. Values are as in
    `read_state`.

    Args:
        before: Directory of the older snapshot, as `SqliteStore.fetch` has made it.
        after: Directory of the newer one.
        limit: Maximum number of rows that are listed of a table; all are counted.

    Raises:
        StateError: A snapshot or a database cannot be read.
    """
    old = {file.path: file for file in read_record(before).files}
    new = {file.path: file for file in read_record(after).files}
    found = []
    for path in sorted(old | new):
        with _open_side(before, old.get(path)) as one, _open_side(after, new.get(path)) as other:
            found.append(_compare_database(path, one, other, limit))
    return StateDiff(databases=tuple(each for each in found if each.change or each.tables))


@dataclass(frozen=True)
class _Side:
    """A database in one of the two snapshots."""

    database: sqlite3.Connection | None
    """Connection to it; None if the snapshot does not have it."""

    tables: dict[str, Table]

    def rows(self, table: Table, columns: tuple[str, ...], key: tuple[str, ...], where: str = "") -> Iterator[_Placed]:
        """Yield the rows of a table, sorted by the key; without one, by all values and their types.

        Args:
            table: The table.
            columns: Columns to read, in this order.
            key: Columns of the key; may be empty.
            where: An SQL condition on the rows, with `WHERE`.
        """
        assert self.database is not None
        places = [columns.index(name) for name in key]
        sql = f"SELECT {_join_columns(columns)} FROM {quote_identifier(table.name)} {where}"
        if key:
            order = ", ".join(f"{quote_identifier(name)} COLLATE BINARY" for name in key)
        else:
            order = ", ".join(
                f"{quote_identifier(name)} COLLATE BINARY, typeof({quote_identifier(name)})" for name in columns
            )

        def placed(row: Row) -> _Placed:
            if key:
                return make_sort_key(tuple(row[at] for at in places)), row
            kinds = tuple(type(value) is float for value in row)
            return tuple(zip(make_sort_key(row), kinds, strict=True)), row

        if self.database.execute("PRAGMA encoding").fetchone()[0] == "UTF-8":
            yield from map(placed, self.database.execute(f"{sql} ORDER BY {order}"))
        else:
            # SQLite sorts text by its bytes, whose order is another one in UTF-16.
            yield from sorted(map(placed, self.database.execute(sql)), key=lambda each: each[0])


@contextlib.contextmanager
def _open_side(directory: Path, file: StateFile | None) -> Iterator[_Side]:
    if file is None or not file.present:
        yield _Side(None, {})
        return
    with open_database(directory, file.path, file.file) as database:
        yield _Side(database, {table.name: table for table in list_tables(database)})


def _compare_database(path: str, old: _Side, new: _Side, limit: int) -> DatabaseDiff:
    """Return the difference of one database, table by table; empty if there is none."""
    change: Literal["appeared", "disappeared"] | None = None
    if (old.database is None) != (new.database is None):
        change = "appeared" if old.database is None else "disappeared"
    tables = (_TableComparison(name, limit).run(old, new) for name in sorted(old.tables | new.tables))
    return DatabaseDiff(path=path, change=change, tables=tuple(table for table in tables if table is not None))


class _TableComparison:
    """Comparison of the table `name` on both sides: counts all differences, and lists at most `limit`."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._room = limit
        self._counts = {"added": 0, "removed": 0, "changed": 0}
        self._added: list[dict[str, Any]] = []
        self._removed: list[dict[str, Any]] = []
        self._changed: list[RowChange] = []

    def run(self, old: _Side, new: _Side) -> TableDiff | None:
        """Return the difference; None if there is none."""
        one, other = old.tables.get(self._name), new.tables.get(self._name)
        sides = (old, one), (new, other)
        change: Literal["added", "removed", "columns"] | None = None
        if one is None or other is None:
            change = "added" if one is None else "removed"
            columns = one.columns if one else (), other.columns if other else ()
            rows = [side.rows(table, table.columns, table.key) if table else iter(()) for side, table in sides]
            self._merge(columns, *rows)
        else:
            change = None if _make_shape(one) == _make_shape(other) else "columns"
            self._compare_rows(old, one, new, other)
        total = sum(self._counts.values())
        if not change and not total:
            return None
        return TableDiff(
            name=self._name,
            change=change,
            n_added=self._counts["added"],
            n_removed=self._counts["removed"],
            n_changed=self._counts["changed"],
            added=self._added,
            removed=self._removed,
            changed=self._changed,
            left_out=total - len(self._added) - len(self._removed) - len(self._changed),
        )

    def _compare_rows(self, old: _Side, one: Table, new: _Side, other: Table) -> None:
        """Compare the rows of a table that both sides have, by key where the keys are the same."""
        same = set(one.columns) == set(other.columns)
        columns = one.columns, one.columns if same else other.columns
        key = one.key if one.key == other.key else ()
        null = " OR ".join(f"{quote_identifier(name)} IS NULL" for name in key)
        # SQLite allows NULL in a key, in any number of rows: such rows are compared as a whole.
        parts = [(f"WHERE NOT ({null})", key), (f"WHERE {null}", ())] if key else [("", ())]
        for where, by in parts:
            rows = old.rows(one, columns[0], by, where), new.rows(other, columns[1], by, where)
            if by or same:
                self._merge(columns, *rows)
            else:
                self._merge(columns, rows[0], iter(()))
                self._merge(columns, iter(()), rows[1])

    def _merge(self, columns: tuple[tuple[str, ...], ...], old: Iterator[_Placed], new: Iterator[_Placed]) -> None:
        """Note the differences of two streams of rows in the same order; `columns` are those of either."""
        one, other = next(old, None), next(new, None)
        while one is not None or other is not None:
            if other is None or (one is not None and one[0] < other[0]):
                assert one is not None
                self._record("removed", _name_columns(columns[0], one[1]), None)
                one = next(old, None)
            elif one is None or other[0] < one[0]:
                self._record("added", None, _name_columns(columns[1], other[1]))
                other = next(new, None)
            else:
                if columns[0] != columns[1] or encode_row(one[1]) != encode_row(other[1]):
                    self._record("changed", _name_columns(columns[0], one[1]), _name_columns(columns[1], other[1]))
                one, other = next(old, None), next(new, None)

    def _record(self, kind: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        """Count a difference, and list it unless the limit is reached."""
        self._counts[kind] += 1
        if not self._room:
            return
        self._room -= 1
        if before is None:
            assert after is not None
            self._added.append(after)
        elif after is None:
            self._removed.append(before)
        else:
            self._changed.append(RowChange(before=before, after=after))


def _name_columns(columns: tuple[str, ...], row: Row) -> dict[str, Any]:
    return dict(zip(columns, map(convert_value, row), strict=True))


def _make_shape(table: Table) -> tuple[Any, ...]:
    """Return the schema to compare: the columns with their types, whatever their order, and the key."""
    return sorted(zip(table.columns, table.types, strict=True)), table.key


def _join_columns(columns: tuple[str, ...]) -> str:
    return ", ".join(map(quote_identifier, columns))
