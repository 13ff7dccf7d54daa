"""The tasks by which stored rollouts are scored again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.task_writer import write_task

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.job import TaskRef
from benchflow.paths import StatePaths
from benchflow.rescoring.found_tasks import FoundTask, Tasks
from benchflow.store import Store
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


async def found(path: Path, state: Path, given: Path | None = None, **how: object) -> FoundTask:
    return await Tasks(Store.open(), StatePaths(state), given, **how).find(reference(path))  # type: ignore[arg-type]


async def test_a_task_that_names_code_is_scored_by_only_if_the_user_allows_it(tmp_path: Path, state: Path) -> None:
    path = write_task(tmp_path, config="[[reward.funcs]]\ntype = 'theirs.tone:Politeness'\n")
    failure = (await found(path, state, allow_code=())).by.failure
    assert failure is not None and failure.type == "TaskError"
    assert (failure.key, failure.remedy) == (
        "reward.funcs[0].type",
        "if you trust it, allow it yourself: --allow-code theirs.tone",
    )
    assert (await found(path, state, allow_code=["theirs"])).by.failure is None


@pytest.mark.parametrize("is_given", [False, True], ids=["recorded", "given"])
async def test_a_task_that_takes_variables_is_scored_by_only_if_the_user_agrees(
    is_given: bool, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_task(tmp_path / "set" / "takes", config=TAKING)
    given = path.parent if is_given else None
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    monkeypatch.delenv("TAKEN_HERE", raising=False)
    assert (await found(path, state, given, take_variables=False)).by.failure is None
    monkeypatch.setenv("TAKEN_HERE", "geheim")
    taking = await found(path, state, given)
    assert (taking.by.failure, taking.variables) == (None, {"TAKEN_HERE", "NOT_SET_HERE"})
    failure = (await found(path, state, given, take_variables=False)).by.failure
    assert failure is not None and failure.message == "takes variables of your environment: TAKEN_HERE"


async def test_a_build_context_that_the_store_has_lost_fails_the_task_and_not_the_scoring(
    tmp_path: Path, state: Path
) -> None:
    path = write_task(tmp_path / "builds")
    lost = ArtifactRef(uri=(tmp_path / "lost").as_uri(), sha256="1" * 64, size=1)
    by = (
        await Tasks(Store.open(), StatePaths(state), None).find(reference(path).model_copy(update={"context": lost}))
    ).by
    assert by.ref is None and by.failure is not None
    assert by.failure.type == "TaskError" and "the build context of task 'task'" in by.failure.message
