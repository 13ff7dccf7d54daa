"""A world without a manifest, branched: one HTTP service, whose worker is killed while it is made, and while copied.

Its state is in its memory alone. Each step adds a note that no other world has, and the verifier keeps what is there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.board_environment import PORT, PROVISIONING, RESTORING
from support.counted_task import BASE_IMAGE
from support.embedded import EmbeddedStack
from support.growing_task import branch_after
from support.paths import SUPPORT
from support.scored import assert_nothing_is_left, finish, submit_job
from support.worlds import seldom_on_docker

from benchflow.contracts.rollout_records import RolloutResult
from benchflow.paths import RolloutPaths

SOLVE = f"""#!/bin/sh
note="{{name}} $(cat /proc/sys/kernel/random/uuid)"
python3 -c 'import sys, urllib.request as u; u.urlopen("http://127.0.0.1:{PORT}/add", sys.argv[1].encode())' "$note"
"""
TEST = f"""#!/bin/sh
cp /root/board-starts /logs/verifier/
python3 - <<'END'
import json, os, urllib.request as u
notes = json.load(u.urlopen("http://127.0.0.1:{PORT}/"))
shown = json.load(open(os.environ["BENCHFLOW_ENVIRONMENT"] + "/state.json"))["data"]
good = [note.split()[0] for note in notes] == {{names!r}} and shown == notes
open("/logs/verifier/notes.json", "w").write(json.dumps(notes))
open("/logs/verifier/reward.txt", "w").write(str(int(good)))
END
"""


def write_task(root: Path) -> Path:
    """Write a task of two steps."""
    task = root / "noted"
    (task / "environment").mkdir(parents=True)
    (task / "environment" / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\nWORKDIR /app\n")
    names = ["first", "second"]
    table = "".join(f'[[steps]]\nname = "{name}"\n' for name in names)
    (task / "task.toml").write_text(f'multi_step_reward_strategy = "final"\n{table}')
    (task / "instruction.md").write_text("Add notes.\n")
    for number, name in enumerate(names):
        for file, text in (
            ("instruction.md", f"Add the {name}.\n"),
            ("solution/solve.sh", SOLVE.format(name=name)),
            ("tests/test.sh", TEST.format(names=names[: number + 1])),
        ):
            place = task / "steps" / name / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            place.chmod(0o755)
    return task


def kept(paths: RolloutPaths, step: str) -> list[str]:
    """Return the notes that a verifier has found."""
    notes: list[str] = json.loads((paths.verifier_of(step) / "notes.json").read_bytes())
    return notes


def assert_each_child_goes_on_with_the_notes_of_its_parent(result: RolloutResult) -> None:
    assert result.error is None, result.error
    assert (result.reward, result.reward_kind) == (1.0, "value")
    paths = RolloutPaths(Path(str(result.directory)))
    first = kept(paths, "first")
    children = [kept(paths.child(f"n1.{number}"), "second") for number in range(2)]
    assert all(child[:1] == first and len(child) == 2 for child in children)
    assert children[0][1] != children[1][1]
    for number in range(2):
        child = paths.child(f"n1.{number}")
        # Once in the parent, whose files it has, and once in its own sandbox.
        assert (child.verifier_of("second") / "board-starts").read_text() == "started\n" * 2
        state: dict[str, Any] = json.loads((child.state("second") / "state.json").read_bytes())
        assert state["data"] == children[number]
    assert not [warning for warning in result.warnings if "answer" in warning]
    assert result.environment["name"] == "board"


@pytest.fixture
def held() -> dict[str, Any]:
    """Options of a job in a board that is held."""
    return {"environment_import_path": "board_environment:HeldBoard", "environment_root": SUPPORT}


@seldom_on_docker
async def test_a_board_is_branched_though_its_workers_are_killed(
    handed_over: None, stack: EmbeddedStack, tmp_path: Path, held: dict[str, Any]
) -> None:
    job = await submit_job(stack, [write_task(tmp_path / "tasks")], tmp_path / "jobs", branch=branch_after([1]), **held)
    await stack.in_step(PROVISIONING)
    victims = stack.kill("worker")
    await stack.worker(other_than=victims)
    stack.let_go(PROVISIONING)
    first, *others = await stack.in_step(RESTORING, 2)
    victims = stack.kill("worker")
    stack.let_go(RESTORING, [first])
    await stack.worker(other_than=victims)
    stack.let_go(RESTORING, others)
    await finish(job)
    (result,) = job.results()
    assert_each_child_goes_on_with_the_notes_of_its_parent(result)
    await assert_nothing_is_left(stack)
