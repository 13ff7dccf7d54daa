import sqlite3


def query(text):
    return sqlite3.connect("file:/var/lib/orders/orders.db?mode=ro", uri=True).execute(text).fetchall()


def test_rows():
    assert query("SELECT count(*), sum(amount) FROM orders") == [(4, 100)]
    assert query("SELECT customer FROM orders WHERE id = 3") == [("Eve",)]


def test_types():
    columns = {name: (kind, key) for _, name, kind, _, _, key in query("PRAGMA table_info(orders)")}
    assert columns["id"][1] == 1
    assert columns["amount"][0].upper() in ("INTEGER", "INT", "NUMERIC", "REAL")
