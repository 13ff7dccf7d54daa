#!/usr/bin/env python3
"""A service of tests' worlds, put into their images: a ledger in SQLite.

GET /health, /environ, anything else: all entries. POST /add/TEXT, /die. Arguments: the database, the port. Healthy only
after $SLOW seconds.
"""

import json
import os
import sqlite3
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    db: sqlite3.Connection
    healthy_at: float

    def answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(503 if time.monotonic() < self.healthy_at else 200, {})
        elif self.path == "/environ":
            self.answer(200, dict(os.environ))
        else:
            self.answer(200, [text for (text,) in self.db.execute("SELECT text FROM entries ORDER BY n")])

    def do_POST(self) -> None:
        if self.path == "/die":
            print("somebody wants me to die", flush=True)
            os._exit(7)
        self.db.execute("INSERT INTO entries (text) VALUES (?)", [self.path.split("/")[-1]])
        self.answer(200, {})

    def log_message(self, format: str, *args: Any) -> None:
        pass


def main() -> None:
    if "--help" in sys.argv:
        print(__doc__)
        return
    path, port = sys.argv[1], int(sys.argv[2])
    Handler.db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    Handler.db.execute("PRAGMA journal_mode = WAL")
    Handler.db.execute("CREATE TABLE IF NOT EXISTS entries (n INTEGER PRIMARY KEY, text TEXT)")
    Handler.healthy_at = time.monotonic() + float(os.environ.get("SLOW", "0"))
    print("the ledger is open", flush=True)
    ThreadingHTTPServer(("0.0.0.0", port), Handler).serve_forever()


main()
