"""What a sandbox, a verifier or a store has left to hurt the host that reads it: a typed error, and nothing else."""

from __future__ import annotations

import io
import os
import sqlite3
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fetched import fetched

from benchflow.errors import BenchFlowError, CorruptArtifactError, RewardFileError, StateError, VerifierError
from benchflow.hosting.portable import _extract
from benchflow.hosting.stored_judging import _unpack
from benchflow.planes.environment import rows
from benchflow.planes.environment.rows import read_state
from benchflow.planes.reward.hardening.survey import _read_archive as read_survey
from benchflow.planes.reward.placement import _rewrite_archive
from benchflow.planes.reward.script_reward import parse_rewards
from benchflow.planes.reward.verifier_end import read_output_tail
from benchflow.tasks import unpack

CANARY = "the canary of this host"
R, L, H, D, P = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE
Members = list[tuple[str, bytes, str]]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "canary").write_text(CANARY)
    return directory


def packed(file: Path, members: Members, *, content: bytes = b"evil") -> Path:
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, target, 0o755
            info.size = len(content) if kind == R else 0
            info.pax_headers = {"linkpath": target} if "\0" in target else {}
            archive.addfile(info, io.BytesIO(content))
    return file


def holes(file: Path, size: int) -> Path:
    """Write an archive of some kilobytes with a file of that size, which is all hole."""
    info = tarfile.TarInfo("huge")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(size)}
    info.pax_headers |= {"GNU.sparse.name": "huge"}
    info.size = 512
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(b"0\n".ljust(512, b"\0")))
    return file


# --- packs and records ---------------------------------------------------------------------------------

ESCAPES: dict[str, Members] = {
    "above": [("../outside/new", R, "")],
    "absolute": [("{outside}/new", R, "")],
    "through a link": [("a", L, "{outside}"), ("a/new", R, "")],
    "through a link made later": [("a/b", D, ""), ("a/b", L, "../../outside"), ("a/b/new", R, "")],
    "by a link through a link made later": [("l", L, "p/q/.."), ("p", D, ""), ("p/q", L, "..")],
    "a hard link": [("h", H, "{outside}/canary"), ("h", R, "")],
    "a name twice": [("a", R, ""), ("a", R, "")],
    "a file for a directory": [("a", R, ""), ("a/b", R, "")],
    "a pipe": [("a", P, "")],
    "a link to nothing": [("a", L, "")],
    "a link to NUL": [("a", L, "x\0y")],
}


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_pack_that_would_leave_its_directory_is_corrupt(tmp_path: Path, outside: Path, escape: str) -> None:
    members = [(name.format(outside=outside), kind, to.format(outside=outside)) for name, kind, to in ESCAPES[escape]]
    with pytest.raises(CorruptArtifactError):
        unpack(packed(tmp_path / "pack.tar", members), tmp_path / "tree")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "pack.tar"]
    assert [path.name for path in outside.iterdir()] == ["canary"]


def test_a_pack_of_terabytes_is_corrupt(tmp_path: Path) -> None:
    with pytest.raises(CorruptArtifactError, match="unpacks to more"):
        unpack(holes(tmp_path / "pack.tar", 10**13), tmp_path / "tree")
    with pytest.raises(CorruptArtifactError, match="unpacks to more"):
        _extract(holes(tmp_path / "pack.tar", 10**13), tmp_path / "root")


@pytest.mark.parametrize("escape", ["above", "absolute", "a hard link", "a pipe", "a link to NUL"])
def test_a_record_that_would_leave_its_directory_is_corrupt(tmp_path: Path, outside: Path, escape: str) -> None:
    members = [(name.format(outside=outside), kind, to.format(outside=outside)) for name, kind, to in ESCAPES[escape]]
    with pytest.raises(CorruptArtifactError):
        _extract(packed(tmp_path / "record.tar", members), tmp_path / "root")
    assert [path.name for path in outside.iterdir()] == ["canary"]


# --- workspaces ----------------------------------------------------------------------------------------


def test_a_workspace_of_terabytes_is_not_expanded(tmp_path: Path) -> None:
    workspace = holes(tmp_path / "workspace.tar", 10**13)
    with pytest.raises(VerifierError, match="cannot be read"):
        _unpack(workspace, tmp_path)
    with pytest.raises(tarfile.TarError), (tmp_path / "sink").open("wb") as sink:
        _rewrite_archive(workspace, sink, lambda name: True, False)
    assert (tmp_path / "sink").stat().st_size < 1_000_000


def test_a_workspace_is_laid_out_below_its_directory_alone(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "a").symlink_to(outside)
    with pytest.raises(VerifierError):
        _unpack(packed(tmp_path / "workspace.tar", [("a/new", R, "")]), tmp_path / "target")
    assert (
        _unpack(
            packed(tmp_path / "1.tar", [("../outside/new", R, ""), ("b", R, ""), ("b", R, "")]), tmp_path / "target"
        )
        == 0
    )
    assert [path.name for path in outside.iterdir()] == ["canary"]


@pytest.mark.parametrize("answer", [b"", b"no archive" * 100, b"\x1f\x8b" + b"x" * 600])
def test_a_garbled_survey_is_an_error_and_no_finding_less(answer: bytes, tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match="garbled"):
        read_survey(answer)
    without_lists = packed(tmp_path / "out.tar", [("conftest.py", R, "")]).read_bytes()
    with pytest.raises(VerifierError, match="garbled"):
        read_survey(without_lists)


# --- a verifier's files --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reward.txt", "reward.json"])
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_a_reward_that_is_no_file_is_an_error(tmp_path: Path, name: str, make: Callable[[Path], object]) -> None:
    from datetime import UTC, datetime

    make(tmp_path / name)
    with pytest.raises(RewardFileError):
        parse_rewards(tmp_path, exit_code=0, now=datetime.now(UTC))


def test_a_verifiers_output_is_read_from_its_end_and_through_no_link(tmp_path: Path, outside: Path) -> None:
    with (tmp_path / "test-stdout.txt").open("wb") as file:
        file.truncate(10**13)
        file.seek(10**13)
        file.write(b"the end")
    assert (read_output_tail(tmp_path) or "").endswith("the end")
    (tmp_path / "test-stdout.txt").unlink()
    (tmp_path / "test-stdout.txt").symlink_to(outside / "canary")
    assert read_output_tail(tmp_path) is None


# --- a world's databases -------------------------------------------------------------------------------


def change_schema(directory: Path, statement: str, *values: str) -> None:
    with sqlite3.connect(directory / "files/data/a.db") as database:
        database.execute("PRAGMA writable_schema=ON")
        database.execute(statement, values)
    database.close()


def test_a_view_that_is_said_to_be_a_table_is_not_run(tmp_path: Path) -> None:
    directory = fetched(tmp_path, a="CREATE TABLE t (a)")
    endless = "CREATE VIEW t AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS a FROM n"
    change_schema(directory, "UPDATE sqlite_master SET sql = ?, rootpage = 0 WHERE name = 't'", endless)
    began = time.monotonic()
    with pytest.raises(StateError, match=r"prohibited|not authorized|malformed"):
        read_state(directory, rows=None)
    assert time.monotonic() - began < 10


def test_a_database_that_takes_for_ever_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = fetched(tmp_path, a="CREATE TABLE t (a); INSERT INTO t VALUES " + ", ".join(["(1)"] * 1000))
    monkeypatch.setattr(rows, "_STEPS", 10)
    with (
        pytest.raises(StateError, match="interrupted"),
        rows.open_database(directory, "/data/a.db", "files/data/a.db", timeout=0.0) as database,
    ):
        database.execute("SELECT a FROM t").fetchall()


def test_a_value_that_is_larger_than_any_is_an_error(tmp_path: Path) -> None:
    directory = fetched(tmp_path, a="CREATE TABLE t (a, b AS (zeroblob(900000000))); INSERT INTO t (a) VALUES (1)")
    with pytest.raises(StateError, match="too big"):
        read_state(directory, rows=None)


def test_honest_views_triggers_generated_columns_and_indexes_of_text_are_read(tmp_path: Path) -> None:
    directory = fetched(
        tmp_path,
        a="CREATE TABLE t (a, b AS (lower(a)) STORED, c AS (json_extract(a, '$.x'))); CREATE VIEW v AS SELECT * FROM t;"
        "CREATE VIRTUAL TABLE f USING fts5(body); INSERT INTO f VALUES ('some words');"
        "CREATE VIRTUAL TABLE r USING rtree(id, x, y); INSERT INTO r VALUES (1, 2, 3);"
        "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM f; END; INSERT INTO t (a) VALUES ('{\"x\": 1}');",
    )
    [database] = read_state(directory, rows=9).databases
    assert [(table.name, table.rows) for table in database.tables] == [("f", 0), ("r", 1), ("t", 1)]


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_a_database_that_is_no_file_is_an_error(tmp_path: Path, make: Callable[[Path], object], outside: Path) -> None:
    directory = fetched(tmp_path / "1", a="CREATE TABLE t (a)")
    file = directory / "files/data/a.db"
    file.rename(outside / "other.db")
    make(file)
    with pytest.raises(StateError, match="cannot be read"):
        read_state(directory, rows=None)
    (file.unlink if file.is_fifo() else file.rmdir)()
    file.symlink_to(outside / "other.db")
    with pytest.raises(StateError, match="symbolic link"):
        read_state(directory, rows=None)


def test_what_lies_beside_a_database_is_not_opened(tmp_path: Path, outside: Path) -> None:
    directory = fetched(tmp_path / "1", a="PRAGMA journal_mode=WAL; CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    for end in ("-wal", "-shm", "-journal"):
        beside = directory / f"files/data/a.db{end}"
        beside.unlink(missing_ok=True)
        beside.symlink_to(outside / "canary")
    [database] = read_state(directory, rows=9).databases
    assert database.tables[0].rows == 1
    assert (outside / "canary").read_text() == CANARY and len(list(outside.iterdir())) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_spoilt_database_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    import random

    dice = random.Random(seed)
    directory = fetched(
        tmp_path,
        a="CREATE TABLE t (a PRIMARY KEY, b); CREATE INDEX i ON t (b);" + "INSERT INTO t VALUES (random(), 'x');" * 50,
    )
    file = directory / "files/data/a.db"
    content = bytearray(file.read_bytes())
    for _ in range(dice.randrange(1, 40)):
        content[dice.randrange(len(content))] = dice.randrange(256)
    file.write_bytes(content[: dice.choice([None, None, -700])])
    try:
        read_state(directory, rows=9)
    except BenchFlowError as error:
        assert isinstance(error, StateError)
