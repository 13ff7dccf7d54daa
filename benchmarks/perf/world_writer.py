"""The world that `state.py` measures: a database of some size with a write-ahead log, and somebody who always writes.

    python3 world_writer.py DATABASE PORT     serve: HTTP on localhost, healthy at once
    python3 world_writer.py DATABASE --fill MB

It runs inside sandboxes, as a service.
"""

import http.server
import sqlite3
import sys
import threading
import time

EVERY = 0.002


def opened(path):
    database = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    return database


def fill(path, megabytes):
    database = opened(path)
    database.execute("CREATE TABLE mail (id INTEGER PRIMARY KEY, body BLOB)")
    database.execute("CREATE TABLE ticks (n INTEGER PRIMARY KEY, at REAL)")
    database.execute("BEGIN")
    for _ in range(megabytes * 256):
        database.execute("INSERT INTO mail (body) VALUES (randomblob(4000))")
    database.execute("COMMIT")
    database.close()


def write(path):
    database = opened(path)
    while True:
        database.execute("INSERT INTO ticks (at) VALUES (?)", (time.time(),))
        time.sleep(EVERY)


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204)
        self.end_headers()

    def log_message(self, *words):
        pass


if sys.argv[2] == "--fill":
    fill(sys.argv[1], int(sys.argv[3]))
else:
    threading.Thread(target=write, args=(sys.argv[1],), daemon=True).start()
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Health).serve_forever()
