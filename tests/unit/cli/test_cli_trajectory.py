"""A rollout's trajectory on a terminal, in a pipe and as data, once it is written."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest
from rich.cells import cell_len
from support.command_line import Bench
from support.told_rollouts import Line, end, make_job, one_rollout, say

from benchflow.cli.chosen import choose
from benchflow.cli.plain import cut, sanitise_plain, wrap
from benchflow.cli.trajectory import Rendering
from benchflow.contracts.rollout_records import Failure
from benchflow.errors import JobNotFoundError, UsageError

STAMP = "2025-01-02T03:04:05.000Z"


@pytest.fixture(autouse=True)
def _alone(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stack runs, and no cluster is meant."""
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


def rows(*lines: Line, width: int | None = 80) -> list[str]:
    """What is shown of a whole trajectory, behind the first header."""
    rendering = Rendering(width)
    shown = []
    for line in lines:
        shown += rendering.take({"ts": STAMP, "node": "n1", "role": "agent"} | line)
    shown += rendering.end()
    assert shown[0].plain.startswith("── n1 · agent ──")
    return [row.plain.rstrip() for row in shown[1:]]


def without_time(row: str) -> str:
    return re.sub(r"^\d\d:\d\d:\d\d  ", "", row)


# --- which rollout is meant ------------------------------------------------------------------------------


def test_a_rollout_is_named_by_its_directory_its_task_its_id_or_its_job_alone(jobs: Path) -> None:
    make_job(jobs, "greet")
    one = choose("j", jobs)
    assert one.paths.root.parent == jobs / "j"
    for name in ("j/greet", f"j/{one.paths.root.name}", f"j/{one.paths.root.name}/", one.id):
        assert choose(name, jobs) == one


def test_a_name_that_several_rollouts_have_is_an_error_that_lists_them(bench: Bench, jobs: Path) -> None:
    make_job(jobs, "greet", "leave", repeats=2)
    ran = bench("job", "watch", "j/greet", "--jobs-dir", jobs)
    assert ran.status == 2
    assert "there are 2 rollouts of that name in job j" in ran.err
    assert len(re.findall(r"j/greet__\w+ +greet #[01] · demo", ran.err)) == 2
    assert "leave" not in ran.err
    with pytest.raises(UsageError, match="there are 4 rollouts"):
        choose("j", jobs)


def test_a_long_list_of_choices_is_cut(jobs: Path) -> None:
    make_job(jobs, "greet", repeats=100)
    with pytest.raises(UsageError) as caught:
        choose("j", jobs)
    assert "and 80 more" in str(caught.value)


def test_an_unknown_rollout_is_an_error_that_lists_those_there_are(bench: Bench, jobs: Path) -> None:
    make_job(jobs, "greet")
    ran = bench("job", "watch", "j/nobody", "--jobs-dir", jobs)
    assert ran.status == 2
    assert "there is no rollout 'nobody'" in ran.err and "j/greet__" in ran.err


def test_an_id_of_another_jobs_directory_says_so(jobs: Path, tmp_path: Path) -> None:
    make_job(jobs, "greet")
    with pytest.raises(JobNotFoundError, match="in another directory"):
        choose(choose("j", jobs).id, tmp_path / "others")


def test_an_unknown_job_is_an_error(bench: Bench, jobs: Path) -> None:
    ran = bench("job", "watch", "nothing/greet", "--jobs-dir", jobs)
    assert ran.status == 2
    assert "this is not a job's directory" in ran.err


# --- what is there ---------------------------------------------------------------------------------------


def test_without_follow_what_is_there_is_shown(bench: Bench, jobs: Path) -> None:
    one_rollout(jobs, {"type": "user_message", "text": "Do it.\n"}, say("I have"), say(" begun."))
    ran = bench("job", "watch", "j/greet", "--jobs-dir", jobs)
    assert ran.status == 0, ran.err
    assert "❯ Do it.\n\n● I have begun.\n" in ran.out
    assert "It has no result yet. --follow shows what is still to come." in ran.out


def test_a_rollout_that_is_over_is_shown_with_what_it_came_to(bench: Bench, jobs: Path) -> None:
    failure = Failure(type="AgentExitError", category="agent_exit", message="it ended", log_tail="bye")
    paths = one_rollout(jobs, say("Done."))
    end(paths, status="errored", rewards=None, error=failure)
    ran = bench("job", "watch", "j/greet", "--jobs-dir", jobs)
    assert ran.status == 1
    assert "! errored  reward –" in ran.out
    assert "agent_exit" in ran.out and "it ended" in ran.out and "│ bye" in ran.out
    end(paths)
    ran = bench("job", "watch", "j/greet", "--jobs-dir", jobs)
    assert (ran.status, "✓ passed  reward 1.0" in ran.out) == (0, True)


def test_json_is_the_lines_of_the_file(bench: Bench, jobs: Path) -> None:
    paths = one_rollout(jobs, say("ä"), {"type": "update", "update": {"sessionUpdate": "x", "n": [1.5, None]}})
    ran = bench("job", "watch", "j/greet", "--jobs-dir", jobs, "--json")
    assert ran.status == 0
    assert ran.out == paths.trajectory.read_text()


def test_a_rollout_that_has_not_begun_shows_nothing(bench: Bench, jobs: Path) -> None:
    make_job(jobs, "greet")
    ran = bench("job", "watch", "j/greet", "--jobs-dir", jobs)
    assert ran.status == 0
    assert "It has no result yet." in ran.out


# --- how it looks ----------------------------------------------------------------------------------------


def test_chunks_of_one_voice_flow_into_one_paragraph() -> None:
    shown = rows(say("One"), say(" two.\n"), say("\n\n\nThree."), {"type": "agent_thought", "text": "hm"}, say("Four."))
    assert shown == ["", "● One two.", "", "  Three.", "", "∴ hm", "", "● Four."]


def test_chunks_are_broken_into_the_same_rows_as_the_whole_text() -> None:
    text = (
        "- first item that is long enough to be broken\n\n1. wide 日本語のテキスト " + "x" * 50 + " and the rest of it"
    )
    whole = rows(say(text), width=30)
    assert rows(*[say(letter) for letter in text], width=30) == whole
    assert max(map(cell_len, whole)) < 30
    assert whole[1:4] == ["● - first item that is long", "    enough to be broken", ""]


def test_a_row_that_is_not_complete_is_pending() -> None:
    rendering = Rendering(20)
    event = {"ts": STAMP, "node": "n1", "role": "agent"} | say("some words that are wra")
    assert [row.plain for row in rendering.take(event)][-1] == "● some words that"
    assert [row.plain for row in rendering.pending()] == ["  are wra"]


def test_a_tool_call_is_one_line_when_it_ends_with_a_cut_of_its_output() -> None:
    output = "\n".join(f"line {number}" for number in range(20))
    shown = rows(
        {"type": "tool_call", "tool_call_id": "a", "kind": "execute", "title": "make\ntest", "status": "pending"},
        {"type": "tool_call", "tool_call_id": "b", "kind": "read", "title": "", "raw_input": {"path": "/a"}},
        {"type": "tool_call_update", "tool_call_id": "b", "status": "failed", "raw_output": {"error": "no file"}},
        {"type": "tool_call_update", "tool_call_id": "a", "status": "in_progress"},
        {"type": "tool_call_update", "tool_call_id": "a", "status": "completed", "ts": "2025-01-02T03:04:07.500Z"}
        | {"content": [{"type": "content", "content": {"type": "text", "text": output}}]},
        {"type": "tool_call_update", "tool_call_id": "a", "status": "completed"},
    )
    assert [without_time(row).strip() for row in shown] == [
        "",
        *("✗ → /a", "│ no file"),
        "✓ $ make␤test  2.5 s",
        *("│ line 0", "│ line 1", "│ line 2", "│ … 14 more lines", "│ line 17", "│ line 18", "│ line 19"),
    ]
    local = datetime.fromisoformat(STAMP).astimezone()
    assert shown[1].startswith(f"{local:%H:%M:%S}")


def test_a_change_of_a_file_is_shown_as_one() -> None:
    diff = {"type": "diff", "path": "/a.py", "oldText": "one\ntwo\n", "newText": "one\n2\nthree\n"}
    call = {"type": "tool_call", "tool_call_id": "a", "kind": "edit", "title": "edit", "status": "completed"}
    shown = [row.strip() for row in rows(call | {"content": [diff]})]
    assert shown[2:] == ["│ /a.py  +2 −1", "│ -two", "│ +2", "│ +three"]


def test_a_call_without_an_end_is_shown_when_its_agent_stops() -> None:
    call = {"type": "tool_call", "tool_call_id": "a", "kind": "fetch", "title": "fetch", "status": "in_progress"}
    shown = [without_time(row) for row in rows(call, {"type": "agent_timeout", "reason": "idle", "timeout_sec": 600})]
    assert shown == ["", "◌ ↓ fetch", "", "! the agent said nothing in 600 s"]


def test_a_question_stands_with_its_answer() -> None:
    options = [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]
    asked = {"type": "permission_request", "params": {"toolCall": {"title": "edit a.py"}, "options": options}}
    chosen = {"type": "permission_answer", "result": {"outcome": {"outcome": "selected", "optionId": "y"}}}
    refused = {"type": "permission_answer", "result": {"outcome": {"outcome": "cancelled"}}, "error": "KeyError: x"}
    form = {"type": "elicitation_request", "params": {"message": "Who?"}}
    filled = {"type": "elicitation_answer", "result": {"action": "accept", "content": {"name": "Ada"}}}
    shown = [without_time(row).strip() for row in rows(asked, chosen, asked, refused, form, filled, form)]
    assert shown[1:] == [
        "? edit a.py  → Yes",
        *("? edit a.py  → cancelled", "│ KeyError: x"),
        "? Who?  → name: Ada",
        "? Who?  → no answer",
    ]


def test_plans_usage_and_what_nobody_knows_are_shown_too() -> None:
    plan = {"type": "plan", "entries": [{"content": "a", "status": "completed"}, {"content": "b"}]}
    cost = {"sessionUpdate": "usage_update", "used": 1200, "size": 2000, "cost": {"amount": 0.5, "currency": "EUR"}}
    shown = rows(
        plan,
        plan,
        {"type": "update", "update": {"sessionUpdate": "usage_update", "used": 5}},
        {"type": "update", "update": cost},
        {"type": "update", "update": {"sessionUpdate": "mood_update", "mood": "fine"}},
        {"type": "update", "update": None},
        {"type": "notification", "method": "_vendor/x", "params": {"n": 1}},
        {"type": "client_request", "method": "fs/read_text_file", "params": {"path": "/a"}},
        {"type": "noise", "text": "Loading"},
        {"type": "unheard_of", "of": 1},
        {"type": "oracle", "command": "/o/solve.sh", "return_code": 3, "stdout": "bad"},
    )
    assert [without_time(row).strip() for row in shown] == [
        *("", "✓ a", "○ b", ""),
        *("· mood_update", "· update", '· _vendor/x {"n": 1}', "· fs/read_text_file /a", "· Loading"),
        *('· unheard_of {"of": 1}', "✗ $ /o/solve.sh (ended with 3)", "│ bad"),
        *("", "1,200 of 2,000 tokens of context · 0.5 EUR"),
    ]


def test_another_node_or_role_gets_a_header() -> None:
    shown = rows(say("a"), {"node": "n2", "role": "reviewer"} | say("b"), {"type": "put_aside"}, say("c"))
    assert [row for row in shown if row.startswith("──")] == [
        "── n2 · reviewer ─" + "─" * 61,
        "── n1 · agent ─" + "─" * 64,
    ]


@pytest.mark.parametrize("line", [{}, {"type": "tool_call"}, {"type": "plan", "entries": [3, None]}, {"type": []}])
@pytest.mark.parametrize("rest", [{}, {"content": 3, "raw_input": [], "raw_output": [1], "status": ["a"]}])
def test_events_that_make_no_sense_are_shown_somehow(line: Line, rest: Line) -> None:
    for kind in ("tool_call", "permission_answer", "elicitation_answer", "update", "agent_timeout", "error"):
        assert rows({"type": kind} | line | rest, {"type": kind, "params": 3, "result": "x", "update": [1]} | rest)


NASTY = "a\x1b[31mb\x1b]0;title\x07c\x1bcd\x9b1Ae\x00\x08\u202ef\rg\x1b[\x1b[31m31mh\ud83d\x1b"


def test_what_a_terminal_would_act_upon_never_reaches_it(bench: Bench, jobs: Path) -> None:
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", sanitise_plain(NASTY))
    diff = {"type": "diff", "path": NASTY, "oldText": NASTY, "newText": f"{NASTY}\nx"}
    call = {"type": "tool_call", "tool_call_id": NASTY, "title": NASTY, "kind": NASTY, "status": "completed"}
    lines = [
        *(say(NASTY), {"type": "noise", "text": NASTY}, {"type": NASTY, NASTY: NASTY}),
        call | {"content": [diff], "raw_input": {"command": NASTY}},
        call | {"raw_output": NASTY},
        {"type": "plan", "entries": [{"content": NASTY}]},
        {"type": "permission_request", "params": {"toolCall": {"title": NASTY}}},
        {"type": "permission_answer", "result": {"outcome": {"outcome": NASTY}}, "error": NASTY},
        {"type": "error", "message": NASTY},
        {"type": "update", "update": {"sessionUpdate": NASTY}},
    ]
    for width in (None, 40):
        for row in rows(*lines, width=width):
            assert not re.search("[\x00-\x1f\x7f-\x9f\u202e\ud800-\udfff]", row), row
    one_rollout(jobs, *lines)
    ran = bench("job", "watch", "j/greet", "--jobs-dir", jobs)
    assert ran.status == 0
    assert "\x1b" not in ran.out and "\x07" not in ran.out


def test_a_short_output_is_shown_whole_and_of_none_nothing() -> None:
    assert cut("\n\na\nb\n\n") == ["a", "b"]
    assert cut("") == []
    assert len(cut("\n".join("abcdefg"))) == 7


@pytest.mark.parametrize("width", [10, 23, 80])
def test_no_row_is_wider_than_asked_for_and_nothing_is_lost(width: int) -> None:
    text = "some words, a-very-long-one-without-any-room-for-a-break, 日本語日本語日本語日本語 and more"
    found = wrap(text, width)
    assert all(cell_len(row.rstrip()) <= width for row in found)
    assert "".join("".join(found).split()) == "".join(text.split())
