"""A task of steps, each with a line in a log and a mark of its own: which of a tree's leaves did what shows in them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

from support.counted_task import BASE_IMAGE, enough

from benchflow.paths import RolloutPaths
from benchflow.trajectories.growth import get_branch_path

SOLVE = """#!/bin/sh
echo {name} >> /root/log
cat /proc/sys/kernel/random/uuid >> /root/who
touch {step}
{takes}
"""
# Of the lines that this very world should have: a step that was done twice, or not at all, shows.
TEST = """#!/bin/sh
cp /root/log /root/who /logs/verifier/
if [ "$(tr '\\n' ' ' < /root/log)" = "{names} " ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
CHILDREN = 2


def step(number: int) -> str:
    """Return the file that shows that this step has begun."""
    return f"/root/s{number}"


def write_growing_task(root: Path, steps: int, held: Collection[int] = ()) -> Path:
    """Write the task. held: steps that take until they are let go."""
    task = root / "growing"
    (task / "environment").mkdir(parents=True)
    (task / "environment" / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\nWORKDIR /app\n")
    names = [f"s{number}" for number in range(steps)]
    table = "".join(f'[[steps]]\nname = "{name}"\n' for name in names)
    (task / "task.toml").write_text(f'multi_step_reward_strategy = "final"\n{table}')
    (task / "instruction.md").write_text("Grow.\n")
    for number, name in enumerate(names):
        place = task / "steps" / name
        takes = f"until [ -e {enough(step(number))} ]; do sleep 0.2; done" if number in held else "sleep 0.5"
        for file, text in (
            ("instruction.md", f"Do {name}.\n"),
            ("solution/solve.sh", SOLVE.format(name=name, step=step(number), takes=takes)),
            ("tests/test.sh", TEST.format(names=" ".join(names[: number + 1]))),
        ):
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_text(text)
            (place / file).chmod(0o755)
    return task


def branch_after(steps: Sequence[int], **more: Any) -> dict[str, Any]:
    """Return the job's option `branch` for a tree that divides when so many steps are done; more: its other fields."""
    return {"policy": {"kind": "after_steps", "steps": steps, "n": CHILDREN}, "max_depth": len(steps)} | more


def assert_is_whole(paths: RolloutPaths, steps: int, divided: Sequence[int]) -> None:
    """Every leaf is there, with what its own path did, once, and nothing of another's.

    divided: after how many steps, as given to `branch_after`.
    """
    nodes: dict[str, dict[str, Any]] = {node["id"]: node for node in json.loads(paths.tree.read_bytes())["nodes"]}
    names = [f"s{number}" for number in range(steps)]
    who = {}
    for choices in product(range(CHILDREN), repeat=len(divided)):
        way = [f"n{done}.{choice}" for done, choice in zip(divided, choices, strict=True)]
        for depth, done in enumerate(divided):
            node = nodes["/".join([*way[:depth], f"n{done}"])]
            assert (node["value"], node["n"], node["failed"]) == (1.0, CHILDREN, {})
        leaf = "/".join([*way, f"n{steps}"])
        place = paths.child(get_branch_path(leaf)).verifier_of(names[-1])
        assert (place / "log").read_text().split() == names
        who[leaf] = (place / "who").read_text().split()
        assert len(who[leaf]) == steps
    assert {node for node in nodes if node.endswith(f"/n{steps}")} == set(who)
    # What two leaves share is what they did before they parted.
    for one, other in combinations(who, 2):
        pairs = zip(divided, one.split("/"), other.split("/"), strict=False)
        parted = next(done for done, mine, others in pairs if mine != others)
        shared = [mine == others for mine, others in zip(who[one], who[other], strict=True)]
        assert shared == [at < parted for at in range(steps)]
