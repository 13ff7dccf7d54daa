import sqlite3


def query(text):
    return sqlite3.connect("file:/var/lib/shop/shop.db?mode=ro", uri=True).execute(text).fetchall()


def test_rows():
    rows = query("SELECT id, first, last FROM customers ORDER BY id")
    assert rows == [(1, "Ada", "Lovelace"), (2, "Alan", "Turing"), (3, "Grace", "Hopper")]


def test_schema():
    assert {row[1] for row in query("PRAGMA table_info(customers)")} == {"id", "first", "last"}
    assert query("PRAGMA user_version") == [(2,)]
    indexes = [row[1] for row in query("PRAGMA index_list(customers)")]
    assert any(query(f"PRAGMA index_info({name})")[0][2] == "last" for name in indexes)
