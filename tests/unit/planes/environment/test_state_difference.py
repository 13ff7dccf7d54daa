"""Two states, compared: what changed, row by row, and that nothing else is told."""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.fetched import fetched, told, writing

from benchflow.contracts.environment import RowChange, StateDiff, StateFile, TableDiff
from benchflow.planes.environment.rows import convert_value
from benchflow.planes.environment.world_state import diff_snapshots

MAIL = "CREATE TABLE mail (id INTEGER PRIMARY KEY, subject TEXT);"


def compared(tmp_path: Path, before: str | None, after: str | None, **options: Any) -> StateDiff:
    return diff_snapshots(fetched(tmp_path / "before", a=before), fetched(tmp_path / "after", a=after), **options)


def the_table(diff: StateDiff) -> TableDiff:
    ((table,),) = (database.tables for database in diff.databases)
    return table


def test_added_removed_and_changed_rows_are_told(tmp_path: Path) -> None:
    before = MAIL + "INSERT INTO mail VALUES (1,'a'), (2,'b'), (3,'c'), (4,'d');"
    table = the_table(
        compared(tmp_path, before, MAIL + "INSERT INTO mail VALUES (2,'b'), (3,NULL), (4,'d'), (10,'e');")
    )
    assert table == TableDiff(
        name="mail",
        n_added=1,
        n_removed=1,
        n_changed=1,
        added=[{"id": 10, "subject": "e"}],
        removed=[{"id": 1, "subject": "a"}],
        changed=[RowChange(before={"id": 3, "subject": "c"}, after={"id": 3, "subject": None})],
    )


def test_equal_states_have_no_difference(tmp_path: Path) -> None:
    script = MAIL + "INSERT INTO mail VALUES (1,'a'); CREATE TABLE log (x); INSERT INTO log VALUES (1), (1), ('1');"
    assert compared(tmp_path, script, "PRAGMA page_size=512;" + script).is_empty


@pytest.mark.parametrize("schema", ["(id INTEGER PRIMARY KEY, v)", "(id, v)", "(id TEXT PRIMARY KEY, v) WITHOUT ROWID"])
def test_values_of_the_same_look_differ(tmp_path: Path, schema: str) -> None:
    values = ["NULL", "''", "0", "0.0", "'0'", "x''", "x'30'", "1e999", "CAST(x'ff' AS TEXT)", "CAST(x'fe' AS TEXT)"]
    script = f"CREATE TABLE t {schema}; INSERT INTO t VALUES (1, {{}});"
    states = {value: fetched(tmp_path / str(n), a=script.format(value)) for n, value in enumerate(values)}
    for one, other in itertools.product(values, repeat=2):
        assert diff_snapshots(states[one], states[other]).is_empty == (one == other), (one, other)


def test_rows_without_a_key_are_counted(tmp_path: Path) -> None:
    script = "CREATE TABLE t (v); INSERT INTO t VALUES "
    table = the_table(compared(tmp_path, script + "(1), (1), (1.0), (2)", script + "(1.0), (1), (1.0), (2), ('2')"))
    assert (table.n_removed, table.n_added, table.n_changed) == (1, 2, 0)
    assert [(type(row["v"]), row["v"]) for row in (*table.removed, *table.added)] == [
        (int, 1),
        (float, 1.0),
        (str, "2"),
    ]


def test_a_key_of_null_is_no_key(tmp_path: Path) -> None:
    script = "CREATE TABLE t (k TEXT PRIMARY KEY, v); INSERT INTO t VALUES (NULL, 1), (NULL, 1), ('a', {});"
    table = the_table(compared(tmp_path, script.format(1), script.format(2) + "INSERT INTO t VALUES (NULL, 1);"))
    assert (table.added, table.n_changed, table.n_removed) == ([{"k": None, "v": 1}], 1, 0)


def test_a_composite_key_matches_by_all_its_columns(tmp_path: Path) -> None:
    script = "CREATE TABLE t (a, b, v, PRIMARY KEY (b, a)) WITHOUT ROWID; INSERT INTO t VALUES (1,1,'x'), (1,2,'y');"
    table = the_table(compared(tmp_path, script, script + "UPDATE t SET v = 'z' WHERE b = 2;"))
    assert [change.after for change in table.changed] == [{"a": 1, "b": 2, "v": "z"}]


def test_tables_that_came_or_went_are_told_with_their_rows(tmp_path: Path) -> None:
    before = "CREATE TABLE old (n); INSERT INTO old VALUES (1);"
    (database,) = compared(tmp_path, before, "CREATE TABLE new (n); INSERT INTO new VALUES (2);").databases
    assert [(table.name, table.change, table.added, table.removed) for table in database.tables] == [
        ("new", "added", [{"n": 2}], []),
        ("old", "removed", [], [{"n": 1}]),
    ]


def test_databases_that_came_or_went_are_told(tmp_path: Path) -> None:
    (came,) = compared(tmp_path / "1", None, MAIL + "INSERT INTO mail VALUES (1,'a');").databases
    assert (came.change, came.tables[0].change, came.tables[0].n_added) == ("appeared", "added", 1)
    (went,) = compared(tmp_path / "2", MAIL, None).databases
    assert (went.change, went.tables[0].change, went.tables[0].n_removed) == ("disappeared", "removed", 0)


def test_other_columns_are_a_change_of_the_table(tmp_path: Path) -> None:
    before = MAIL + "INSERT INTO mail VALUES (1,'a');"
    table = the_table(compared(tmp_path / "1", before, before + "ALTER TABLE mail ADD COLUMN read INT;"))
    assert (table.change, table.n_changed) == ("columns", 1)
    assert table.changed[0].after == {"id": 1, "subject": "a", "read": None}
    retyped = the_table(compared(tmp_path / "2", MAIL, MAIL.replace("TEXT", "BLOB")))
    assert (retyped.change, retyped.n_changed) == ("columns", 0)
    keyless = the_table(compared(tmp_path / "3", before, "CREATE TABLE mail (x); INSERT INTO mail VALUES (1), (2);"))
    assert (keyless.change, keyless.n_removed, keyless.n_added) == ("columns", 1, 2)


def test_the_order_of_columns_is_no_change(tmp_path: Path) -> None:
    after = "CREATE TABLE mail (subject TEXT, id INTEGER PRIMARY KEY); INSERT INTO mail VALUES ('a', 1);"
    assert compared(tmp_path, MAIL + "INSERT INTO mail VALUES (1,'a');", after).is_empty


def test_more_rows_than_may_be_listed_are_counted(tmp_path: Path) -> None:
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30) "
    table = the_table(compared(tmp_path, MAIL, MAIL + f"INSERT INTO mail {many} SELECT i, 'x' FROM n;", limit=10))
    assert (table.n_added, len(table.added), table.left_out) == (30, 10, 20)


def test_databases_of_two_encodings_are_compared(tmp_path: Path) -> None:
    script = "CREATE TABLE t (k TEXT PRIMARY KEY, v);"
    script += "INSERT INTO t VALUES ('é', 1), ('z', 2), ('\U0001f600', 3), ('\uffee', 4);"
    assert compared(tmp_path / "1", script, "PRAGMA encoding='UTF-16le';" + script).is_empty
    after = "PRAGMA encoding='UTF-16be';" + script + "DELETE FROM t WHERE v = 3;"
    assert the_table(compared(tmp_path / "2", script, after)).removed == [{"k": "\U0001f600", "v": 3}]


def test_a_search_index_differs_by_its_rows(tmp_path: Path) -> None:
    script = "CREATE VIRTUAL TABLE notes USING fts5(body); INSERT INTO notes VALUES ('a'), ('b');"
    table = the_table(compared(tmp_path, script, script + "UPDATE notes SET body = 'c' WHERE body = 'a';"))
    assert (table.name, table.added, table.removed) == ("notes", [{"body": "c"}], [{"body": "a"}])


# --- what a difference is for ----------------------------------------------------------------------------

SCHEMAS = {
    "by_number": ("CREATE TABLE by_number (id INTEGER PRIMARY KEY, v, w)", ("id",)),
    "by_text": ("CREATE TABLE by_text (id TEXT COLLATE NOCASE PRIMARY KEY, v, w) WITHOUT ROWID", ("id",)),
    "by_two": ("CREATE TABLE by_two (id, v, w, PRIMARY KEY (v, id))", ("v", "id")),
    "by_none": ("CREATE TABLE by_none (id, v, w)", ()),
}
VALUES = [
    *(None, "", "0", "a", "A", "é", "\0", 0, 1, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, 1.0, 0.5, -1e300),
    *(float("inf"), b"", b"\0", b"a", b"\xff\xfe", "x" * 300),
]


def random_tables(generator: random.Random, base: dict[str, list[Any]] | None) -> dict[str, list[Any]]:
    """Rows for each table: new ones, or those that are given with some dropped, changed and added."""
    tables = {}
    for name in SCHEMAS:
        rows = [] if base is None else [row for row in base[name] if generator.random() > 0.2]
        rows = [(row[0], generator.choice(VALUES), row[2]) if generator.random() < 0.2 else row for row in rows]
        for _ in range(generator.randrange(6)):
            key = generator.randrange(20) if name == "by_number" else generator.choice(VALUES[1:])
            rows.append((key, generator.choice(VALUES), generator.choice(VALUES)))
        tables[name] = rows
    return tables


def written_rows(file: Path, tables: dict[str, list[Any]]) -> dict[str, Counter[str]]:
    """Write what of these rows the tables take; the rows that are then there, as a difference would tell them."""
    there = {}
    with writing(file) as database:
        database.execute("BEGIN")
        for name, (schema, _) in SCHEMAS.items():
            database.execute(schema)
            database.executemany(f"INSERT OR IGNORE INTO {name} VALUES (?, ?, ?)", tables[name])
            rows = database.execute(f"SELECT * FROM {name}").fetchall()
            there[name] = Counter(repr(dict(zip("ivw", map(convert_value, row), strict=True))) for row in rows)
        database.execute("COMMIT")
    return there


def applied(table: TableDiff, rows: Counter[str]) -> Counter[str]:
    def text(row: dict[str, Any]) -> str:
        return repr(dict(zip("ivw", row.values(), strict=True)))

    rows = rows.copy()
    rows.subtract(Counter(map(text, [*table.removed, *(change.before for change in table.changed)])))
    assert min(rows.values(), default=0) >= 0, "a row was taken away that was not there"
    rows.update(Counter(map(text, [*table.added, *(change.after for change in table.changed)])))
    return +rows


def pairs_hold(directory: Path, seed: int, count: int) -> None:
    """Of random pairs of states, what the difference says makes the one the other, and no less would."""
    generator = random.Random(seed)
    for number in range(count):
        first = random_tables(generator, None)
        second = random_tables(generator, first if generator.random() < 0.8 else None)
        places = [directory / f"{number}-{side}" for side in ("before", "after")]
        states = [written_rows(place / "a.db", rows) for place, rows in zip(places, (first, second), strict=True)]
        for place in places:
            told(place, [StateFile(path="/a.db", present=True, file="a.db")])
        diff = diff_snapshots(*places)
        tables = {table.name: table for database in diff.databases for table in database.tables}
        for name in SCHEMAS:
            table = tables.get(name, TableDiff(name=name))
            assert applied(table, states[0][name]) == states[1][name], (seed, number, name)
            assert not (Counter(map(repr, table.added)) & Counter(map(repr, table.removed))), (seed, number, name)
            assert name in tables or states[0][name] == states[1][name], (seed, number, name)
        for place in places:
            for file in place.iterdir():
                file.unlink()


def test_a_difference_applied_to_the_one_state_gives_the_other(tmp_path: Path) -> None:
    pairs_hold(tmp_path, 6, 40)


@pytest.mark.long
def test_differences_of_a_thousand_states(tmp_path: Path) -> None:
    for seed in range(3):
        pairs_hold(tmp_path, seed, 400)


def test_a_table_much_larger_than_its_difference_is_compared(tmp_path: Path) -> None:
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) "
    script = MAIL + f"INSERT INTO mail {many} SELECT i, 'subject ' || i FROM n;"
    table = the_table(compared(tmp_path, script, script + "UPDATE mail SET subject = '' WHERE id % 2000 = 0;"))
    assert (table.n_changed, table.n_added, table.n_removed) == (10, 0, 0)


def test_sqlite_itself_agrees_on_the_order(tmp_path: Path) -> None:
    """What the merge stands on: values of all kinds, sorted here and there."""
    from benchflow.planes.environment.rows import make_sort_key

    generator = random.Random(6)
    values = [*VALUES, *(generator.uniform(-(2**63), 2**63) for _ in range(50)), *(2**53 + n for n in range(5))]
    with sqlite3.connect(tmp_path / "o.db") as database:
        database.execute("CREATE TABLE t (v)")
        database.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
        there = [row[0] for row in database.execute("SELECT v FROM t ORDER BY v COLLATE BINARY")]
    database.close()
    assert [make_sort_key((value,)) for value in there] == sorted(make_sort_key((value,)) for value in values)
