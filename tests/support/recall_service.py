#!/usr/bin/env python3
"""A service of tests' worlds that keeps actions twice: in SQLite, and in a log in its memory.

GET /health, /rows: those in the database, /log: those in memory, /clock: what is never the same; POST /act/TEXT.
Arguments: the database, the port.
"""

import json
import sqlite3
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

if "--help" in sys.argv:
    print(__doc__)
    sys.exit()
database = sqlite3.connect(sys.argv[1], check_same_thread=False, isolation_level=None)
database.execute("CREATE TABLE IF NOT EXISTS actions (n INTEGER PRIMARY KEY, text TEXT)")
log: list[str] = []


class Handler(BaseHTTPRequestHandler):
    def answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200 if value is not None else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        rows = [text for (text,) in database.execute("SELECT text FROM actions ORDER BY n")]
        answers = {"/health": {}, "/rows": rows, "/log": {"actions": log}, "/clock": {"at": time.monotonic_ns()}}
        self.answer(answers.get(self.path))

    def do_POST(self) -> None:
        text = self.path.rpartition("/")[2]
        database.execute("INSERT INTO actions (text) VALUES (?)", [text])
        log.append(text)
        self.answer({})

    def log_message(self, format: str, *args: Any) -> None:
        pass


ThreadingHTTPServer(("0.0.0.0", int(sys.argv[2])), Handler).serve_forever()
