"""Jobs with a mode: GRPO groups for a trainer, also when one is run again, and V(s) along one trunk."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from support.in_process_worker import InProcessWorker

from benchflow.cli.resume import plan_again
from benchflow.jobs import submit
from benchflow.rescoring import RescoringRequest, rescore
from benchflow.trajectories.journal import read_journal


@pytest.fixture(autouse=True)
def drawn(worker: InProcessWorker) -> None:
    worker.provider.draws = True


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_a_group_is_a_line_that_a_trainer_reads_without_its_tree_and_one_that_is_run_again_another(
    worker: InProcessWorker,
) -> None:
    tasks = [worker.stepped(2, name=name, final=True) for name in ("first", "second")]
    job = await worker.submit(*tasks, mode={"kind": "grpo", "n": 2, "at": 1})
    results = {result.task_name: result for result in await worker.results(job)}
    root = job.directory.root
    first, second = lines(root / "groups.jsonl")
    assert (second["task"], second["agent"], second["repeat"]) == ("second", "oracle", 0)
    assert (second["n"], second["failed"], second["error"]) == (2, {}, None)
    returns = [leaf["returns"] for leaf in second["leaves"]]
    assert second["mean"] == pytest.approx(statistics.fmean(returns)) == results["second"].reward
    assert second["std"] == pytest.approx(statistics.stdev(returns))
    for leaf in second["leaves"]:
        wanted = (leaf["returns"] - second["mean"]) / (second["std"] + 1e-6)
        assert leaf["advantages"]["grpo"] == pytest.approx(wanted)
        events = [event for file in leaf["trajectory"] for event in read_journal(root / file)]
        assert [event["node"] for event in events] == ["n1", "n1", leaf["node"], leaf["node"]]
        assert leaf["is_truncated"] is False

    # What is run again has its line again, and the others keep theirs.
    shutil.rmtree(root / second["directory"])
    again = await submit(plan_again(job.name, root.parent, concurrency=2, context_root=None))
    assert again.started == 1
    await again.wait()
    same, anew = lines(root / "groups.jsonl")
    assert same == first
    # A result that can't be read is no reason for no summary.
    unreadable = next((root / first["directory"]).glob("children/*/result.json"))
    unreadable.write_text("{")
    again.summarize()
    same, anew = lines(root / "groups.jsonl")
    assert [leaf["is_truncated"] for leaf in same["leaves"]].count(None) == 1
    assert anew["n"] == 2 and not {*returns} & {leaf["returns"] for leaf in anew["leaves"]}


async def test_values_along_a_trunk_are_those_of_its_own_states(worker: InProcessWorker) -> None:
    mode = {"kind": "value", "depths": [2, 0], "n": 2}
    job = await worker.submit(worker.stepped(final=True), mode=mode)
    (result,) = await worker.results(job)
    assert result.error is None and result.directory is not None
    # The trunk is a rollout as it would have been without a mode.
    assert result.reward_kind == "measured"
    assert [step.step.name for step in result.steps] == ["s0", "s1", "s2"]
    root = Path(result.directory)
    tree = {node["id"]: node for node in json.loads((root / "tree.json").read_bytes())["nodes"]}
    assert (tree["n3"]["returns"], tree["n3"]["parent"], tree["n2"]["parent"]) == (result.reward, "n2", "n1")
    rows = lines(job.directory.values)
    assert [(row["depth"], row["node"], row["n"], row["error"]) for row in rows] == [
        (0, "n0", 2, None),
        (2, "n2", 2, None),
    ]
    for row in rows:
        ends = {f"{row['node']}.{child}": tree[f"{row['node']}.{child}/n3"]["returns"] for child in range(2)}
        assert row["returns"] == ends
        known = [tree[row["node"]][name] for name in ("value", "variance", "stderr")]
        assert [row[name] for name in ("value", "variance", "stderr")] == known
        assert row["value"] == pytest.approx(statistics.fmean(ends.values()))
        assert row["stderr"] == pytest.approx(math.sqrt(statistics.variance(ends.values()) / 2))
    left = list(worker.provider.drawn.values())
    trunk = worker.provider.drawn[result.sandbox["name"]]
    assert len(trunk) == 3
    # Two began with what the trunk's first two turns had left, and two with nothing.
    assert sum(drawn[:2] == trunk[:2] and drawn != trunk for drawn in left) == 2
    assert sum(drawn[:1] != trunk[:1] and len(drawn) == 3 for drawn in left) == 2
    assert worker.provider.images == {} and list(worker.context.paths.checkpoints.glob("*.json")) == []


async def test_scored_again_a_group_has_its_line_anew_and_the_first_stays(worker: InProcessWorker) -> None:
    job = await worker.submit(worker.stepped(2, final=True), mode={"kind": "grpo", "n": 2, "at": 1})
    (result,) = await worker.results(job)
    root = job.directory.root
    (before,) = lines(root / "groups.jsonl")
    child = Path(str(result.directory)) / "children" / "n1.0"
    (child / "steps" / "s1" / "verifier" / "reward.txt").write_text("0.25\n")
    found = await rescore(root, RescoringRequest(name="anew"))
    (record,) = found.rollouts
    assert (record.outcome, record.error) == ("changed", None)
    place = root / "rescored" / "anew"
    (after,) = lines(place / "groups.jsonl")
    kept = {leaf["node"]: leaf["returns"] for leaf in before["leaves"]} | {"n1.0/n2": 0.25}
    assert {leaf["node"]: leaf["returns"] for leaf in after["leaves"]} == kept
    assert after["mean"] == pytest.approx(statistics.fmean(kept.values())) == record.reward
    for old, new in zip(before["leaves"], after["leaves"], strict=True):
        assert new["advantages"] != old["advantages"]
        assert [(place / file).resolve() for file in new["trajectory"]] == [root / file for file in old["trajectory"]]
        assert new["is_truncated"] is False
    assert lines(root / "groups.jsonl") == [before]


async def test_scored_again_values_along_a_trunk_are_written_anew(worker: InProcessWorker) -> None:
    mode = {"kind": "value", "depths": [2, 0], "n": 2}
    job = await worker.submit(worker.stepped(final=True), mode=mode)
    (result,) = await worker.results(job)
    before = lines(job.directory.values)
    child = Path(str(result.directory)) / "children" / "n2.1"
    (child / "steps" / "s2" / "verifier" / "reward.txt").write_text("0.25\n")
    (record,) = (await rescore(job.directory.root, RescoringRequest(name="anew"))).rollouts
    # The trunk's own reward is as it was.
    assert (record.outcome, record.rewards) == ("unchanged", result.rewards)
    first, second = lines(job.directory.root / "rescored" / "anew" / "values.jsonl")
    same = ("depth", "node", "n", "value", "variance", "stderr", "returns")
    assert [first[name] for name in same] == [before[0][name] for name in same]
    assert second["returns"] == before[1]["returns"] | {"n2.1": 0.25}
    assert second["value"] == pytest.approx(statistics.fmean(second["returns"].values()))
