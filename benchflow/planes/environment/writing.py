"""A write to the world, to see whether it is rolled back: a row by SQLite itself, or a request to a service.

A manifest says nothing of how its services are written to. What holds for every world is that its databases are
SQLite's, so that another process of the sandbox can put a row into a table of its own; whoever knows a request that
writes can give that instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import ConfigError, StateError, WorldError
from benchflow.planes.environment.interpreter import Kind

TABLE = "benchflow_env_check"

_PYTHON_INSERT = f"""
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)
db.execute("BEGIN IMMEDIATE")
db.execute("CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY, mark TEXT)")
db.execute("INSERT INTO {TABLE} (mark) VALUES ('written')")
db.execute("COMMIT")
db.close()
"""
_NODE_INSERT = f"""
import {{ DatabaseSync }} from "node:sqlite";
const db = new DatabaseSync(process.argv[1], {{ timeout: 10000 }});
db.exec("BEGIN IMMEDIATE");
db.exec("CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY, mark TEXT)");
db.exec("INSERT INTO {TABLE} (mark) VALUES ('written')");
db.exec("COMMIT");
db.close();
"""
_PYTHON_POST = """
import http.client, sys, urllib.error, urllib.request
url, kind, body = sys.argv[1:]
request = urllib.request.Request(url, body.encode(), {"Content-Type": kind}, method="POST")
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    with opener.open(request, timeout=30) as answer:
        print(answer.status)
except urllib.error.HTTPError as error:
    print(error.code, error.read(500).decode("utf-8", "replace"))
except (OSError, http.client.HTTPException) as error:
    print("-", getattr(error, "reason", error))
"""
_NODE_POST = """
const [url, kind, body] = process.argv.slice(1);
try {
  const answer = await fetch(url, {
    method: "POST", body, headers: { "Content-Type": kind }, signal: AbortSignal.timeout(30000),
  });
  const text = await answer.text();
  console.log(answer.status, answer.ok ? "" : text.slice(0, 500));
} catch (error) {
  console.log("-", error.cause?.message || error.message);
}
"""
_START = {"python3": ("-I", "-c"), "node": ("--no-warnings", "--input-type=module", "-e")}
_GIVEN = re.compile(r"(https?://(?:\[[^\]\s]*\]|[^/?#:\s]+)(?::\d+)?(?:[/?][^:\s]*)?)(?::(.*))?", re.S)


class Post(NamedTuple):
    """A POST request, as the sandbox sees its services."""

    url: str
    body: str


def parse_post(text: str) -> Post:
    """`URL` or `URL:BODY`; a colon in the URL's path is written `%3A`. Raises `ConfigError`."""
    match = _GIVEN.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{text!r} is not URL or URL:BODY",
            key="--write",
            remedy="""write it like --write 'http://localhost:9001/messages:{"to": "alice"}'""",
        )
    return Post(match.group(1), match.group(2) or "")


class Writer:
    """Writes to a world from within its sandbox. program, kind: of the interpreter that works there."""

    def __init__(self, program: Sequence[str], kind: Kind) -> None:
        self._start = (*program, *_START[kind])
        self._insert = _PYTHON_INSERT if kind == "python3" else _NODE_INSERT
        self._post = _PYTHON_POST if kind == "python3" else _NODE_POST

    async def insert(self, sandbox: Sandbox, path: str) -> None:
        """Put a row into a database, in a table of its own. Raises `StateError`."""
        result = await sandbox.control('exec "$@"', *self._start, self._insert, path)
        if result.return_code != 0:
            raise StateError(
                "a row could not be written", key=path, remedy="see why SQLite cannot", log_tail=result.stderr[-2000:]
            )

    async def send(self, sandbox: Sandbox, post: Post) -> str:
        """Send a request to a service; what was done, in words. Raises `WorldError` unless it succeeds."""
        words = (*self._start, self._post, post.url, _kind_of(post.body), post.body)
        result = await sandbox.control('exec "$@"', *words)
        status, _, said = result.stdout.strip().partition(" ")
        if result.return_code != 0 or not status.startswith("2"):
            why = f"HTTP {status}" if status.isdigit() else "no answer"
            raise WorldError(
                f"POST {post.url}: {why}{': ' if said else ''}{said}",
                key="--write",
                remedy="give a request that a service of this world takes",
                log_tail=result.stderr[-2000:] or None,
            )
        return f"POST {post.url}: HTTP {status}"


def _kind_of(body: str) -> str:
    try:
        json.loads(body)
    except ValueError:
        return "text/plain; charset=utf-8"
    return "application/json"
