"""What is only noted about the work, and how findings come together in a report."""

from __future__ import annotations

from benchflow.contracts.reward import HardeningFinding, HardeningReport
from benchflow.planes.reward.hardening import note_doubts
from benchflow.planes.reward.hardening.hardening_record import MAX_FINDINGS, extend_report, note_paths
from benchflow.planes.reward.hardening.survey import Survey
from benchflow.planes.reward.hardening.work_notes import note_work

NOTE = HardeningFinding(item="kill_processes", action="killed", detail="sleep")
TAMPERING = HardeningFinding(item="verify_tools", action="restored", path="/usr/bin/diff", weight="tampering")


def test_links_that_installers_make_are_left_out() -> None:
    venv = {"/app/env/lib64": "lib", "/app/env/bin/python": "python3"}
    brought = {"/app/node_modules/.bin/tool": "../tool/cli.js", "/app/.git/hooks": "../hooks"}
    links = {"/app/new": "old", "/app/kept": "old", "/app/out": "/etc/passwd", "/app/moved": "there", **venv, **brought}
    before = Survey(links={"/app/kept": "old", "/app/moved": "here"})
    now = Survey(links=links, found=["/app/env/pyvenv.cfg"])
    [note] = note_work(before, now, "/app", [])
    assert (note.item, note.path) == ("remove_escaping_links", "/app/moved")
    assert note.detail == "is a link to another file of the workspace, there; 1 more: /app/new"
    assert note_work(before, now, "", []) == []


def test_a_new_package_hides_a_module_that_was_there_or_is() -> None:
    before = Survey(modules=["/app/old.py", "/app/known.py", "/app/known/__init__.py"])
    modules = ["/app/old/__init__.py", "/app/new.py", "/app/new/__init__.py", "/app/other/__init__.py"]
    now = Survey(modules=[*modules, "/app/known.py", "/app/known/__init__.py"])
    [note] = note_work(before, now, "/app", [])
    assert (note.item, note.path) == ("cleanup_python_hooks", "/app/old/__init__.py")
    assert note.detail.endswith("; 1 more: /app/new/__init__.py")


def test_what_was_there_before_is_no_note() -> None:
    said = {"/app/a.db": ["CREATE VIEW a"]}
    same = Survey(naming=["/app/x"], acting=said, plugins={"/app/e": ["p"]}, packages=["/app/node_modules/m"])
    same = same.model_copy(update={"equal": ["/app/any.py"], "journals": ["/app/a.db-wal"]})
    same = same.model_copy(update={"dashed": ["/app/-n"], "temporary": ["/tmp/a"]})
    assert note_work(same, same, "/app", []) == []
    # A hook is one of a repository.
    now = Survey(hooks=["/app/hooks/pre-commit", "/app/.git/hooks/pre-commit"], git=["/app/.git/config"])
    assert [note.path for note in note_work(Survey(), now, "/app", [])] == ["/app/.git/hooks/pre-commit"]
    assert note_work(Survey(), Survey(plugins={"/app/e": ["p", "p"]}), "/app", ["p"]) == []


def test_runs_of_pytest_that_were_not_believed_are_told_once() -> None:
    said = "\nbenchflow: this run of pytest counts as failed: the code that is tested has skipped tests/a.py::b\n"
    [note] = note_doubts(f"1 passed{said}{said}")
    assert (note.item, note.weight) == ("pin_environment", "note")
    assert note.detail == "a run of pytest failed: the code that is tested has skipped tests/a.py::b"
    assert note_doubts("it says benchflow: this run of pytest counts as failed: no") == []


def test_one_note_names_the_first_of_many_paths() -> None:
    assert note_paths("verify_tools", ["/a"], "was changed").detail == "was changed"
    many = note_paths("verify_tools", [f"/{number}" for number in range(9)], "was changed")
    assert (many.path, many.detail) == ("/0", "was changed; 8 more: /1, /2, /3, /4, /5, …")
    assert note_paths("verify_tools", ["/\udcff"], "").path == r"/\xff"


def test_a_report_takes_more_findings_once_and_tampering_first() -> None:
    first = HardeningReport(findings=[NOTE], disabled=["own_workspace"])
    whole = extend_report(first, [NOTE, TAMPERING])
    assert (whole.findings, whole.left_out, whole.disabled) == ([TAMPERING, NOTE], 0, ["own_workspace"])
    assert extend_report(whole, [TAMPERING]) == whole
    notes = [
        HardeningFinding(item="cleanup_conftests", action="removed", path=f"/{number}")
        for number in range(MAX_FINDINGS)
    ]
    full = extend_report(HardeningReport(), [*notes, TAMPERING])
    assert (len(full.findings), full.findings[0], full.left_out) == (MAX_FINDINGS, TAMPERING, 1)
