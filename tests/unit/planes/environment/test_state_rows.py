"""Reading a snapshot: what SQLite tells apart stays apart, and equal rows have equal digests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from support.fetched import fetched, told, writing

from benchflow.contracts.environment import StateFile, WorldState
from benchflow.errors import StateError
from benchflow.planes.environment.world_state import FENCE_TABLE, read_state

MAIL = "CREATE TABLE mail (id INTEGER PRIMARY KEY, subject TEXT);"


def only_table(state: WorldState, name: str = "t") -> list[list[object]]:
    values = state.table("/data/a.db", name).values
    assert values is not None
    return values


def test_rows_come_in_the_order_of_the_key(tmp_path: Path) -> None:
    script = "CREATE TABLE t (b TEXT, a TEXT, n, PRIMARY KEY (a, b));"
    directory = fetched(tmp_path, a=script + "INSERT INTO t VALUES ('y','x',1), ('x','y',2), ('x','x',3);")
    assert only_table(read_state(directory, rows=3)) == [["x", "x", 3], ["y", "x", 1], ["x", "y", 2]]
    assert read_state(directory, rows=3).table("/data/a.db", "t").columns == ("b", "a", "n")


def test_values_of_more_rows_than_asked_for_are_left_out(tmp_path: Path) -> None:
    directory = fetched(tmp_path, a=MAIL + "INSERT INTO mail VALUES (1,'a'), (2,'b');")
    told_of = [read_state(directory, rows=rows).table("/data/a.db", "mail") for rows in (None, 1, 2)]
    assert [table.values for table in told_of] == [None, None, [[1, "a"], [2, "b"]]]
    assert {table.rows for table in told_of} == {2}
    assert len({table.digest for table in told_of}) == 1


def test_every_value_survives_json(tmp_path: Path) -> None:
    script = """
        CREATE TABLE t (n INTEGER PRIMARY KEY, v);
        INSERT INTO t VALUES (1, NULL), (2, ''), (3, 0), (4, 0.0), (5, '0'), (6, x'00ff'), (7, 9223372036854775807),
            (8, 1e999), (9, -1e999), (10, CAST(x'ff41' AS TEXT)), (11, 'é' || char(0) || '✓'), (12, x'');
    """
    state = read_state(fetched(tmp_path, a=script), rows=100)
    again = WorldState.model_validate_json(state.model_dump_json())
    values = [value for _, value in only_table(again)]
    assert values == [
        *(None, "", 0, 0.0, "0", {"blob": "00ff"}, 2**63 - 1, {"real": "inf"}, {"real": "-inf"}),
        *({"text": "ff41"}, "é\0✓", {"blob": ""}),
    ]
    assert [type(value) for value in values[2:4]] == [int, float]


@pytest.mark.parametrize("other", ["''", "0", "0.0", "'0'", "x''", "x'30'"])
def test_values_of_the_same_look_have_other_digests(tmp_path: Path, other: str) -> None:
    script = "CREATE TABLE t (v); INSERT INTO t VALUES ({});"
    values = {"NULL", "''", "0", "0.0", "'0'", "x''", "x'30'"} - {other}
    digests = {
        read_state(fetched(tmp_path / str(n), a=script.format(v)), rows=None).digest for n, v in enumerate(values)
    }
    assert len(digests) == len(values)
    assert read_state(fetched(tmp_path / "o", a=script.format(other)), rows=None).digest not in digests


def test_the_digest_does_not_know_the_order_of_rows_nor_where_they_lie(tmp_path: Path) -> None:
    one = fetched(tmp_path / "1", a="CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'x'), (2, 'y'), (2, 'y');")
    script = "PRAGMA page_size=512; CREATE TABLE t (a, b); INSERT INTO t VALUES (9, 9), (2, 'y'), (2, 'y'), (1, 'x');"
    other = fetched(tmp_path / "2", a=script + "DELETE FROM t WHERE a = 9;")
    assert read_state(one, rows=9) == read_state(other, rows=9)
    third = fetched(tmp_path / "3", a="CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'x'), (2, 'y');")
    assert read_state(third, rows=None).digest != read_state(one, rows=None).digest


def test_what_is_not_the_worlds_own_is_left_out(tmp_path: Path) -> None:
    script = f"""
        CREATE TABLE {FENCE_TABLE} (nonce); INSERT INTO {FENCE_TABLE} VALUES ('x');
        CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO t DEFAULT VALUES; ANALYZE;
        CREATE VIEW v AS SELECT * FROM t;
    """
    (database,) = read_state(fetched(tmp_path, a=script), rows=None).databases
    assert [table.name for table in database.tables] == ["t"]


def test_an_index_for_search_is_told_by_its_rows(tmp_path: Path) -> None:
    script = """
        CREATE VIRTUAL TABLE notes USING fts5(title, body); INSERT INTO notes VALUES ('a', 'hello world');
        CREATE VIRTUAL TABLE places USING rtree(id, x0, x1); INSERT INTO places VALUES (1, 0.0, 2.0);
        CREATE TABLE notes_by_hand (n);
    """
    state = read_state(fetched(tmp_path, a=script), rows=9)
    assert [table.name for table in state.databases[0].tables] == ["notes", "notes_by_hand", "places"]
    assert only_table(state, "notes") == [["a", "hello world"]]


def test_an_index_without_rows_or_of_an_unknown_kind_is_told_by_what_it_keeps(tmp_path: Path) -> None:
    script = """
        CREATE VIRTUAL TABLE notes USING fts5(body, content=''); INSERT INTO notes(rowid, body) VALUES (1, 'hello');
        CREATE TABLE vectors_chunks (n); PRAGMA writable_schema=ON;
        INSERT INTO sqlite_master
            VALUES ('table', 'vectors', 'vectors', 0, 'CREATE VIRTUAL TABLE vectors USING vec0(e)');
    """
    names = {table.name for table in read_state(fetched(tmp_path, a=script), rows=9).databases[0].tables}
    assert {"notes_data", "vectors_chunks"} <= names
    assert not {"notes", "vectors"} & names


def test_generated_columns_tables_without_rowid_and_utf16_are_read(tmp_path: Path) -> None:
    script = """
        PRAGMA encoding='UTF-16le';
        CREATE TABLE t (k TEXT PRIMARY KEY, n INT, twice INT AS (n * 2), kept INT AS (n * 3) STORED) WITHOUT ROWID;
        INSERT INTO t (k, n) VALUES ('é', 1), ('Z', 2);
    """
    state = read_state(fetched(tmp_path, a=script), rows=9)
    assert state.table("/data/a.db", "t").columns == ("k", "n", "twice", "kept")
    assert only_table(state) == [["Z", 2, 4, 6], ["é", 1, 2, 3]]


def test_names_of_tables_and_columns_may_be_anything(tmp_path: Path) -> None:
    state = read_state(fetched(tmp_path, a='CREATE TABLE "a ""b""; --" ("select" PRIMARY KEY, "x y")'), rows=9)
    assert state.table("/data/a.db", 'a "b"; --').columns == ("select", "x y")


def test_a_missing_database_is_not_an_empty_one(tmp_path: Path) -> None:
    missing = read_state(fetched(tmp_path / "1", a=None), rows=9)
    empty = read_state(fetched(tmp_path / "2", a=""), rows=9)
    assert [database.present for database in (*missing.databases, *empty.databases)] == [False, True]
    assert missing.digest != empty.digest


def test_reading_writes_nothing(tmp_path: Path) -> None:
    directory = fetched(tmp_path, a="PRAGMA journal_mode=WAL;" + MAIL)
    file = directory / "files/data/a.db"
    before = hashlib.sha256(file.read_bytes()).hexdigest(), sorted(path.name for path in file.parent.iterdir())
    read_state(directory, rows=9)
    assert (
        hashlib.sha256(file.read_bytes()).hexdigest(),
        sorted(path.name for path in file.parent.iterdir()),
    ) == before


def test_a_damaged_copy_is_named(tmp_path: Path) -> None:
    directory = fetched(tmp_path, a=MAIL + "INSERT INTO mail VALUES (1, 'x');")
    with (directory / "files/data/a.db").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 4000)
    with pytest.raises(StateError) as failed:
        read_state(directory, rows=9)
    assert failed.value.key == "/data/a.db"


def test_a_directory_without_a_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="not a snapshot"):
        read_state(tmp_path, rows=None)


def test_equal_basenames_are_two_databases(tmp_path: Path) -> None:
    files = []
    for place in ("x", "y"):
        with writing(tmp_path / f"files/{place}/a.db") as database:
            database.execute(f"CREATE TABLE {place} (n)")
        files.append(StateFile(path=f"/{place}/a.db", present=True, file=f"files/{place}/a.db"))
    state = read_state(told(tmp_path, files), rows=None)
    assert [(each.path, each.tables[0].name) for each in state.databases] == [("/x/a.db", "x"), ("/y/a.db", "y")]
