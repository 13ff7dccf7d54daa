"""What is undone leaves a rollout's files, and lies beside them, whoever tries how often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchflow.contracts.rollout_records import Step
from benchflow.paths import RolloutPaths
from benchflow.results.reverted_files import (
    detach_reverted_calls,
    get_reverted_paths,
    list_child_usage,
    move_end_aside,
    move_reverted_aside,
)
from benchflow.trajectories.journal import append_node, read_journal


def step(index: int, name: str | None) -> Step:
    return Step(index=index, name=name, agent="oracle")


def call(seq: int, node: str | None, turn: int | None) -> dict[str, Any]:
    head = {"type": "request", "id": f"c{seq}", "seq": seq, "node": node, "role": "agent", "turn": turn}
    return head | {"request": {"text": ', "node": "n2"', "turn": 7}}


def written(paths: RolloutPaths) -> None:
    for node, count in (("n1", 2), ("n2", 3)):
        append_node(paths.trajectory, node, "agent", [{"type": "said", "number": number} for number in range(count)])
    lines = [{"step_index": index, "value": index} for index in (0, 1)]
    paths.rewards.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("s0", "s1"):
        (paths.verifier_of(name)).mkdir(parents=True)
        (paths.verifier_of(name) / "log").write_text(name)
    child = paths.child("n2.0")
    child.root.mkdir(parents=True)
    child.result.write_text('{"n_input_tokens": 3, "n_output_tokens": 4, "cost_usd": 0.5}')


def test_what_belongs_to_a_node_is_moved_and_the_rest_stays(tmp_path: Path) -> None:
    paths = RolloutPaths(tmp_path)
    written(paths)
    (used,) = list_child_usage(paths, ["n2.0", "n2.1"])
    assert (used.input_tokens, used.output_tokens, used.cost, used.currency) == (3, 4, 0.5, "USD")
    before = [event for event in read_journal(paths.trajectory) if event["node"] == "n2"]
    for _ in range(2):
        move_reverted_aside(paths, "1", undone=["n2"], steps=[step(1, "s1")], chains=["n2.0", "n2.1"])
        aside = get_reverted_paths(paths, "1")
        assert [event["node"] for event in read_journal(paths.trajectory)] == ["n1", "n1"]
        assert read_journal(aside.trajectory) == before
        assert [line["step_index"] for line in read_journal(paths.rewards)] == [0]
        assert [line["step_index"] for line in read_journal(aside.rewards)] == [1]
        assert (paths.verifier_of("s0") / "log").read_text() == "s0"
        assert not paths.verifier_of("s1").exists() and (aside.verifier_of("s1") / "log").read_text() == "s1"
        assert not paths.child("n2.0").root.exists() and aside.child("n2.0").result.exists()
    # It is gone another way now, under the same names.
    assert append_node(paths.trajectory, "n2", "agent", [{"type": "said", "number": 9}]) == (2, 3)


def test_what_was_collected_at_the_end_goes_with_the_result_whenever_a_crash_stops_it(tmp_path: Path) -> None:
    paths = RolloutPaths(tmp_path)
    files = {
        "agent/log",
        "agent/sessions/1/in",
        "artifacts/answer",
        "environment/logs/mail",
        "rescored/same/result.json",
    }
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    paths.config.write_text('{"run_id": "first"}')
    move_end_aside(paths, "1", {"run_id": "second"})
    assert (tmp_path / "artifacts" / "answer").exists(), "it had not ended"
    paths.result.write_text("{}")
    # As an attempt leaves it that ends after its first rename.
    aside = get_reverted_paths(paths, "1")
    aside.root.mkdir(parents=True)
    paths.result.replace(aside.result)
    for _ in range(2):
        move_end_aside(paths, "1", {"run_id": "second"})
        left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
        stays = {"agent/sessions/1/in", "config.json", "rollbacks/1/result.json"}
        assert left == stays | {f"rollbacks/1/{name}" for name in files - stays}
        assert json.loads(paths.config.read_text()) == {"run_id": "second"}


def test_what_a_sandbox_was_before_anybody_acted_stays_while_a_step_is_left(tmp_path: Path) -> None:
    paths = RolloutPaths(tmp_path)
    for begun, left in ((1, ["baseline.json"]), (0, [])):
        paths.evidence().mkdir(exist_ok=True)
        for name in ("baseline.json", "settled.json"):
            (paths.evidence() / name).write_text("{}")
        move_reverted_aside(paths, str(begun), undone=[], steps=[step(begun, None)], chains=[])
        assert [file.name for file in paths.evidence().iterdir()] == left


def test_calls_that_were_for_nothing_lead_nowhere_and_count_all_the_same(tmp_path: Path) -> None:
    record = tmp_path / "llm_trajectory.jsonl"
    detach_reverted_calls(record, ["n2"], "1")
    assert not record.exists()
    lines = [call(0, "n1", 0), {"type": "response", "id": "c0"}, call(1, "n2", 1), call(2, None, None)]
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for _ in range(2):
        detach_reverted_calls(record, ["n2"], "1")
        found = read_journal(record)
        assert [line.get("node") for line in found] == ["n1", None, "n2~1", None]
        assert found[2] == lines[2] | {"node": "n2~1", "turn": None}
        assert [found[0], found[1], found[3]] == [lines[0], lines[1], lines[3]]
