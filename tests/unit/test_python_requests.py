"""What is asked for from Python is refused before anything starts where it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.task_writer import write_task

import benchflow as bf
from benchflow import errors


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path, "small")


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"subject": "oracle"}, "task_path"),
        ({"subject": bf.Agent("oracle")}, "environment"),
        ({"subject": bf.Agent("oracle"), "environment": bf.Environment(Path("x")), "task_path": "y"}, "task_path"),
        ({"subject": bf.RolloutConfig(task_path=Path("x")), "model": "m"}, "model"),
        ({"subject": "oracle", "task_path": "x", "runtime_config": bf.RuntimeConfig()}, "runtime_config"),
    ],
)
async def test_arguments_that_do_not_go_together_are_refused(arguments: dict[str, Any], key: str) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        await bf.run(**arguments)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"scenes": [bf.Scene.single(agent="orakel")]}, errors.ConfigError, "did you mean 'oracle'"),
        ({"scenes": [bf.Scene.single(agent="nop", model="gpt-x")]}, errors.ConfigError, "uses no model"),
        ({"environment": "cloud"}, errors.ConfigError, "no sandbox provider 'cloud'"),
        ({"job_name": "../up"}, errors.ConfigError, "cannot name a job"),
        ({"task_path": "nowhere"}, errors.TaskError, "nowhere"),
    ],
)
async def test_what_is_wrong_is_said_before_anything_starts(
    changes: dict[str, Any], error: type[errors.BenchFlowError], says: str, state: Path, task: Path
) -> None:
    config = bf.RolloutConfig(task_path=task, environment="noop").model_copy(update=changes)
    with pytest.raises(error, match=says):
        await bf.Rollout.create(config.model_copy(update={"task_path": Path(config.task_path)}))
    assert not state.exists()


def test_every_public_name_is_there() -> None:
    for name in bf.__all__:
        assert getattr(bf, name) is not None
    assert set(dir(bf)) == set(bf.__all__)
