#!/usr/bin/env python3
"""A small, real service for the tests of worlds: notes over HTTP, in SQLite with a write-ahead log.

Run in a sandbox, by whichever Python is there. It is started many times, and so imports little.
"""

import json
import os
import socket
import sqlite3
import sys
import threading
import time

USAGE = "usage: notes --db FILE --port N [--ill | --late SEC | --slow SEC | --daemon]"


def parse(words):
    if "--help" in words:
        print(USAGE)
        sys.exit()
    given = {"late": "0", "slow": "0"}
    while words:
        name = words.pop(0).removeprefix("--")
        if name in ("ill", "daemon"):
            given[name] = "yes"
        elif name in ("db", "port", "late", "slow") and words:
            given[name] = words.pop(0)
        else:
            break
    if words or not {"db", "port"} <= given.keys():
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    return given


def serve(link):
    with link, link.makefile("rb") as stream:
        method, path = stream.readline().decode().split()[:2]
        length = 0
        while line := stream.readline().strip():
            name, _, value = line.decode().partition(":")
            if name.lower() == "content-length":
                length = int(value)
        status, content = post(stream.read(length).decode()) if method == "POST" else get(path)
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 {status} so\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        link.sendall(head.encode() + body)


def get(path):
    if path == "/health":
        # For a service that is ill, or slow to say how it is.
        time.sleep(float(options["slow"]))
        return 503 if "ill" in options else 200, {"is_healthy": "ill" not in options}
    if path == "/env":
        return 200, dict(os.environ)
    if path == "/cwd":
        return 200, os.getcwd()  # noqa: PTH109 what it would import takes long
    with lock:
        return 200, [row[0] for row in database.execute("SELECT text FROM notes ORDER BY id")]


def post(text):
    if text.startswith("die "):
        print("told to die", flush=True)
        os._exit(int(text.split()[1]))
    with lock, database:
        database.execute("INSERT INTO notes (text) VALUES (?)", (text,))
    return 200, "noted"


options = parse(sys.argv[1:])
print("notes begins", sys.argv[1:], flush=True)
if "daemon" in options and os.fork():
    os._exit(0)
time.sleep(float(options["late"]))
lock = threading.Lock()
database = sqlite3.connect(options["db"], check_same_thread=False)
database.execute("PRAGMA journal_mode=WAL")
database.execute("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)")
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("0.0.0.0", int(options["port"])))
server.listen(100)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
