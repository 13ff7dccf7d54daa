"""Trees of steps that are each verified, whose worker and server are killed as they grow: in the end they are those
that nobody disturbed. A tree of turns, in a world, is that of `test_office_trees_killed`.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.counted_task import BASE_IMAGE
from support.embedded import EmbeddedStack, Role, chance_of_this_run
from support.scored import assert_nothing_is_left, submit_job

from benchflow.paths import RolloutPaths
from benchflow.trajectories.growth import chain_of

pytestmark = [pytest.mark.crash, pytest.mark.soak]

VICTIMS: list[tuple[Role, ...]] = [("worker",), ("server",), ("worker", "server")]
STEPS = 3
CHILDREN = (2, 2, 2)
KILLS = 20

SOLVE = """#!/bin/sh
echo {step} >> /root/log
cat /proc/sys/kernel/random/uuid >> /root/who
sleep 0.5
"""
# Of the lines that this very world should have: a step that was done twice, or not at all, shows.
TEST = """#!/bin/sh
cp /root/log /root/who /logs/verifier/
if [ "$(tr '\\n' ' ' < /root/log)" = "{steps} " ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def write_growing_task(root: Path) -> Path:
    task = root / "growing"
    (task / "environment").mkdir(parents=True)
    (task / "environment" / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\nWORKDIR /app\n")
    names = [f"s{number}" for number in range(STEPS)]
    table = "".join(f'[[steps]]\nname = "{name}"\n' for name in names)
    (task / "task.toml").write_text(f'multi_step_reward_strategy = "final"\n{table}')
    (task / "instruction.md").write_text("Grow.\n")
    for done, name in enumerate(names, 1):
        step = task / "steps" / name
        for file, text in (
            ("instruction.md", f"Do {name}.\n"),
            ("solution/solve.sh", SOLVE.format(step=name)),
            ("tests/test.sh", TEST.format(steps=" ".join(names[:done]))),
        ):
            (step / file).parent.mkdir(parents=True, exist_ok=True)
            (step / file).write_text(text)
            (step / file).chmod(0o755)
    return task


async def test_a_tree_grows_as_if_nothing_had_happened(stack: EmbeddedStack, tmp_path: Path) -> None:
    chance, kills = chance_of_this_run(), KILLS
    task = write_growing_task(tmp_path / "tasks")
    branch = {"policy": {"kind": "after_steps", "steps": [0, 1, 2], "n": CHILDREN[0]}, "max_depth": 3}
    number = 0
    while kills > 0:
        job = await submit_job(stack, [task], tmp_path / "jobs", f"tree-{number}", branch=branch)
        number += 1
        ended = asyncio.create_task(job.wait())
        while kills > 0 and not ended.done():
            # Not a wait for anything: the moment of the crash is what is random.
            await asyncio.wait({ended}, timeout=chance.uniform(0.5, 5))
            if not ended.done() and stack.kill(*chance.choice(VICTIMS)):
                kills -= 1
        await ended
        (result,) = job.results()
        assert result.error is None, result.error
        assert (result.reward, result.reward_kind) == (1.0, "value")
        assert_is_whole(RolloutPaths(Path(str(result.directory))))
    assert_nothing_is_left(stack)


def assert_is_whole(paths: RolloutPaths) -> None:
    """Every leaf is there, with what its own path did, once, and nothing of another's."""
    nodes: list[dict[str, Any]] = json.loads(paths.tree.read_bytes())["nodes"]
    leaves = [node["id"] for node in nodes if node["id"].endswith(f"/n{STEPS}")]
    wanted = {f"n0.{a}/n1.{b}/n2.{c}/n3" for a in range(2) for b in range(2) for c in range(2)}
    assert set(leaves) == wanted
    assert all(node["value"] == 1.0 and node["failed"] == {} for node in nodes if node["id"] not in wanted)
    who = {}
    for leaf in leaves:
        place = paths.child(chain_of(leaf)).verifier_of("s2")
        assert (place / "log").read_text().split() == ["s0", "s1", "s2"]
        who[leaf] = (place / "who").read_text().split()
        assert len(who[leaf]) == STEPS
    # What two leaves share is what they did before they parted.
    for one in leaves:
        for other in leaves:
            pairs = zip(one.split("/"), other.split("/"), strict=True)
            parted = next((at for at, (mine, others) in enumerate(pairs) if mine != others), STEPS)
            shared = [mine == others for mine, others in zip(who[one], who[other], strict=True)]
            assert shared == [at < parted for at in range(STEPS)]
