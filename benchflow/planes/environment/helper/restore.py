"""Restores the databases of a snapshot, and proves it. Run inside the sandbox, as root.

If the process dies, at any point, the next call with the same request completes the restore.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from typing import Any, NoReturn

from benchflow.planes.environment.helper.shared import (
    PIECE,
    HelperError,
    classify_error,
    compute_digest,
    connect,
    lock_directory,
    report_errors,
    resolve_path,
    run,
    sync,
)

SIDECARS = ("-wal", "-shm", "-journal")
ATTEMPT = 2.0
FICLONE = 0x40049409
BUSY = (5, 6)


def restore(request: dict[str, Any]) -> dict[str, Any]:
    """Restore all databases, check that each path has the snapshot's fence, then remove the fences."""
    taken, patience = request["snapshot"], request["patience"]
    directory = os.path.dirname(taken["directory"])
    if not os.path.isdir(taken["directory"]):
        raise HelperError("changed", f"the snapshot {taken['name']!r} is not in the sandbox", taken["directory"])
    with lock_directory(directory, request["wait"]):
        plan = [(file, resolve_path(file["path"], request["foreign"])) for file in taken["files"]]
        if request["live"]:
            restore_live(plan, taken["directory"], patience)
        else:
            replace_files(plan, taken["directory"])
        for file, place in plan:
            with report_errors(file["path"]):
                check_fence(file, place, request["fence_table"], taken["fence"], patience)
        for file, place in plan:
            with report_errors(file["path"]):
                remove_fence(file, place, request["fence_table"], patience)
    return {}


def raise_changed(file: dict[str, Any]) -> NoReturn:
    """Raise `HelperError` for a copy that is missing or differs from the snapshot's record."""
    raise HelperError("changed", "its copy in the snapshot is not the one that was taken", file["path"])


def replace_files(plan: list[tuple[dict[str, Any], str]], base: str) -> None:
    """Replace closed files by copies. The world is not touched until all copies are made and checked."""
    refuse_open(plan, "busy")
    made: dict[str, str] = {}
    try:
        for file, place in plan:
            if file["present"]:
                with report_errors(file["path"]):
                    os.makedirs(os.path.dirname(place), exist_ok=True)
                    made[place] = os.path.join(os.path.dirname(place), f".{os.path.basename(place)}.benchflow")
                    copy_file(file, os.path.join(base, file["file"]), made[place])
        for file, place in plan:
            with report_errors(file["path"]):
                # SQLite would replay the log of the old database into the new one.
                for name in SIDECARS:
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        os.unlink(place + name)
                if file["present"]:
                    os.rename(made[place], place)
                else:
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        os.unlink(place)
                if os.path.isdir(os.path.dirname(place)):
                    sync(os.path.dirname(place))
    except BaseException:
        for part in made.values():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
        raise


def copy_file(file: dict[str, Any], source: str, target: str) -> None:
    """Copy a file, by reflink if possible, with the recorded owner and mode. Raise `HelperError` for another hash."""
    try:
        given = open(source, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise_changed(file)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    with given, open(target, "xb") as made:
        try:
            fcntl.ioctl(made.fileno(), FICLONE, given.fileno())
        except OSError:
            for piece in iter(lambda: given.read(PIECE), b""):
                made.write(piece)
        made.flush()
        os.fsync(made.fileno())
        os.fchown(made.fileno(), file["uid"], file["gid"])
        os.fchmod(made.fileno(), file["mode"])
    if compute_digest(target) != file["sha256"]:
        raise_changed(file)


def restore_live(plan: list[tuple[dict[str, Any], str]], base: str, patience: float) -> None:
    """Restore by SQLite's backup into files that processes have open, so that their next read sees it.

    Files that are absent in the snapshot or now must be closed, and are replaced as in `replace_files`.
    """
    away = [(file, place) for file, place in plan if not (file["present"] and os.path.exists(place))]
    there = [(file, place) for file, place in plan if file["present"] and os.path.exists(place)]
    for file, _ in there:
        source = os.path.join(base, file["file"])
        if not os.path.exists(source) or compute_digest(source) != file["sha256"]:
            raise_changed(file)
    refuse_open(away, "live")
    for file, place in there:
        deadline = time.monotonic() + patience

        def give_up(status: int, remaining: int, total: int, deadline: float = deadline) -> None:
            if status in BUSY and time.monotonic() > deadline:
                raise sqlite3.OperationalError("database is locked")

        with report_errors(file["path"]):
            given = connect(os.path.join(base, file["file"]), 0, "immutable=1")
            taken = connect(place, min(patience, ATTEMPT))
            try:
                given.backup(taken, pages=-1, progress=give_up, sleep=0.01)
            finally:
                taken.close()
                given.close()
            os.chown(place, file["uid"], file["gid"])
            os.chmod(place, file["mode"])
    replace_files(away, base)


def check_fence(file: dict[str, Any], place: str, table: str, fence: str, patience: float) -> None:
    """Raise `HelperError` unless the database has the fence, or is absent as in the snapshot."""
    if not file["present"]:
        if os.path.lexists(place):
            raise HelperError("state", "is there again after it was removed", file["path"])
        return
    seen = connect(place, patience)
    try:
        told = seen.execute(f"SELECT nonce FROM {table}").fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        told = []
    finally:
        seen.close()
    if told != [(fence,)]:
        raise HelperError("state", "what was put in place is not what a process sees there", file["path"])


def remove_fence(file: dict[str, Any], place: str, table: str, patience: float) -> None:
    """Drop the fence's table from a restored database."""
    if file["present"]:
        world = connect(place, patience)
        try:
            world.execute(f"DROP TABLE {table}")
        finally:
            world.close()


def refuse_open(plan: list[tuple[dict[str, Any], str]], kind: str) -> None:
    """Raise `HelperError` if a process has a database open: it would continue with the file that was replaced."""
    names = {place + name: file["path"] for file, place in plan for name in ("", *SIDECARS)}
    holder = find_holder(names)
    if holder:
        raise HelperError(kind, f"process {holder[1]} has it open", holder[0])
    for file, place in plan:
        if not os.path.isfile(place):
            continue
        probe = connect(place, 0.2)
        try:
            # /proc may hide the open files of other users' processes, but not their locks.
            probe.execute("PRAGMA locking_mode=EXCLUSIVE")
            probe.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            # Other errors mean that it is no database now. No process uses it, and the restore replaces it.
            if classify_error(error) == "busy":
                raise HelperError(kind, "a process has it open", file["path"]) from error
        finally:
            probe.close()


def find_holder(names: dict[str, str]) -> tuple[str, str] | None:
    """Return a declared path that a process has open, and that process; None if there is none.

    `names` maps the files of databases to declared paths.
    """
    files: dict[tuple[int, int], str] = {}
    for place, path in names.items():
        with contextlib.suppress(OSError):
            status = os.stat(place)
            files[status.st_dev, status.st_ino] = path
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        seen: set[str] = set()
        with contextlib.suppress(OSError):
            seen.update(os.listdir(f"/proc/{pid}/fd"))
        for fd in seen:
            with contextlib.suppress(OSError):
                link = f"/proc/{pid}/fd/{fd}"
                leads = os.readlink(link)
                holds = names.get(leads[: -len(" (deleted)")] if leads.endswith(" (deleted)") else leads)
                if holds is None and leads.startswith("/"):
                    status = os.stat(link)
                    holds = files.get((status.st_dev, status.st_ino))
                if holds is not None:
                    with open(f"/proc/{pid}/cmdline", errors="replace") as file:
                        return holds, f"{pid} ({file.read().replace(chr(0), ' ').strip()[:120]})"
    return None


if __name__ == "__main__":
    run(restore)
