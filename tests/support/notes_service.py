#!/usr/bin/env python3
"""A small, real service for the tests of worlds: notes over HTTP, in SQLite with a write-ahead log.

Run in a sandbox, by whichever Python is there. `notes --db FILE --port N [--ill | --late SEC | --slow SEC | --daemon]`.
"""

import argparse
import http.server
import json
import os
import pathlib
import sqlite3
import sys
import threading
import time


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ill", action="store_true", help="never healthy")
    parser.add_argument("--late", type=float, default=0.0, help="seconds until it listens")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds that an answer about its health takes")
    parser.add_argument("--daemon", action="store_true", help="goes into the background")
    return parser.parse_args()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/health":
            time.sleep(options.slow)
            self.answer(503 if options.ill else 200, {"ok": not options.ill})
        elif self.path == "/env":
            self.answer(200, dict(os.environ))
        elif self.path == "/cwd":
            self.answer(200, str(pathlib.Path.cwd()))
        else:
            with lock:
                self.answer(200, [row[0] for row in database.execute("SELECT text FROM notes ORDER BY id")])

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if text.startswith("die "):
            print("told to die", flush=True)
            os._exit(int(text.split()[1]))
        with lock, database:
            database.execute("INSERT INTO notes (text) VALUES (?)", (text,))
        self.answer(200, "noted")

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


options = parse()
print("notes begins", sys.argv[1:], flush=True)
if options.daemon and os.fork():
    os._exit(0)
time.sleep(options.late)
lock = threading.Lock()
database = sqlite3.connect(options.db, check_same_thread=False)
database.execute("PRAGMA journal_mode=WAL")
database.execute("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)")
http.server.ThreadingHTTPServer(("0.0.0.0", options.port), Handler).serve_forever()
