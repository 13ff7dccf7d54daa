"""A world of three databases with write-ahead logs, and one process that has them open all the time.

    python3 ledger_service.py DIRECTORY

One of its threads writes the same number to all three in turn, again and again, and rests for moments, so that others
have the core, too. The other does what it is told, a line of JSON through the pipe `in`, and answers through the pipe
`out`: `run` an SQL script in one of them, `read` the notes and numbers through connections that are as old as the
process, `pause` and `resume` the other thread.
"""

import json
import os
import sqlite3
import sys
import threading
import time
from pathlib import Path

NAMES = ("a", "b", "c")
directory = Path(sys.argv[1])
turn = threading.Lock()


def opened():
    made = {}
    for name in NAMES:
        made[name] = sqlite3.connect(
            f"{directory}/{name}.db", isolation_level=None, timeout=30, check_same_thread=False
        )
        made[name].execute("PRAGMA journal_mode=WAL")
        made[name].execute("PRAGMA synchronous=OFF")
    return made


def number(databases, name):
    return databases[name].execute("SELECT n FROM ticks").fetchone()[0]


def count(databases, stopped):
    with turn:
        if not stopped.is_set():
            # After a restore in the middle of a turn, that turn is finished first.
            write(databases, NAMES[1:], number(databases, "a"))
    while not stopped.is_set():
        n = None
        for name in NAMES:
            with turn:
                if stopped.is_set():
                    return
                n = number(databases, "a") + 1 if n is None else n
                write(databases, [name], n)
            time.sleep(0.0002)


def write(databases, names, n):
    for name in names:
        databases[name].execute("UPDATE ticks SET n = ?", (n,))


def begin(databases):
    stopped = threading.Event()
    threading.Thread(target=count, args=(databases, stopped), daemon=True).start()
    return stopped


def main():
    mine, its = opened(), opened()
    for name in NAMES:
        mine[name].execute("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)")
        mine[name].execute("CREATE TABLE IF NOT EXISTS ticks (n INTEGER)")
        mine[name].execute("INSERT INTO ticks SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM ticks)")
    stopped = begin(its)
    for pipe in ("in", "out"):
        if not (directory / pipe).exists():
            os.mkfifo(directory / pipe)
    (directory / "pid").write_text(str(os.getpid()))
    while True:
        with (directory / "in").open() as pipe:
            order = json.loads(pipe.readline())
        answer = None
        if order["do"] == "run":
            mine[order["name"]].executescript(order["script"])
        elif order["do"] == "read":
            notes = {name: dict(mine[name].execute("SELECT id, text FROM notes")) for name in NAMES}
            answer = {"notes": notes, "ticks": [number(mine, name) for name in NAMES]}
        elif order["do"] == "pause":
            with turn:
                stopped.set()
        elif order["do"] == "resume":
            stopped = begin(its)
        (directory / "out").write_text(json.dumps(answer))


main()
