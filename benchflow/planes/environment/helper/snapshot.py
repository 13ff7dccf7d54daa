"""Captures the databases of a sandbox as of one moment. Run inside it, as root.

A process that dies here, at any point, leaves what the next call with the same request completes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import time
from typing import Any

from benchflow.planes.environment.helper.shared import (
    Failure,
    about,
    alone,
    connect,
    digest,
    real,
    remove_tree,
    run,
    sync,
)

ATTEMPT = 2.0


class Live:
    """A declared database: where it really is, and the connections that keep it still."""

    def __init__(self, path: str, place: str) -> None:
        self.path, self.place = path, place
        self.status: os.stat_result | None = None
        self.open: list[sqlite3.Connection] = []

    def look(self) -> bool:
        try:
            self.status = os.stat(self.place)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not stat.S_ISREG(self.status.st_mode):
            raise Failure("not-a-database", "is not a file", self.path)
        return True

    def hold(self, patience: float) -> None:
        """Keep writers out."""
        with about(self.path):
            self.open.append(connect(self.place, patience))
            self.open[0].execute("BEGIN IMMEDIATE")

    def view(self, patience: float) -> None:
        """Begin to read: what this connection sees stays as it is now."""
        with about(self.path):
            reader = connect(self.place, patience)
            self.open.append(reader)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def let_write(self) -> None:
        """Let writers go on where they cannot disturb a reader: beside a write-ahead log."""
        if self.open[1].execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            self.open[0].execute("ROLLBACK")

    def close(self) -> None:
        while self.open:
            self.open.pop().close()


def hold_all(databases: list[Live], patience: float) -> None:
    """Hold all at one moment. Giving up and beginning again is what a service in the opposite order needs."""
    deadline = time.monotonic() + patience
    while True:
        left = deadline - time.monotonic()
        try:
            for database in databases:
                database.hold(max(0.0, min(left, ATTEMPT)))
            for database in databases:
                database.view(ATTEMPT)
            for database in databases:
                database.let_write()
            return
        except Failure as failure:
            for database in databases:
                database.close()
            if failure.kind != "busy" or time.monotonic() >= deadline:
                raise


def snapshot(request: dict[str, Any]) -> dict[str, Any]:
    directory, name = request["directory"], request["name"]
    with about(directory):
        os.makedirs(directory, exist_ok=True)
        os.chmod(directory, 0o700)
    with alone(directory, request["wait"]):
        final, part = os.path.join(directory, name), os.path.join(directory, f".{name}.part")
        with contextlib.suppress(FileNotFoundError), open(os.path.join(final, "snapshot.json")) as file:
            known: dict[str, Any] = json.load(file)
            return known
        for left in os.listdir(directory):
            if left.startswith(".") and left.endswith(".part"):
                remove_tree(os.path.join(directory, left))
        try:
            with about(directory):
                os.mkdir(part, 0o700)
            return take(request, part, final)
        except BaseException:
            remove_tree(part)
            raise


def take(request: dict[str, Any], part: str, final: str) -> dict[str, Any]:
    began = time.monotonic()
    known: dict[tuple[int, int], str] = {}
    declared = [Live(path, real(path, request["foreign"])) for path in sorted(set(request["paths"]))]
    present = [database for database in declared if database.look()]
    for database in present:
        assert database.status
        other = known.setdefault((database.status.st_dev, database.status.st_ino), database.path)
        if other != database.path:
            raise Failure("twice", f"is the same file as {other}", database.path)
    fence = os.urandom(16).hex()
    try:
        hold_all(present, request["patience"])
        taken_at = time.time()
        for database in present:
            with about(database.path):
                copy(database, part + "/files" + database.path)
    finally:
        for database in declared:
            database.close()
    files = []
    for database in declared:
        with about(database.path):
            files.append(recorded(database, part, request["fence_table"], fence))
    answer = {"name": request["name"], "directory": final, "fence": fence, "files": files, "taken_at": taken_at}
    answer["seconds"] = time.monotonic() - began
    with about(request["directory"]):
        with open(os.path.join(part, "snapshot.json"), "w") as file:
            json.dump(answer, file)
        for at, _, names in os.walk(part):
            for each in (*names, "."):
                sync(os.path.join(at, each))
        remove_tree(final)
        os.rename(part, final)
        sync(request["directory"])
    return answer


def copy(database: Live, target: str) -> None:
    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
    taken = sqlite3.connect(target, isolation_level=None)
    try:
        # What is lost when the machine goes down is a copy that nobody was promised yet.
        taken.execute("PRAGMA synchronous=OFF")
        taken.execute("PRAGMA journal_mode=MEMORY")
        database.open[1].backup(taken, pages=-1)
    finally:
        taken.close()
        database.close()


def recorded(database: Live, part: str, table: str, fence: str) -> dict[str, Any]:
    """What is known of a copy, once it has its fence. A new connection, since only that learns the text's encoding."""
    if database.status is None:
        return {"path": database.path, "present": False}
    name = "files" + database.path
    target = os.path.join(part, name)
    taken = sqlite3.connect(target, isolation_level=None)
    try:
        taken.execute("PRAGMA locking_mode=EXCLUSIVE")
        taken.execute("PRAGMA synchronous=OFF")
        taken.execute(f"DROP TABLE IF EXISTS {table}")
        taken.execute(f"CREATE TABLE {table} (nonce TEXT NOT NULL)")
        taken.execute(f"INSERT INTO {table} VALUES (?)", (fence,))
    finally:
        taken.close()
    status = database.status
    known = {"path": database.path, "present": True, "file": name, "sha256": digest(target)}
    owner = {"mode": stat.S_IMODE(status.st_mode), "uid": status.st_uid, "gid": status.st_gid}
    return {**known, "size": os.path.getsize(target), **owner}


if __name__ == "__main__":
    run(snapshot)
