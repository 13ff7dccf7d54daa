"""A small benchmark of one service, a ledger over SQLite, for tests of what the engine makes of a manifest."""

from __future__ import annotations

from pathlib import Path

from task_writer import BASE_IMAGE, write_script, write_task

LEDGER = '''\
#!/usr/bin/env python3
"""A ledger: GET /health, /all, /environ; POST /add/TEXT, /die."""
import json, os, sqlite3, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

if "--help" in sys.argv:
    print(__doc__)
    raise SystemExit(0)
path, port = sys.argv[1], int(sys.argv[2])
db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
db.execute("CREATE TABLE IF NOT EXISTS entries (n INTEGER PRIMARY KEY, text TEXT)")
print("the ledger is open", flush=True)
slow = float(os.environ.get("SLOW", "0"))
began = time.monotonic()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/health":
            self.answer(503 if time.monotonic() - began < slow else 200, {})
        elif self.path == "/environ":
            self.answer(200, dict(os.environ))
        else:
            self.answer(200, [text for text, in db.execute("SELECT text FROM entries ORDER BY n")])

    def do_POST(self):
        if self.path == "/die":
            print("somebody wants me to die", flush=True)
            os._exit(7)
        db.execute("INSERT INTO entries (text) VALUES (?)", [self.path.split("/")[-1]])
        self.answer(200, {})

    def log_message(self, *args):
        pass


ThreadingHTTPServer(("0.0.0.0", port), Handler).serve_forever()
'''

DOCKERFILE = f"""\
FROM {BASE_IMAGE}
COPY ledger /usr/local/bin/ledger
RUN chmod 755 /usr/local/bin/ledger && mkdir -p /data
WORKDIR /root
"""

SERVICES = """\
[[environment.services]]
name = "ledger"
command = "ledger /data/ledger.db 9000"
port = 9000

[[environment.services]]
name = "absent"
command = "not-in-this-image --port 9001"
port = 9001
"""

STATE = '[environment.state]\npaths = ["/data/ledger.db", "/data/absent.db"]\n'

GET = (
    "python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())' http://localhost:9000"
)
POST = (
    "python3 -c 'import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], method=\"POST\"))' "
    "http://localhost:9000"
)


def manifest(more: str = "", *, services: str = SERVICES, state: str = STATE, head: str = "") -> str:
    """A manifest of framework-started services. head: keys of `[environment]`; more: further tables."""
    top = f'[environment]\nname = "ledger"\nbase_image = "{BASE_IMAGE}"\nowns_lifecycle = false\n{head}\n'
    chosen = '[environment.task_selection]\nmechanism = "image"\n' if "task_selection" not in more else ""
    return f"{top}\n{chosen}\n{more}\n{services}\n{state}"


def write_package(root: Path, tasks: dict[str, dict[str, str]], text: str) -> Path:
    """A package directory. tasks: by name, the keyword arguments of `write_task`."""
    for name, options in tasks.items():
        task = write_task(root / "tasks", name, **({"dockerfile": DOCKERFILE} | options))
        write_script(task / "environment" / "ledger", "")
        (task / "environment" / "ledger").write_text(LEDGER)
    (root / "environment.toml").write_text(text)
    return root
