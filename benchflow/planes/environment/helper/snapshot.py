"""Copies the databases of a sandbox as of one moment. Run inside the sandbox, as root.

If the process dies, at any point, the next call with the same request completes the snapshot.
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
    HelperError,
    compute_digest,
    connect,
    lock_directory,
    remove_tree,
    report_errors,
    resolve_path,
    run,
    sync,
)

ATTEMPT = 2.0


class Live:
    """A declared database: its resolved path, and the connections that hold it still."""

    def __init__(self, path: str, place: str) -> None:
        """Make it, of the declared and the resolved path."""
        self.path, self.place = path, place
        self.status: os.stat_result | None = None
        self.open: list[sqlite3.Connection] = []

    def look(self) -> bool:
        """Store the file's status and return whether it exists. Raise `HelperError` if it is no regular file."""
        try:
            self.status = os.stat(self.place)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not stat.S_ISREG(self.status.st_mode):
            raise HelperError("not-a-database", "is not a file", self.path)
        return True

    def hold(self, patience: float) -> None:
        """Block writers (BEGIN IMMEDIATE)."""
        with report_errors(self.path):
            self.open.append(connect(self.place, patience))
            self.open[0].execute("BEGIN IMMEDIATE")

    def view(self, patience: float) -> None:
        """Begin a read transaction, which sees the database as it is now."""
        with report_errors(self.path):
            reader = connect(self.place, patience)
            self.open.append(reader)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def let_write(self) -> None:
        """Unblock writers if the database has a write-ahead log: there they do not disturb the reader."""
        if self.open[1].execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            self.open[0].execute("ROLLBACK")

    def close(self) -> None:
        """Close all connections, the latest first."""
        while self.open:
            self.open.pop().close()


def hold_all(databases: list[Live], patience: float) -> None:
    """Block the writers of all databases at once, and begin to read each. Raise `HelperError` if one stays busy.

    An attempt that fails releases all locks, for a service that takes them in the opposite order.
    """
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
        except HelperError as failure:
            for database in databases:
                database.close()
            if failure.kind != "busy" or time.monotonic() >= deadline:
                raise


def snapshot(request: dict[str, Any]) -> dict[str, Any]:
    """Take a snapshot, or return the record of the one that exists under this name."""
    directory, name = request["directory"], request["name"]
    with report_errors(directory):
        os.makedirs(directory, exist_ok=True)
        os.chmod(directory, 0o700)
    with lock_directory(directory, request["wait"]):
        final, part = os.path.join(directory, name), os.path.join(directory, f".{name}.part")
        with contextlib.suppress(FileNotFoundError), open(os.path.join(final, "snapshot.json")) as file:
            known: dict[str, Any] = json.load(file)
            return known
        for left in os.listdir(directory):
            if left.startswith(".") and left.endswith(".part"):
                remove_tree(os.path.join(directory, left))
        try:
            with report_errors(directory):
                os.mkdir(part, 0o700)
            return take_snapshot(request, part, final)
        except BaseException:
            remove_tree(part)
            raise


def take_snapshot(request: dict[str, Any], part: str, final: str) -> dict[str, Any]:
    """Copy all databases to the directory `part`, rename it to `final`, and return the snapshot's record."""
    began = time.monotonic()
    known: dict[tuple[int, int], str] = {}
    declared = [Live(path, resolve_path(path, request["foreign"])) for path in sorted(set(request["paths"]))]
    present = [database for database in declared if database.look()]
    for database in present:
        assert database.status
        other = known.setdefault((database.status.st_dev, database.status.st_ino), database.path)
        if other != database.path:
            raise HelperError("twice", f"is the same file as {other}", database.path)
    fence = os.urandom(16).hex()
    try:
        hold_all(present, request["patience"])
        taken_at = time.time()
        for database in present:
            with report_errors(database.path):
                copy_database(database, part + "/files" + database.path)
    finally:
        for database in declared:
            database.close()
    files = []
    for database in declared:
        with report_errors(database.path):
            files.append(finish_copy(database, part, request["fence_table"], fence))
    answer = {"name": request["name"], "directory": final, "fence": fence, "files": files, "taken_at": taken_at}
    answer["seconds"] = time.monotonic() - began
    with report_errors(request["directory"]):
        with open(os.path.join(part, "snapshot.json"), "w") as file:
            json.dump(answer, file)
        for at, _, names in os.walk(part):
            for each in (*names, "."):
                sync(os.path.join(at, each))
        remove_tree(final)
        os.rename(part, final)
        sync(request["directory"])
    return answer


def copy_database(database: Live, target: str) -> None:
    """Copy a held database to a file by SQLite's backup, in one step, and release it."""
    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
    taken = sqlite3.connect(target, isolation_level=None)
    try:
        # A power failure loses only a copy that was not reported yet; `take_snapshot` syncs it before that.
        taken.execute("PRAGMA synchronous=OFF")
        taken.execute("PRAGMA journal_mode=MEMORY")
        database.open[1].backup(taken, pages=-1)
    finally:
        taken.close()
        database.close()


def finish_copy(database: Live, part: str, table: str, fence: str) -> dict[str, Any]:
    """Write the fence into a copy and return its record.

    The connection must be a new one: only that uses the text encoding of the copied database.
    """
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
    known = {"path": database.path, "present": True, "file": name, "sha256": compute_digest(target)}
    owner = {"mode": stat.S_IMODE(status.st_mode), "uid": status.st_uid, "gid": status.st_gid}
    return {**known, "size": os.path.getsize(target), **owner}


if __name__ == "__main__":
    run(snapshot)
