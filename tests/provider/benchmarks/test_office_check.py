"""What verifiers of the office world are written with: evidence from files or from services, items, and the reward."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.office_services import SERVICES, Running, run, serving

from benchflow.contracts.environment import StateFile, StateSnapshot
from benchflow.planes.environment.rows import read_state
from benchflow.planes.environment.state_difference import diff_snapshots

pytestmark = pytest.mark.usefixtures("office_packages")
Start = Callable[..., Running]


def take_snapshot(databases: Path, directory: Path) -> Path:
    """As the framework keeps one on this host."""
    directory.mkdir(parents=True)
    files = []
    for name in SERVICES:
        shutil.copy(databases / f"{name}.db", directory)
        files.append(StateFile(path=f"/data/{name}.db", present=True, file=f"{name}.db"))
    snapshot = StateSnapshot(
        name=directory.name, directory="/x", fence="", files=tuple(files), taken_at=0.0, seconds=0.0
    )
    (directory / "snapshot.json").write_text(snapshot.model_dump_json())
    return directory


def write_evidence(seeded: Path, databases: Path, root: Path) -> Path:
    """Write what a verifier is given, of what services have made of the databases; return its directory."""
    before = take_snapshot(seeded, root / "snapshots" / "before")
    after = take_snapshot(databases, root / "snapshots" / "after")
    directory = root / "environment"
    directory.mkdir()
    (directory / "state.json").write_text(read_state(after, rows=10_000).model_dump_json())
    (directory / "diff.json").write_text(diff_snapshots(before, after).model_dump_json())
    return directory


@pytest.fixture(scope="module")
def morning(seeded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that a verifier is given, of a world in which some things were done."""
    databases = tmp_path_factory.mktemp("morning")
    for name in SERVICES:
        shutil.copy(seeded / f"{name}.db", databases)
    with serving("mail", databases / "mail.db") as mail, serving("files", databases / "files.db") as files:
        mail.call("POST /messages/m-0045/archive")
        mail.call("POST /messages", to=["dirk", "noor"], subject="Visit", body="We “come”\non 19 March – at nine.")
        mail.call("POST /messages/m-0001/move", folder="attic")
        files.call("DELETE /files/f-0003")
        mail.stop(), files.stop()
    return write_evidence(seeded, databases, databases)


@pytest.fixture
def busy_morning(morning: Path, tmp_path: Path) -> Any:
    from office_check import Check

    return Check(morning, tmp_path / "output")


def reward(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "output" / "reward.json").read_text())
    return found


def test_rows_are_read_by_their_keys_with_lists_and_flags_decoded(busy_morning: Any) -> None:
    row = busy_morning.mail.messages["m-0045"]
    assert (row.folder, row["from"], row.to) == (
        "archive",
        "facilities@hall-c.example",
        ["maya.okafor@tidemark.example"],
    )
    assert row.read is True
    assert busy_morning.before.mail.messages["m-0045"].folder == "inbox"
    assert busy_morning.documents.revisions["d-0001", 1].author == "ruth.abara@tidemark.example"
    assert len(busy_morning.mail.messages) == 61 and "m-0061" in busy_morning.mail.messages
    with pytest.raises(AttributeError, match="no field 'colour'"):
        _ = row.colour
    with pytest.raises(AttributeError, match="no table 'letters'"):
        _ = busy_morning.mail.letters


def test_a_row_that_is_not_there_equals_nothing(busy_morning: Any) -> None:
    row = busy_morning.mail.messages["m-9999"]
    assert not row and row.folder != "archive" and "x" not in row.to and list(row.labels) == []
    assert [*row.to, "x"] == ["x"]
    assert not busy_morning.says(row.body, "x")
    assert f"it is in {row.folder}" == "it is in nothing"


def test_differences_are_told_by_row(busy_morning: Any) -> None:
    mail, files = busy_morning.mail, busy_morning.files
    assert [row.id for row in mail.added("messages", folder="sent")] == ["m-0061"]
    assert mail.added("messages", folder="drafts") == [] and mail.removed("messages") == []
    assert [(before.folder, after.folder) for before, after in mail.changed("messages")] == [("inbox", "archive")]
    assert mail.changed("messages", but={"m-0045"}) == [] == mail.changed("messages", fields=("labels",))
    assert mail.touched("messages") == ["m-0061", "m-0045"] and files.touched("files", but=["f-0003"]) == []
    assert [after.trashed for _, after in files.changed("files")] == [True]
    assert (mail.untouched, busy_morning.chat.untouched, busy_morning.untouched) == (False, True, False)


def test_conditions_look_into_lists_texts_and_times(busy_morning: Any) -> None:
    messages = busy_morning.mail.messages
    assert [row.id for row in messages.where(to__has="dirk.pauwels@deltawaters.example", folder="sent")][-1] == "m-0061"
    assert [row.id for row in messages.where(body__says='we "come" on 19 march - at')] == ["m-0061"]
    assert [row.id for row in messages.where(body__says=("crushed boxes", "nowhere"))] == ["m-0015"]
    found = busy_morning.calendar.events.where(start__at="2026-02-18T12:30:00Z")
    assert [row.id for row in found] == ["e-0003"]
    assert busy_morning.calendar.events.where(start__at="2026-02-18T12:30:00") == []
    with pytest.raises(TypeError, match="has, says or at"):
        messages.where(to__contains="x")


def test_the_log_can_be_asked(busy_morning: Any) -> None:
    assert [entry.operation for entry in busy_morning.mail.actions(status=400)] == ["move_mail"]
    assert busy_morning.mail.actions("send_mail", via="http")[0].arguments["to"] == ["dirk", "noor"]
    assert busy_morning.chat.actions() == []


def test_the_reward_is_the_weighted_mean_of_the_items(
    busy_morning: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = busy_morning.mail.added("messages")[0]
    assert busy_morning.outside(sent.to) == {"dirk.pauwels@deltawaters.example"}
    assert busy_morning.item("it is archived", busy_morning.mail.messages["m-0045"].folder == "archive") is True
    busy_morning.item("half of it", 0.5, "one of two", weight=2)
    busy_morning.item("labelled", sent.labels, "no label")
    assert busy_morning.forbid("chat was used", busy_morning.chat.touched("messages")) is True
    assert busy_morning.finish() == 0.5
    assert reward(tmp_path) == {
        "reward": 0.5,
        "items_passed": 1,
        "items_total": 3,
        "forbidden": 0,
        "items": {"it_is_archived": 1.0, "half_of_it": 0.5, "labelled": 0.0},
    }
    assert capsys.readouterr().out.splitlines() == [
        "ok    1  it is archived",
        "0.50  2  half of it: one of two",
        "FAIL  1  labelled: no label",
        "ok     not: chat was used",
        "reward 0.5",
    ]


def test_what_was_forbidden_caps_the_reward(
    busy_morning: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy_morning.item("done", True)
    busy_morning.forbid("files were touched", busy_morning.files.changed("files"), cap=0.4)
    busy_morning.forbid("nothing of this", False)
    assert busy_morning.finish() == 0.4
    assert reward(tmp_path)["forbidden"] == 1
    assert "DONE   not: files were touched: f-0003" in capsys.readouterr().out
    busy_morning.forbid("all is lost", True)
    assert busy_morning.finish() == 0.0


def test_who_does_nothing_gets_nothing(seeded: Path, tmp_path: Path) -> None:
    from office_check import Check

    for name in SERVICES:
        shutil.copy(seeded / f"{name}.db", tmp_path)
    with serving("mail", tmp_path / "mail.db") as mail:
        mail.get("/messages/m-0001")
        mail.stop()
    check = Check(write_evidence(seeded, tmp_path, tmp_path), tmp_path / "output")
    check.item("nothing is wrong", True)
    assert check.mail.actions("read_mail") and check.untouched
    assert check.finish() == 0.0
    assert check.finish(untouched_is_fine=True) == 1.0


def test_a_check_that_makes_no_sense_is_refused(busy_morning: Any) -> None:
    with pytest.raises(ValueError, match="needs an item"):
        busy_morning.finish()
    with pytest.raises(ValueError, match="a share is in"):
        busy_morning.item("too much", 2)


def test_without_files_the_services_are_asked(
    start: Start, seeded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import office_check.evidence as evidence_module

    mail = start("mail")
    mail.call("POST /messages/m-0045/archive")
    monkeypatch.setattr(evidence_module, "load_service", _on_port(mail.port, evidence_module.load_service))
    found = evidence_module.Evidence.of_services(tmp_path, seeded.parent / "worlds")
    assert found.now.keys() == {"mail"}
    folders = [
        next(row["folder"] for row in tables["mail"]["messages"] if row["id"] == "m-0045")
        for tables in (found.before, found.now)
    ]
    assert folders == ["inbox", "archive"]
    assert found.before["mail"]["actions"] == []


def _on_port(port: int, load: Callable[[str], Any]) -> Callable[[str], Any]:
    """The service with its port, as if it listened where it does in the image."""

    def loaded(name: str) -> Any:
        service = load(name)
        service.port = port
        return service

    return loaded


def test_office_check_runs_a_check_file(tmp_path: Path) -> None:
    file = tmp_path / "check.py"
    file.write_text("import sys\nfrom office_check import Check\nprint(Check.__name__, sys.argv)\n")
    answer = run("office-check", str(file))
    assert (answer.returncode, answer.stdout) == (0, f"Check ['{file}']\n")
    assert run("office-check").returncode == 2
    assert "office-check FILE" in run("office-check", "--help").stdout
    file.write_text("raise SystemExit('the evidence is missing')\n")
    assert run("office-check", str(file)).returncode == 1
