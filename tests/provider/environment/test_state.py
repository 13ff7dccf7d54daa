"""Databases in a sandbox, captured and put back: by either form of the helper, in either kind of sandbox."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.state_room import Ledger, Room, by_both, by_the_images, locally, untorn

from benchflow.errors import StateBusyError, StateError
from benchflow.planes.environment.world_state import FENCE_TABLE, SNAPSHOTS, diff_snapshots, read_state
from benchflow.testing.waiting import until

MAIL = "CREATE TABLE mail (id INTEGER PRIMARY KEY, subject TEXT);"
COUNT = "SELECT count(*) FROM mail"

KINDS = {
    "wal": "PRAGMA journal_mode=WAL; CREATE TABLE t (v); INSERT INTO t VALUES (1);",
    "rollback": "CREATE TABLE t (v); INSERT INTO t VALUES (1);",
    "persist": "PRAGMA journal_mode=PERSIST; CREATE TABLE t (v); INSERT INTO t VALUES (1);",
    "small_pages": "PRAGMA page_size=512; PRAGMA auto_vacuum=FULL; CREATE TABLE t (v); INSERT INTO t VALUES (1);",
    "large_pages": "PRAGMA page_size=65536; PRAGMA journal_mode=WAL; CREATE TABLE t (v); INSERT INTO t VALUES (1);",
    "utf16": "PRAGMA encoding='UTF-16be'; CREATE TABLE t (v); INSERT INTO t VALUES ('é');",
    "search": "CREATE VIRTUAL TABLE t USING fts5(v); INSERT INTO t VALUES ('hello world');",
    "no_rowid": "CREATE TABLE t (v TEXT PRIMARY KEY, w) WITHOUT ROWID; INSERT INTO t VALUES ('a', 1);",
    "derived": "CREATE TABLE t (v, w AS (v * 2), x AS (v * 3) STORED); INSERT INTO t (v) VALUES (1);",
    "counted": "CREATE TABLE t (v INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO t VALUES (7); DELETE FROM t;"
    "PRAGMA user_version=42; PRAGMA application_id=7;",
    "triggers": "CREATE TABLE t (v); CREATE TABLE log (v); INSERT INTO t VALUES (1);"
    "CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT INTO log VALUES (new.v); END;",
    "blob": "CREATE TABLE t (v); INSERT INTO t VALUES (zeroblob(500000)), (randomblob(300000));",
}
_DESCRIBE = """
import hashlib, json, os, sqlite3, sys
told = {}
for path in sys.argv[1:]:
    database = sqlite3.connect(path)
    database.text_factory = bytes
    one = lambda name: database.execute("PRAGMA " + name).fetchone()[0]
    tables = database.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY 1").fetchall()
    rows = [database.execute('SELECT * FROM "%s"' % name.decode()).fetchall() for (name,) in tables]
    schema = database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2").fetchall()
    status = os.stat(path)
    pragmas = [str(one(name)) for name in ("journal_mode", "page_size", "encoding", "user_version", "application_id")]
    check = one("integrity_check").decode()
    database.close()
    content = hashlib.sha256(repr((schema, rows)).encode()).hexdigest()
    told[path] = [content, pragmas, check, status.st_mode, status.st_uid, status.st_gid]
print(json.dumps(told))
"""


# Each script in the database of its path.
_RUN = """
import json, os, sqlite3, sys
os.makedirs("/data", exist_ok=True)
for path, script in json.loads(sys.argv[1]).items():
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript(script)
    database.close()
"""


@by_both
async def test_every_kind_of_database_comes_back_as_it_was(room: Room) -> None:
    scripts = {f"/data/{name}.db": script for name, script in KINDS.items()}
    paths = list(scripts)
    await room.python(_RUN, json.dumps(scripts))
    await room.sh("chown 1234:4321 /data/wal.db && chmod 640 /data/wal.db && chmod 600 /data/rollback.db")
    before = json.loads(await room.python(_DESCRIBE, *paths))
    assert {told[2] for told in before.values()} == {"ok"}
    taken = await room.store().snapshot("one", paths)
    assert [file.path for file in taken.files] == sorted(paths)
    assert json.loads(await room.python(_DESCRIBE, *paths)) == before, "taking it changed the world"
    for live in (False, True):
        spoil = "DELETE FROM t; CREATE TABLE other (x); PRAGMA user_version=9;"
        await room.python(_RUN, json.dumps(dict.fromkeys(paths, spoil)))
        await room.store().restore(taken, live=live)
        assert json.loads(await room.python(_DESCRIBE, *paths)) == before, live
    left = {Path(path).name for path in paths}
    assert left <= await room.names("/data") <= left | {"persist.db-journal"}


@by_the_images
async def test_rows_that_are_only_in_the_log_are_captured(room: Room, tmp_path: Path) -> None:
    await room.sql("/data/a.db", "PRAGMA journal_mode=WAL;" + MAIL, COUNT)
    insert = "INSERT INTO mail VALUES (1, 'in the log')"
    async with room.holding("/data/a.db", "PRAGMA wal_autocheckpoint=0", insert):
        taken = await room.store().snapshot("one", ["/data/a.db"])
    assert await room.store().fetch(taken, tmp_path / "one", taken.size)
    assert read_state(tmp_path / "one", rows=1).table("/data/a.db", "mail").values == [[1, "in the log"]]


@by_the_images
async def test_missing_empty_and_equally_named_files(room: Room, tmp_path: Path) -> None:
    await room.sql("/x/a.db", MAIL + "INSERT INTO mail VALUES (1, 'x');", COUNT)
    await room.sql("/y/a.db", MAIL + "INSERT INTO mail VALUES (1, 'y'), (2, 'y');", COUNT)
    await room.sh(": >/x/empty.db")
    paths = ["/y/a.db", "/x/a.db", "/x/gone.db", "/no/such/place.db", "/x/empty.db"]
    taken = await room.store().snapshot("one", paths)
    present = {file.path: file.present for file in taken.files}
    assert present == {path: path not in ("/x/gone.db", "/no/such/place.db") for path in paths}
    await room.sql("/x/gone.db", "PRAGMA journal_mode=WAL;" + MAIL, COUNT)
    await room.sh("printf x >/x/gone.db-wal; printf x >/x/gone.db-shm; printf x >/x/gone.db-journal; rm /y/a.db")
    await room.store().restore(taken, live=False)
    assert await room.names("/x") == {"a.db", "empty.db"}
    assert [await room.sql(path, COUNT) for path in ("/x/a.db", "/y/a.db")] == [[[1]], [[2]]]
    assert await room.sql("/x/empty.db", "SELECT count(*) FROM sqlite_master") == [[0]]


@by_the_images
async def test_paths_may_hold_what_means_something_elsewhere(room: Room) -> None:
    paths = ["/data/ö #1?%41.db", '/data/it\'s "quoted" $HOME `x`.db', "/data/a;b&c=d.db"]
    for path in paths:
        await room.sql(path, "PRAGMA journal_mode=WAL;" + MAIL, COUNT)
    taken = await room.store().snapshot("one", paths)
    for path in paths:
        await room.sql(path, "INSERT INTO mail VALUES (1, 'a')", COUNT)
    await room.store().restore(taken, live=True)
    await room.store().restore(taken, live=False)
    assert [await room.sql(path, COUNT) for path in paths] == [[[0]]] * 3
    assert len((await room.sh("ls -A /data")).splitlines()) == 3


@by_the_images
async def test_a_name_is_taken_once(room: Room) -> None:
    await room.sql("/data/a.db", MAIL, COUNT)
    store = room.store()
    taken, again = await asyncio.gather(*(store.snapshot("one", ["/data/a.db"]) for _ in range(2)))
    assert taken == again
    await room.sql("/data/a.db", "INSERT INTO mail VALUES (1, 'a')", COUNT)
    assert await store.snapshot("one", ["/data/a.db"]) == taken
    assert await store.snapshot("two", ["/data/a.db"]) != taken
    assert await room.sh('stat -c "%a %u" "$1"', SNAPSHOTS) == "700 0\n"
    assert await room.names(SNAPSHOTS) == {".lock", "one", "two"}


@by_the_images
async def test_several_databases_are_captured_as_of_one_moment(room: Room, tmp_path: Path) -> None:
    ledger = Ledger(room)
    await ledger.start()
    store = room.store()
    seen = set()
    for number in range(5):
        taken = await store.snapshot(str(number), ledger.paths)
        directory = tmp_path / str(number)
        assert await store.fetch(taken, directory, taken.size)
        tables = [read_state(directory, rows=1).table(path, "ticks").values for path in ledger.paths]
        ticks = [values[0][0] for values in tables if values]
        assert len(ticks) == 3
        assert untorn(ticks), ticks
        seen.add(ticks[0])

        async def went_on(before: int = ticks[0]) -> bool:
            return (await ledger.read())[1][0] > before

        await until(went_on)
    assert len(seen) == 5, "the writer went on"
    await ledger.stop()


@by_the_images
async def test_paths_that_are_not_the_worlds_are_refused(room: Room) -> None:
    await room.sql("/data/a.db", MAIL, COUNT)
    await room.sh("ln -s /proc/self/environ /data/link.db; ln -s a.db /data/same.db; ln /data/a.db /data/hard.db")
    await room.sh("mkdir /mine /data/directory; printf 'no database, but long enough' >/data/text; ln -s /mine /data/m")
    store = room.store(foreign=["/mine"])
    for path, told in {
        "/proc/1/environ": "not the sandbox's own",
        "/sys/kernel/x": "not the sandbox's own",
        "/dev/null": "not the sandbox's own",
        "/run/benchflow/x.db": "not the sandbox's own",
        "/var/lib/benchflow/snapshots/x.db": "not the sandbox's own",
        "/data/link.db": "not the sandbox's own",
        "/mine/a.db": "not the sandbox's own",
        "/data/m/a.db": "not the sandbox's own",
        "/data/directory": "is not a file",
        "/data/text": "file is not a database",
        "data/a.db": "absolute",
        "/data/../proc/x": "absolute",
    }.items():
        with pytest.raises(StateError, match=told) as failed:
            await store.snapshot("one", [path])
        assert failed.value.key == path
        assert failed.value.remedy
    for other in ("/data/same.db", "/data/hard.db"):
        with pytest.raises(StateError, match="the same file"):
            await store.snapshot("one", ["/data/a.db", other])
    for name in ("../one", "", ".hidden", "a/b", "x" * 201):
        with pytest.raises(StateError, match="the name of a snapshot"):
            await store.snapshot(name, ["/data/a.db"])
    assert await room.names(SNAPSHOTS) == {".lock"}


@by_the_images
async def test_a_link_is_followed_and_stays(room: Room) -> None:
    await room.sql("/real/a.db", MAIL, COUNT)
    await room.sh("mkdir /data; ln -s ../real/a.db /data/a.db; ln -s /dev/shm/b.db /data/b.db")
    await room.sql("/data/b.db", MAIL, COUNT)
    taken = await room.store().snapshot("one", ["/data/a.db", "/data/b.db"])
    for path in ("/data/a.db", "/data/b.db"):
        await room.sql(path, "INSERT INTO mail VALUES (1, 'a')", COUNT)
    await room.store().restore(taken, live=False)
    assert [await room.sql(path, COUNT) for path in ("/real/a.db", "/dev/shm/b.db")] == [[[0]], [[0]]]
    assert await room.sh("readlink /data/a.db /data/b.db") == "../real/a.db\n/dev/shm/b.db\n"


@by_the_images
async def test_a_process_that_does_not_let_go_is_told_of(room: Room) -> None:
    await room.sql("/data/a.db", MAIL, COUNT)
    await room.sql("/data/b.db", "PRAGMA journal_mode=WAL;" + MAIL, COUNT)
    store = room.store(patience=0.2)
    for path in ("/data/a.db", "/data/b.db"):
        async with room.holding(path, "BEGIN IMMEDIATE"):
            with pytest.raises(StateBusyError) as failed:
                await store.snapshot("one", ["/data/a.db", "/data/b.db"])
            assert failed.value.key == path
    assert (await store.snapshot("one", ["/data/a.db", "/data/b.db"])).size > 0


@by_the_images
async def test_nothing_is_put_under_a_process_that_has_it_open(room: Room) -> None:
    store = room.store(patience=0.2)
    for name, journal in (("a", "WAL"), ("b", "DELETE")):
        path = f"/data/{name}.db"
        await room.sql(path, f"PRAGMA journal_mode={journal};" + MAIL, COUNT)
        taken = await store.snapshot(name, [path])
        await room.sql(path, "INSERT INTO mail VALUES (1, 'a')", COUNT)
        async with room.holding(path, COUNT):
            with pytest.raises(StateBusyError, match=r"process \d+ \(python3 ") as failed:
                await store.restore(taken, live=False)
            assert failed.value.key == path
            await room.sh('mv "$1" "$1.moved" && cp "$1.moved" "$1"', path)
            if journal == "DELETE":
                continue
            await room.sh('rm "$1" && mv "$1.moved" "$1"', path)
        await store.restore(taken, live=False)
        assert await room.sql(path, COUNT) == [[0]]


@by_the_images
async def test_a_process_of_another_user_is_noticed_by_its_locks(room: Room) -> None:
    await room.sql("/data/a.db", "PRAGMA journal_mode=WAL;" + MAIL, COUNT)
    await room.sh("chown -R 1234 /data")
    taken = await room.store().snapshot("one", ["/data/a.db"])
    async with room.holding("/data/a.db", COUNT, user=1234):
        with pytest.raises(StateBusyError, match="has it open"):
            await room.store().restore(taken, live=False)


@by_the_images
async def test_a_snapshot_that_was_changed_is_not_put_back(room: Room, tmp_path: Path) -> None:
    await room.sql("/data/a.db", MAIL, COUNT)
    store = room.store()
    taken = await store.snapshot("one", ["/data/a.db"])
    await room.sql("/data/a.db", "INSERT INTO mail VALUES (1, 'a')", COUNT)
    await room.sql(f"{taken.directory}/files/data/a.db", "INSERT INTO mail VALUES (2, 'b')", COUNT)
    for live in (False, True):
        with pytest.raises(StateError, match="not the one that was taken") as failed:
            await store.restore(taken, live=live)
        assert failed.value.key == "/data/a.db"
    with pytest.raises(StateError, match="not the one that was taken"):
        await store.fetch(taken, tmp_path / "one", 10**9)
    await room.sh('rm -r "$1"', taken.directory)
    with pytest.raises(StateError, match="is not in the sandbox"):
        await store.restore(taken, live=False)
    with pytest.raises(StateError, match="not the one that was taken"):
        await store.fetch(taken, tmp_path / "one", 10**9)
    assert await room.sql("/data/a.db", "SELECT subject FROM mail") == [["a"]]
    assert await room.names("/data") == {"a.db"}


@by_the_images
async def test_a_live_restore_says_what_it_cannot_do(room: Room) -> None:
    for path in ("/data/a.db", "/data/c.db"):
        await room.sql(path, "PRAGMA journal_mode=WAL;" + MAIL, COUNT)
    store = room.store(patience=0.2)
    taken = await store.snapshot("one", ["/data/a.db", "/data/b.db", "/data/c.db"])
    await room.sql("/data/b.db", "PRAGMA journal_mode=WAL;" + MAIL, COUNT)
    await room.sh("rm /data/c.db*")
    async with room.holding("/data/b.db", COUNT):
        with pytest.raises(StateBusyError, match="has it open") as failed:
            await store.restore(taken, live=True)
        assert failed.value.key == "/data/b.db"
        assert "hard=True" in str(failed.value.remedy)
    async with room.holding("/data/a.db", "BEGIN IMMEDIATE"):
        with pytest.raises(StateBusyError) as failed:
            await store.restore(taken, live=True)
        assert failed.value.key == "/data/a.db"
    # Nobody holds anything now, and so there is nothing to be patient about.
    await room.store(patience=0.0).restore(taken, live=True)
    assert await room.names("/data") == {"a.db", "c.db"}
    assert await room.sql("/data/c.db", COUNT) == [[0]]


@by_the_images
async def test_a_log_that_a_killed_process_left_is_not_played_back(room: Room) -> None:
    await room.sql("/data/a.db", "PRAGMA journal_mode=WAL;" + MAIL, COUNT)
    taken = await room.store().snapshot("one", ["/data/a.db"])
    async with room.holding("/data/a.db", "PRAGMA wal_autocheckpoint=0", "INSERT INTO mail VALUES (1, 'a')"):
        pass
    assert "a.db-wal" in await room.names("/data")
    await room.store().restore(taken, live=False)
    assert await room.sql("/data/a.db", COUNT) == [[0]]


@by_the_images
async def test_a_full_disk_is_told_and_nothing_is_left(room: Room) -> None:
    fill = "INSERT INTO mail SELECT value, randomblob(100000) FROM (WITH RECURSIVE n(value) AS (SELECT {} UNION ALL "
    fill += "SELECT value + 1 FROM n WHERE value < {}) SELECT value FROM n)"
    await room.sql("/data/a.db", MAIL, fill.format(1, 100), COUNT)
    store = room.store(directory="/dev/shm/snapshots")
    free = "$(($(df --output=avail /dev/shm | tail -1) / 1024 - 4))"
    await room.sh(f"fallocate -l {free}M /dev/shm/ballast")
    with pytest.raises(StateError, match="disk is full") as failed:
        await store.snapshot("one", ["/data/a.db"])
    assert failed.value.key == "/data/a.db"
    assert await room.names("/dev/shm/snapshots") <= {".lock"}
    await room.sh("rm /dev/shm/ballast")
    taken = await store.snapshot("one", ["/data/a.db"])
    # The other way round: no room where the database is to lie.
    await room.sh("mkdir /dev/shm/data && mv /data/a.db /dev/shm/data/a.db && ln -s /dev/shm/data/a.db /data/a.db")
    await room.sql("/data/a.db", "DELETE FROM mail WHERE id > 1", COUNT)
    await room.sh(f"fallocate -l {free}M /dev/shm/ballast")
    with pytest.raises(StateError, match="disk is full"):
        await store.restore(taken, live=False)
    assert await room.sql("/data/a.db", COUNT) == [[1]]
    assert await room.names("/dev/shm/data") == {"a.db"}
    await room.sh("rm /dev/shm/ballast")
    await store.restore(taken, live=False)
    assert await room.sql("/data/a.db", COUNT) == [[100]]


@by_the_images
async def test_a_snapshot_is_brought_to_this_host(room: Room, tmp_path: Path) -> None:
    await room.sql("/data/a.db", MAIL, COUNT)
    store = room.store()
    before = await store.snapshot("before", ["/data/a.db", "/data/b.db"])
    await room.sql("/data/a.db", "INSERT INTO mail VALUES (1, 'a')", COUNT)
    after = await store.snapshot("after", ["/data/a.db", "/data/b.db"])
    assert not await store.fetch(before, tmp_path / "before", before.size - 1)
    assert not (tmp_path / "before").exists()
    for taken in (before, after):
        assert await store.fetch(taken, tmp_path / taken.name, taken.size)
    ((table,),) = (each.tables for each in diff_snapshots(tmp_path / "before", tmp_path / "after").databases)
    assert table.added == [{"id": 1, "subject": "a"}]
    marker = tmp_path / "before" / "marker"
    marker.touch()
    assert await store.fetch(before, tmp_path / "before", before.size)
    assert marker.exists(), "what is there is not fetched again"
    assert await store.fetch(after, tmp_path / "before", after.size)
    assert diff_snapshots(tmp_path / "before", tmp_path / "after").is_empty


@by_the_images
async def test_what_a_dead_helper_left_is_cleared_away(room: Room) -> None:
    await room.sql("/data/a.db", MAIL, COUNT)
    await room.sh(
        'mkdir -p "$1/.old.part/files/data" "$1/.one.part/files"; : >"$1/.old.part/files/data/a.db"', SNAPSHOTS
    )
    taken = await room.store().snapshot("one", ["/data/a.db"])
    assert await room.names(SNAPSHOTS) == {".lock", "one"}
    await room.sh(": >/data/.a.db.benchflow")
    await room.store().restore(taken, live=False)
    assert await room.names("/data") == {"a.db"}
    assert await room.sql("/data/a.db", f"SELECT count(*) FROM sqlite_master WHERE name = '{FENCE_TABLE}'") == [[0]]


@by_the_images
async def test_one_who_is_locked_out_by_a_dying_helper_says_so(room: Room) -> None:
    await room.sql("/data/a.db", MAIL, COUNT)
    await room.sh('mkdir -p "$1"', SNAPSHOTS)
    async with room.holding(f"{SNAPSHOTS}/.lock", "BEGIN EXCLUSIVE"):
        with pytest.raises(StateBusyError, match="the snapshots are locked") as failed:
            await room.store(timeout=2.0).snapshot("one", ["/data/a.db"])
        assert failed.value.key == SNAPSHOTS


@pytest.mark.soak
@locally
async def test_a_gigabyte_goes_there_and_back(room: Room) -> None:
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1024) "
    fill = f"INSERT INTO mail {many} SELECT i, randomblob(1048576) FROM n; PRAGMA journal_mode=WAL;"
    await room.sql("/data/a.db", f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {MAIL} {fill}", COUNT)
    taken = await room.store().snapshot("one", ["/data/a.db"])
    assert taken.size > 2**30
    for live in (False, True):
        await room.sql("/data/a.db", "DELETE FROM mail WHERE id > 1", COUNT)
        await room.store().restore(taken, live=live)
        assert await room.sql("/data/a.db", COUNT) == [[1024]]
