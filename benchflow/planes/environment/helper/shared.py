"""Shared part of the helper programs: requests, responses and failures, files, and SQLite.

Its text is sent in front of the program's.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import signal
import sqlite3
import sys
from typing import Any, Callable, Iterator  # noqa: UP035
from urllib.parse import quote

NEVER = ("/proc", "/sys", "/dev", "/run/benchflow", "/var/lib/benchflow")
PIECE = 1 << 20


class HelperError(Exception):
    """A failure to report to the engine."""

    def __init__(self, kind: str, message: str, path: str | None = None) -> None:
        """Make it, of a kind that the engine knows; `path` is the declared one in question."""
        super().__init__(message)
        self.kind, self.message, self.path = kind, message, path


def classify_error(error: BaseException) -> str:
    """Return the kind of an error of the file system or SQLite; of SQLite by its text: old Pythons have no codes."""
    if isinstance(error, OSError):
        full, fixed = error.errno in (errno.ENOSPC, errno.EDQUOT), error.errno == errno.EROFS
        return "full" if full else "read-only" if fixed else "state"
    words = str(error)
    kinds = {"locked": "busy", "is full": "full", "not a database": "not-a-database", "malformed": "not-a-database"}
    return next((kind for word, kind in {**kinds, "readonly": "read-only"}.items() if word in words), "state")


@contextlib.contextmanager
def report_errors(path: str) -> Iterator[None]:
    """Turn errors of the file system and SQLite in a block into a `HelperError` about the path."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        kind = classify_error(error)
        words = {"full": "the sandbox's disk is full", "busy": "a process holds the database"}
        raise HelperError(kind, words.get(kind, str(error)), path) from error


def connect(path: str, patience: float, mode: str = "mode=rw") -> sqlite3.Connection:
    """Open an existing database in autocommit mode; `patience`: seconds to wait for its locks."""
    uri = f"file:{quote(path)}?{mode}"
    return sqlite3.connect(uri, uri=True, timeout=patience, isolation_level=None)


def resolve_path(path: str, foreign: list[str]) -> str:
    """Return a declared path with its links resolved. Raise `HelperError` if it leads out of the world's own files."""
    place = os.path.realpath(path)
    never = () if place.startswith("/dev/shm/") else NEVER
    for root in (*never, *map(os.path.realpath, foreign)):
        if place == root or place.startswith(root.rstrip("/") + "/"):
            raise HelperError("foreign", f"leads to {place}, which is not the sandbox's own", path)
    return place


def sync(path: str) -> None:
    """Flush a file or directory to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_tree(directory: str) -> None:
    """Remove a directory with all that it contains, following no links. Success if there is none."""
    for at, names, files in os.walk(directory, topdown=False):
        for name in files:
            os.unlink(os.path.join(at, name))
        for name in names:
            place = os.path.join(at, name)
            os.unlink(place) if os.path.islink(place) else os.rmdir(place)
    if os.path.isdir(directory):
        os.rmdir(directory)


@contextlib.contextmanager
def lock_directory(directory: str, patience: float) -> Iterator[None]:
    """Lock a directory of snapshots for a block, against a helper whose caller died. Raise `HelperError` on timeout.

    The kernel drops the lock of a process that ends.
    """
    lock = sqlite3.connect(os.path.join(directory, ".lock"), timeout=patience, isolation_level=None)
    try:
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            raise HelperError(classify_error(error), f"the snapshots are locked: {error}", directory) from error
        yield
    finally:
        lock.close()


def compute_digest(path: str) -> str:
    """Return the SHA-256 of a file, in hex."""
    seen = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(PIECE), b""):
            seen.update(piece)
    return seen.hexdigest()


def run(operation: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Run an operation on the request, whose pieces are the arguments, and print the response as one line."""
    request = json.loads("".join(sys.argv[1:]))
    # SIGALRM ends this process once its caller no longer waits.
    signal.alarm(int(request["timeout"]) + 1)
    os.umask(0o077)
    try:
        answer = operation(request)
    except HelperError as failure:
        answer = {"error": {"kind": failure.kind, "message": failure.message, "path": failure.path}}
    except (OSError, sqlite3.Error) as error:
        answer = {"error": {"kind": classify_error(error), "message": str(error), "path": None}}
    print("benchflow " + json.dumps(answer), flush=True)
