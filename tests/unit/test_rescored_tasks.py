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


def reference(path: Path) -> TaskRef:
    pack = ArtifactRef(uri="file:///nowhere", sha256="0" * 64, size=0)
    return TaskRef(name=path.name, digest=digest_tree(path), pack=pack, source=str(path))


async def test_a_task_that_names_code_is_scored_by_only_if_the_user_allows_it(tmp_path: Path) -> None:
    path = write_task(tmp_path, config="[[reward.funcs]]\ntype = 'theirs.tone:Politeness'\n")
    state = StatePaths(tmp_path / "state")
    with pytest.raises(TaskValueError) as caught:
        await Tasks(None, state, allow_code=()).find(reference(path))
    assert (caught.value.key, caught.value.remedy) == (
        "reward.funcs[0].type",
        "if you trust it, allow it yourself: --allow-code theirs.tone",
    )
    assert (await Tasks(None, state, allow_code=["theirs"]).find(reference(path))).task.reward is not None


@pytest.mark.parametrize("is_given", [False, True], ids=["recorded", "given"])
async def test_a_task_that_takes_variables_is_scored_by_only_if_the_user_agrees(
    is_given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, state = write_task(tmp_path / "set" / "takes", config=TAKING), StatePaths(tmp_path / "state")
    ref = reference(path)
    given = path.parent if is_given else None
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    monkeypatch.delenv("TAKEN_HERE", raising=False)
    assert (await Tasks(given, state, take_variables=False).find(ref)).task.name == path.name
    monkeypatch.setenv("TAKEN_HERE", "geheim")
    assert (await Tasks(given, state, take_variables=True).find(ref)).task.name == path.name
    with pytest.raises(TaskValueError) as caught:
        await Tasks(given, state, take_variables=False).find(ref)
    assert caught.value.message == "takes variables of your environment: TAKEN_HERE"
