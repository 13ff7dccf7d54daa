"""The tasks by which stored rollouts are scored again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.task_writer import write_task

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.job import TaskRef
from benchflow.errors import TaskValueError
from benchflow.paths import StatePaths
from benchflow.rescoring.tasks import Tasks
from benchflow.tasks import digest_tree

TAKING = """
[verifier]
env = { A = "${TAKEN_HERE}", B = "${NOT_SET_HERE:-}" }
[environment]
docker_image = "i"
"""


@pytest.mark.parametrize("is_given", [False, True], ids=["recorded", "given"])
async def test_a_task_that_takes_variables_is_scored_by_only_if_the_user_agrees(
    is_given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, state = write_task(tmp_path / "set" / "takes", config=TAKING), StatePaths(tmp_path / "state")
    ref = TaskRef(
        name=path.name,
        digest=digest_tree(path),
        pack=ArtifactRef(uri="file:///nowhere", sha256="0" * 64, size=0),
        source=str(path),
    )
    given = path.parent if is_given else None
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    monkeypatch.delenv("TAKEN_HERE", raising=False)
    assert (await Tasks(given, state, take_variables=False).find(ref)).task.name == path.name
    monkeypatch.setenv("TAKEN_HERE", "geheim")
    assert (await Tasks(given, state, take_variables=True).find(ref)).task.name == path.name
    with pytest.raises(TaskValueError) as caught:
        await Tasks(given, state, take_variables=False).find(ref)
    assert caught.value.message == "takes variables of your environment: TAKEN_HERE"
