"""A write to the world, to check that it is rolled back: a row that SQLite inserts, or a request to a service.

A manifest does not declare how to write to its services. All state is in SQLite databases, so that another process of
the sandbox can insert a row into a table of its own; a user who knows a request that writes can give that instead.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import ConfigError, StateError, WorldError

TABLE = "benchflow_env_check"

_INSERT = f"""
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)
db.execute("BEGIN IMMEDIATE")
db.execute("CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY, mark TEXT)")
db.execute("INSERT INTO {TABLE} (mark) VALUES ('written')")
db.execute("COMMIT")
db.close()
"""
_POST = """
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
_POST_ARGUMENT = re.compile(r"(https?://(?:\[[^\]\s]*\]|[^/?#:\s]+)(?::\d+)?(?:[/?][^:\s]*)?)(?::(.*))?", re.S)


class Post(NamedTuple):
    """A POST request to a service."""

    url: str
    """URL as the sandbox sees it."""

    body: str


def parse_post(text: str) -> Post:
    """Parse `URL` or `URL:BODY`; a colon in the URL's path is written `%3A`. Raise `ConfigError` for other text."""
    match = _POST_ARGUMENT.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{text!r} is not URL or URL:BODY",
            key="--write",
            remedy="""write it like --write 'http://localhost:9001/messages:{"to": "alice"}'""",
        )
    return Post(match.group(1), match.group(2) or "")


class Writer:
    """Writer to a world, from within its sandbox."""

    def __init__(self, python: str) -> None:
        """Make it. python: name or path of the interpreter in the sandbox."""
        self._start = (python, "-I", "-c")

    async def insert(self, sandbox: Sandbox, path: str) -> None:
        """Insert a row into the table `TABLE` of a database, which is created. Raise `StateError` if that fails."""
        result = await sandbox.control('exec "$@"', *self._start, _INSERT, path)
        if result.return_code != 0:
            raise StateError(
                "a row could not be written", key=path, remedy="see why SQLite cannot", log_tail=result.stderr[-2000:]
            )

    async def send(self, sandbox: Sandbox, post: Post) -> str:
        """Send a request to a service; return a phrase about it. Raise `WorldError` unless its status is 2xx."""
        words = (*self._start, _POST, post.url, _guess_content_type(post.body), post.body)
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


def _guess_content_type(body: str) -> str:
    """Return the content type of a request's body: JSON if the body parses as JSON, else plain text."""
    try:
        json.loads(body)
    except ValueError:
        return "text/plain; charset=utf-8"
    return "application/json"
