"""`bench env diff`: the difference between two states, row by row."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from support.command_line import Bench

from benchflow.contracts.environment import StateFile, StateSnapshot
from benchflow.errors import ConfigError
from benchflow.planes.environment.writing import parse_post

POST = 'http://localhost:9001/notes:{"text": "two"}'


def snapshot(directory: Path, script: str, taken_at: float = 1.0) -> Path:
    """A fetched snapshot of one database, `/data/desk.db`, that a script makes; without one it is absent."""
    files = directory / "files/data"
    files.mkdir(parents=True)
    if script:
        database = sqlite3.connect(files / "desk.db")
        database.executescript(script)
        database.close()
    file = StateFile(path="/data/desk.db", present=bool(script), file="files/data/desk.db" if script else None)
    told = StateSnapshot(name=directory.name, directory="/x", fence="f", files=(file,), taken_at=taken_at, seconds=0.1)
    (directory / "snapshot.json").write_text(told.model_dump_json())
    return directory


NOTES = "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT, by TEXT);"
BEFORE = NOTES + "INSERT INTO notes VALUES (1, 'same', 'a'), (2, 'old', 'a'), (3, 'gone', 'a');"
AFTER = NOTES + "INSERT INTO notes VALUES (1, 'same', 'a'), (2, 'new', 'a'), (4, 'come', NULL);"


def test_a_difference_is_shown_row_by_row(bench: Bench, tmp_path: Path) -> None:
    before, after = snapshot(tmp_path / "before", BEFORE), snapshot(tmp_path / "after", AFTER)
    ran = bench("env", "diff", before, after)
    assert ran.status == 0, ran.err
    assert [line.strip() for line in ran.out.splitlines() if line.strip()] == [
        "before → after",
        "/data/desk.db",
        "notes  +1  -1  ~1",
        "+ id=4  text=come  by=NULL",
        "- id=3  text=gone  by=a",
        "~ id=2  text: old → new",
    ]


def test_a_difference_as_data_is_the_contracts(bench: Bench, tmp_path: Path) -> None:
    before, after = snapshot(tmp_path / "before", BEFORE), snapshot(tmp_path / "after", AFTER)
    (database,) = bench("env", "diff", before, after, "--json").json["databases"]
    (table,) = database["tables"]
    assert (table["n_added"], table["n_removed"], table["n_changed"]) == (1, 1, 1)
    assert table["changed"][0]["after"] == {"id": 2, "text": "new", "by": "a"}


def test_equal_states_have_no_difference(bench: Bench, tmp_path: Path) -> None:
    before, after = snapshot(tmp_path / "before", BEFORE), snapshot(tmp_path / "after", BEFORE)
    assert "no difference" in bench("env", "diff", before, after).out
    assert bench("env", "diff", before, after, "--json").json == {"databases": []}


def test_rows_beyond_the_limit_are_counted(bench: Bench, tmp_path: Path) -> None:
    before = snapshot(tmp_path / "before", NOTES)
    many = "".join(f"INSERT INTO notes VALUES ({n}, 'x', 'y');" for n in range(9))
    after = snapshot(tmp_path / "after", NOTES + many)
    out = bench("env", "diff", before, after, "--rows", "2").out
    assert "notes  +9" in out and "and 7 more" in out
    assert out.count("+ id=") == 2


def test_a_database_that_appears_is_shown_with_its_rows(bench: Bench, tmp_path: Path) -> None:
    out = bench("env", "diff", snapshot(tmp_path / "a", ""), snapshot(tmp_path / "b", BEFORE)).out
    assert "+ /data/desk.db  appeared" in out


def test_what_an_agent_wrote_does_nothing_to_the_terminal(bench: Bench, tmp_path: Path) -> None:
    text = "char(27) || ']0;title' || char(7) || 'a' || char(10) || 'b'"
    nasty = f"{NOTES} INSERT INTO notes VALUES (1, {text}, x'00ff');"
    ran = bench("env", "diff", snapshot(tmp_path / "a", NOTES), snapshot(tmp_path / "b", nasty))
    assert "+ id=1  text=␛]0;title␇a␤b  by=<2 bytes>" in ran.out
    assert "\x1b" not in ran.out


@pytest.fixture
def rollout(tmp_path: Path) -> Path:
    """The directory of a rollout that has kept three states."""
    root = tmp_path / "jobs/j/one__1"
    kept = root / "environment/snapshots"
    snapshot(kept / "step-1", AFTER, taken_at=2.0)
    snapshot(kept / "baseline", BEFORE, taken_at=1.0)
    snapshot(kept / "another", BEFORE.replace("same", "last"), taken_at=3.0)
    return root


def test_a_rollouts_first_and_last_states_are_compared(bench: Bench, rollout: Path) -> None:
    out = bench("env", "diff", rollout).out
    assert "baseline → another" in out and "same → last" in out


def test_of_a_rollout_as_one_of_two_the_last_state_is_meant(bench: Bench, rollout: Path, tmp_path: Path) -> None:
    other = snapshot(tmp_path / "other", BEFORE)
    assert "another → other" in bench("env", "diff", rollout, other).out


def test_one_snapshot_alone_is_compared_with_nothing(bench: Bench, rollout: Path) -> None:
    ran = bench("env", "diff", rollout / "environment/snapshots/step-1")
    assert ran.status == 2
    assert "beside it are: another, baseline, step-1" in ran.err


def test_a_rollout_with_only_one_state_has_no_difference_to_show(bench: Bench, tmp_path: Path) -> None:
    snapshot(tmp_path / "r/environment/snapshots/baseline", BEFORE)
    ran = bench("env", "diff", tmp_path / "r")
    assert ran.status == 2
    assert "has not kept two states: there is baseline" in ran.err


def test_what_has_no_state_is_refused(bench: Bench, tmp_path: Path) -> None:
    for place in (tmp_path / "missing", tmp_path):
        ran = bench("env", "diff", place)
        assert (ran.status, "neither a snapshot nor a rollout" in ran.err) == (2, True)
    (tmp_path / "r").mkdir()
    (tmp_path / "r/result.json").write_text("{}")
    ran = bench("env", "diff", tmp_path / "r")
    assert (ran.status, "has kept no state" in ran.err) == (2, True)


def test_a_record_that_is_broken_is_told(bench: Bench, rollout: Path) -> None:
    (rollout / "environment/snapshots/another/snapshot.json").write_text(json.dumps({"name": "x"}))
    ran = bench("env", "diff", rollout)
    assert ran.status == 1
    assert "another" in ran.err


# --- how `bench env check` is told to write -------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url", "body"),
    [
        (POST, "http://localhost:9001/notes", '{"text": "two"}'),
        ("http://localhost/a?b=c", "http://localhost/a?b=c", ""),
        ("http://localhost:9001", "http://localhost:9001", ""),
        ("http://localhost:9001:a:b", "http://localhost:9001", "a:b"),
        ("https://[::1]:9001/x%3Ay:z", "https://[::1]:9001/x%3Ay", "z"),
    ],
)
def test_a_request_that_writes_is_a_url_and_a_body(text: str, url: str, body: str) -> None:
    assert parse_post(text) == (url, body)


def test_what_is_no_url_cannot_write() -> None:
    with pytest.raises(ConfigError, match="URL:BODY"):
        parse_post("localhost:9001")
