"""Files that are appended to: every line once, whatever is repeated or cut off in between."""

from __future__ import annotations

import json
import os
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchflow.contracts.reward import RewardEvent
from benchflow.contracts.rollout_records import Step, StepOutcome, TurnResult
from benchflow.paths import RolloutPaths
from benchflow.results.write import begin_run, write_rewards
from benchflow.trajectories import journal as journal_module
from benchflow.trajectories.journal import NodeWriter, append_node, format_timestamp, read_heads, read_journal
from benchflow.trajectories.rollout_tree import build_tree

TWO = [{"type": "user_message", "text": "do"}, {"type": "agent_message", "text": "done"}]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "trajectory" / "acp_trajectory.jsonl"


def test_lines_are_numbered_and_marked(journal: Path) -> None:
    assert append_node(journal, "n1", "agent", TWO) == (0, 2)
    assert append_node(journal, "n2", "critic", TWO[:1]) == (2, 3)
    lines = read_journal(journal)
    assert [(line["seq"], line["node"], line["role"]) for line in lines] == [
        (0, "n1", "agent"), (1, "n1", "agent"), (2, "n2", "critic")
    ]  # fmt: skip


def test_appending_again_changes_nothing(journal: Path) -> None:
    append_node(journal, "n1", "agent", TWO)
    before = journal.read_bytes()
    assert append_node(journal, "n1", "agent", TWO) == (0, 2)
    assert journal.read_bytes() == before


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_line_that_was_cut_is_mended(journal: Path, kept: int) -> None:
    append_node(journal, "n1", "agent", TWO)
    whole = journal.read_bytes()
    first = whole.index(b"\n") + 1
    os.truncate(journal, first + kept if kept > 0 else len(whole) + kept)
    assert len(read_journal(journal)) == 1
    assert append_node(journal, "n1", "agent", TWO) == (0, 2)
    assert [line["text"] for line in read_journal(journal)] == ["do", "done"]
    assert journal.read_bytes().startswith(whole[:first])


def test_line_ends_inside_a_text_are_no_line_ends(journal: Path) -> None:
    odd = [{"type": "agent_message", "text": "a\nb\u2028c\u0085d\re\x0bf"}]
    append_node(journal, "n1", "agent", odd)
    append_node(journal, "n2", "agent", odd)
    assert [line["text"] for line in read_journal(journal)] == [odd[0]["text"]] * 2


def test_half_a_character_does_not_keep_a_line_out(journal: Path) -> None:
    append_node(journal, "n1", "agent", [{"type": "agent_message", "text": "cut \ud83d here"}])
    assert read_journal(journal)[0]["text"] == "cut ? here"


def test_writers_at_the_same_time_add_a_node_once(journal: Path) -> None:
    many = [{"type": "agent_message", "text": str(number)} for number in range(200)]
    threads = [threading.Thread(target=append_node, args=(journal, "n1", "agent", many)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line["seq"] for line in read_journal(journal)] == list(range(200))


def test_heads_are_of_the_same_lines(journal: Path) -> None:
    append_node(journal, "n1", "agent", TWO)
    append_node(journal, "n\u00e4", "agent", TWO)
    with journal.open("ab") as file:
        file.write(b'{"node": "later", "seq": 4}\n{"seq": 5')
    lines = read_journal(journal)
    assert len(lines) == 5
    assert read_heads(journal) == [{"seq": line["seq"], "node": line["node"]} for line in lines]


@pytest.mark.parametrize(("limit", "value"), [("MAX_EVENTS", 3), ("MAX_TRAJECTORY", 300)])
def test_a_trajectory_is_full_at_some_size_and_still_takes_the_engines_own_lines(
    journal: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(journal_module, limit, value)
    with closing(NodeWriter(journal, "n1", "agent")) as writer:
        writer.add(TWO)
        assert not writer.is_full
        writer.add(TWO)
        assert writer.is_full
    # So says whoever takes over.
    with closing(NodeWriter(journal, "n1", "agent")) as writer:
        assert writer.is_full
        assert writer.skip(4)
        writer.add([{"type": "agent_error"}])
    assert len(read_journal(journal)) == 5


def test_times_are_rfc_3339_in_utc() -> None:
    moment = datetime.fromisoformat("2026-01-02T03:04:05.678901+02:00")
    assert format_timestamp(moment) == "2026-01-02T01:04:05.678Z"


def test_no_journal_is_an_empty_one(journal: Path) -> None:
    assert read_journal(journal) == []


# --- rewards.jsonl -------------------------------------------------------------------------------------


def event(value: float, source: str = "script") -> RewardEvent:
    return RewardEvent(value=value, source=source, ts=datetime(2026, 1, 1, tzinfo=UTC))


def test_a_step_that_is_scored_again_replaces_its_events_only(tmp_path: Path) -> None:
    paths = RolloutPaths(tmp_path)
    odd = "a\u2028b\u0085c\nd"
    write_rewards(paths, 0, [event(0.1, odd)])
    write_rewards(paths, 1, [event(0.2), event(0.3)])
    write_rewards(paths, 1, [event(0.4)])
    lines = [json.loads(line) for line in paths.rewards.read_text().split("\n") if line]
    assert [(line["step_index"], line["value"], line["source"]) for line in lines] == [
        (0, 0.1, odd), (1, 0.4, "script")
    ]  # fmt: skip


# --- attempts ------------------------------------------------------------------------------------------


def test_what_an_earlier_run_left_is_set_aside_once(tmp_path: Path) -> None:
    paths = RolloutPaths(tmp_path)
    for run in ("one", "one", "two", "two", "three"):
        begin_run(paths, {"run_id": run})
        paths.result.write_text(run)
    assert paths.result.read_text() == "three"
    assert [(tmp_path / "attempts" / n / "result.json").read_text() for n in ("1", "2")] == ["one", "two"]
    assert json.loads((tmp_path / "attempts" / "2" / "config.json").read_text()) == {"run_id": "two"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempts", "config.json", "result.json"]


# --- the tree ------------------------------------------------------------------------------------------


def test_the_tree_of_a_linear_rollout_is_a_chain(journal: Path) -> None:
    append_node(journal, "n1", "agent", TWO)
    append_node(journal, "n2", "agent", TWO[:1])
    steps = [
        StepOutcome(step=Step(index=index, agent="oracle"), turn=TurnResult(stop_reason="end_turn")) for index in (0, 1)
    ]
    tree = build_tree("job/r", steps, read_journal(journal))
    assert [(node.id, node.parent, node.events) for node in tree.nodes] == [
        ("n0", None, (0, 0)), ("n1", "n0", (0, 2)), ("n2", "n1", (2, 3))
    ]  # fmt: skip
    assert [node.id for node in tree.leaves] == ["n2"]
    assert [node.id for node in tree.path("n2")] == ["n0", "n1", "n2"]
    with pytest.raises(KeyError):
        tree.path("n9")
