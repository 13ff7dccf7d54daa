"""Jobs with a mode, through the whole engine: GRPO groups for a trainer, and V(s) along one trunk."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from support.running import run_tasks
from support.task_writer import BASE_IMAGE, write_step, write_task

from benchflow.cli.resume import plan_again
from benchflow.contracts.modes import GrpoMode, ValueMode
from benchflow.jobs import submit
from benchflow.paths import StatePaths
from benchflow.trajectories.journal import read_journal

pytestmark = pytest.mark.local

SOLVE = "cat /proc/sys/kernel/random/uuid >> /app/who\n"
# What nobody can have but the one who has drawn it: between 1/16 and 1.
DRAWN = """
cp /app/who /logs/verifier/who
printf '%d\\n' "0x$(tail -n 1 /app/who | cut -c1)" | awk '{print ($1 + 1) / 16}' > /logs/verifier/reward.txt
"""
# Of the second step nothing is measured.
BROKEN = '[ "$(wc -l < /app/who)" = 2 ] || echo 1 > /logs/verifier/reward.txt\n'


def stepped(root: Path, name: str, *, steps: int = 2, test: str = DRAWN) -> Path:
    table = "".join(f'[[steps]]\nname = "s{number}"\n' for number in range(steps))
    task = write_task(
        root,
        name,
        config='multi_step_reward_strategy = "final"\n' + table,
        dockerfile=f"FROM {BASE_IMAGE}\nWORKDIR /app\n",
    )
    for number in range(steps):
        write_step(task, f"s{number}", solve=SOLVE, test=test)
    return task


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def drawn_by_children(rollout: Path) -> list[str]:
    """What the children of `n1` have drawn, which nobody draws twice."""
    steps = [rollout / "children" / f"n1.{child}" / "steps" / "s1" for child in range(2)]
    return [(step / "verifier" / "who").read_text().split()[-1] for step in steps]


def test_a_group_a_task_is_a_line_that_a_trainer_reads_without_its_tree(module_jobs: Path, tmp_path: Path) -> None:
    tasks = [stepped(tmp_path, "drawn"), stepped(tmp_path, "broken", test=BROKEN)]
    results = run_tasks(tasks, module_jobs, job_name="groups", sandbox="local", mode=GrpoMode(n=2, at=1))
    job = module_jobs / "groups"
    broken, drawn = lines(job / "groups.jsonl")
    assert (drawn["task"], drawn["agent"], drawn["repeat"]) == ("drawn", "oracle", 0)
    assert (drawn["n"], drawn["failed"], drawn["error"]) == (2, {}, None)
    returns = [leaf["returns"] for leaf in drawn["leaves"]]
    assert drawn["mean"] == pytest.approx(statistics.fmean(returns)) == results["drawn"].reward
    assert drawn["std"] == pytest.approx(statistics.stdev(returns))
    for leaf in drawn["leaves"]:
        wanted = (leaf["returns"] - drawn["mean"]) / (drawn["std"] + 1e-6)
        assert leaf["advantages"]["grpo"] == pytest.approx(wanted)
        events = [event for file in leaf["trajectory"] for event in read_journal(job / file)]
        assert [event.get("text") for event in events] == ["Do s0.", None, "Do s1.", None]
        assert [event["node"] for event in events] == ["n1", "n1", leaf["node"], leaf["node"]]
        assert leaf["is_truncated"] is False
    # One in which all failed has no number anywhere, and says so.
    assert (broken["n"], broken["mean"], broken["std"], broken["leaves"]) == (0, None, None, [])
    assert sorted(broken["failed"]) == ["n1.0", "n1.1"]
    assert broken["error"] == "none of its 2 children could be measured"

    # What is run again has its line again, and the others keep theirs.
    before = drawn_by_children(job / drawn["directory"])
    shutil.rmtree(job / drawn["directory"])

    async def resume() -> None:
        again = await submit(plan_again("groups", module_jobs, concurrency=2, context_root=None))
        assert again.started == 1
        await again.wait()

    asyncio.run(resume())
    same, anew = lines(job / "groups.jsonl")
    assert same == broken
    after = drawn_by_children(job / anew["directory"])
    assert anew["n"] == 2 and not {*after} & {*before}
    earned = sorted((int(who[0], 16) + 1) / 16 for who in after)
    assert sorted(leaf["returns"] for leaf in anew["leaves"]) == pytest.approx(earned)


def test_values_along_a_trunk_are_those_of_its_own_states(module_jobs: Path, tmp_path: Path) -> None:
    task = stepped(tmp_path, "valued", steps=3)
    mode = ValueMode(depths=(2, 0), n=2)
    result = run_tasks([task], module_jobs, job_name="valued", sandbox="local", mode=mode)["valued"]
    assert result.error is None and result.directory is not None
    # The trunk is a rollout as it would have been without a mode.
    assert result.reward_kind == "measured"
    assert [step.step.name for step in result.steps] == ["s0", "s1", "s2"]
    root = Path(result.directory)
    tree = {node["id"]: node for node in json.loads((root / "tree.json").read_bytes())["nodes"]}
    assert (tree["n3"]["returns"], tree["n3"]["parent"], tree["n2"]["parent"]) == (result.reward, "n2", "n1")
    rows = lines(module_jobs / "valued" / "values.jsonl")
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
    who = [(root / "steps" / f"s{step}" / "verifier" / "who").read_text().split() for step in range(3)]
    assert who[2][:2] == who[1] and who[1][:1] == who[0]
    for child in range(2):
        place = root / "children" / f"n2.{child}" / "steps" / "s2" / "verifier" / "who"
        assert place.read_text().split()[:2] == who[1]
        first = root / "children" / f"n0.{child}" / "steps" / "s0" / "verifier" / "who"
        assert first.read_text().split() != who[0]
    state = StatePaths.default()
    assert list(state.checkpoints.glob("*.json")) == []
    assert not list(state.slots.glob(f"*{result.sandbox['name']}*"))
