"""The workbench of one stored rollout, as a reward function gets it in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stored_jobs import Past, answer, store_job, write_task

from benchflow.errors import JobNotFoundError, VerifierError
from benchflow.planes.sandbox import get_provider
from benchflow.planes.sandbox.owners import OF_A_PROCESS
from benchflow.rescoring import open_stored_workbench


@pytest.mark.local
async def test_it_runs_the_tests_and_commands_in_the_kept_workspace(jobs: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks", "one")
    job = await store_job([task], jobs, {"one": Past({None: 0.5}, workspace=answer)})
    [rollout] = job.glob("one__*")

    async with open_stored_workbench(rollout) as bench:
        assert await get_provider("local").owned(OF_A_PROCESS) == [], "nothing is started before somebody asks"
        assert (await bench.tests()).reward == 0.5
        said = await bench.run("look", ["sh", "-c", "cat answer more"], files={"/app/more": b"and more"})
        assert said.stdout == "0.5\nand more"
        assert await bench.read("answer", limit=100) == b"0.5\n"
        assert await bench.read("nothing", limit=100) is None
        assert len(await get_provider("local").owned(OF_A_PROCESS)) == 1

    assert await get_provider("local").owned(OF_A_PROCESS) == []
    assert not (rollout / "rescored").exists()


async def test_without_a_workspace_it_tells_the_first_result_and_runs_nothing(jobs: Path, tmp_path: Path) -> None:
    job = await store_job([write_task(tmp_path / "tasks", "one")], jobs, {"one": Past({None: 0.5})})
    [rollout] = job.glob("one__*")

    async with open_stored_workbench(rollout) as bench:
        assert (await bench.tests()).reward == 0.5
        with pytest.raises(VerifierError, match="was not kept") as caught:
            await bench.run("look", ["true"])

    assert caught.value.remedy is not None and "--keep workspace" in caught.value.remedy


async def test_where_no_rollout_is_there_is_no_workbench(tmp_path: Path) -> None:
    with pytest.raises(JobNotFoundError):
        async with open_stored_workbench(tmp_path):
            pass
