"""What a step's verifier leaves, looked for by an agent's program as it starts: in copies of the state, and after."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.agent_world import (
    LAUNCH,
    LOCAL,
    LONG_IN_DOCKER,
    SOLVE,
    TEST,
    Seen,
    declare,
    finished,
    submit_tasks,
    write_step,
    write_task,
)
from support.made_once import made_once

STEPS = ("first", "second", "third")
CHILDREN = 2

# Also where the agent is not told anything yet. The logs are there and empty in every new sandbox.
_LOOK = "{ ls -d /tests /verifier /logs/verifier/*; echo started; } >>/app/seen 2>/dev/null"


@made_once(params=[LOCAL, LONG_IN_DOCKER])
async def grown(root: Path, sandbox: str) -> list[Seen]:
    """The children of a state that was scored."""
    directory = root / "agents"
    declare(directory, "looking", launch=["sh", "-c", f'{_LOOK}\nexec "$@"', "looking", *LAUNCH])
    config = "\n".join(f'[[steps]]\nname = "{name}"' for name in STEPS)
    hand_in = {"run": "cp /app/seen /logs/artifacts/seen"}
    task = write_task(root / "tasks", "steps", *[[SOLVE, hand_in]] * len(STEPS), config=config)
    for name in STEPS:
        write_step(task, name, f"echo expected: 42 >/logs/verifier/expected\n{TEST}")
    branch = {"policy": {"kind": "after_steps", "steps": [1], "n": CHILDREN}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHFLOW_AGENTS_DIR", os.fspath(directory))
        job = await submit_tasks([task], root / "jobs", sandbox=sandbox, agents=["looking"], branch=branch)
        (result,) = (await finished(job)).values()
    paths = sorted(result.paths.root.glob("children/*"))
    return [Seen(result.result.model_copy(update={"directory": str(path)})) for path in paths]


def test_an_agent_that_starts_finds_nothing_of_the_verifiers_before_it(grown: list[Seen]) -> None:
    assert len(grown) == CHILDREN
    for child in grown:
        assert child.made("seen").split() == ["started"] * 3
