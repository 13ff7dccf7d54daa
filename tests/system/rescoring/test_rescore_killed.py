"""A rescoring that is killed in the middle: the next one of the same name goes on, and tidies up."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.stored_jobs import Past, answer, files_below, store_job, write_task, write_workspace

from benchflow.planes.sandbox import get_provider
from benchflow.rescoring import Request, RescoredRollout, rescore
from benchflow.rescoring.sandboxes import OWNER
from benchflow.testing.waiting import until

HANGS = "[ -e /app/hang ] && sleep 600\n"
"""A verifier that does not end where the workspace says so."""


@pytest.mark.crash
@pytest.mark.local
async def test_what_was_done_before_a_kill_is_not_done_again(jobs: Path, tmp_path: Path) -> None:
    score = 'read reward < /app/answer; echo "$reward" > /logs/verifier/reward.txt\n'
    tasks = [write_task(tmp_path / "tasks", name, test=HANGS + score) for name in ("done", "hangs")]
    past = {
        "done": Past({None: 0.25}, workspace=answer),
        "hangs": Past({None: 0.75}, workspace=lambda value: answer(value) | {"hang": ""}),
    }
    job = await store_job(tasks, jobs, past)
    [done], [hangs] = job.glob("done__*"), job.glob("hangs__*")
    first = done / "rescored" / "mine" / "result.json"
    command = [sys.executable, "-m", "benchflow.cli", "rescore", str(job), "--name", "mine", "--concurrency", "2"]
    said = tmp_path / "said"
    with said.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)

    async def is_in_the_middle() -> bool:
        assert process.returncode is None, said.read_text()
        return first.exists() and await get_provider("local").owned(OWNER) != []

    try:
        await until(is_in_the_middle)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    before, written = files_below(job), first.read_bytes()
    assert not (hangs / "rescored" / "mine" / "result.json").exists()
    write_workspace(hangs / "evidence" / "workspace.tar", answer(0.75))

    told: list[RescoredRollout] = []
    found = await rescore(job, Request(name="mine"), tell=lambda rollout, done, total: told.append(rollout))

    assert [(each.task_name, each.outcome, each.rewards) for each in found.rollouts] == [
        ("done", "unchanged", {"reward": 0.25}),
        ("hangs", "unchanged", {"reward": 0.75}),
    ]
    assert first.read_bytes() == written
    assert len(told) == 2
    assert await get_provider("local").owned(OWNER) == []
    changed = {name for name, content in files_below(job).items() if before.get(name) != content}
    assert changed == {f"{hangs.name}/evidence/workspace.tar"}
