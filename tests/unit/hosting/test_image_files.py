"""What the image of a task is made from that names a ready image and has files beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.idle_sandbox import IdleProvider
from support.task_writer import write_script, write_task

from benchflow.contracts.images import ImageConfig
from benchflow.hosting.blueprint import Blueprint
from benchflow.tasks import load_task


class Builds(IdleProvider):
    """Keeps what it was asked to build."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[ImageConfig] = []

    async def build(self, config: ImageConfig, *, log: Path | None = None) -> Any:
        self.asked.append(config)
        return await super().build(config, log=log)


def split(root: Path, environment: str = "", config: str = "") -> Path:
    return write_task(root, environment=f'docker_image = "img:1"\n{environment}', config=f"{config}\n# docker_image")


def native(root: Path, environment: str = "", config: str = "") -> Path:
    task = root / "task"
    (task / "environment").mkdir(parents=True)
    lines = [f"  {line}" for line in environment.replace(" = ", ": ").splitlines()]
    front = "\n".join(["image: img:1", *(["sandbox:", *lines] if lines else [])])
    (task / "task.md").write_text(f"---\n{front}\n---\nMake the answer.\n")
    write_script(task / "verifier" / "test.sh", "true\n")
    return task


LAYOUTS = pytest.mark.parametrize("write", [split, native], ids=["split", "native"])
Write = Callable[..., Path]


async def asked(directory: Path, *, room: bool = False, external: Path | None = None) -> ImageConfig:
    provider = Builds()
    task = load_task(directory)

    async def never(_: Any) -> Path:
        raise AssertionError

    blueprint = Blueprint(task, directory, external, None, never, provider, hidden=())
    if room:
        blueprint = blueprint.adapt_to_verifier(None, task.verifier, "/where/the/agent/was")
    await blueprint.prepare_image()
    (config,) = provider.asked
    return config


@LAYOUTS
async def test_files_go_into_the_workdir_that_the_task_names(tmp_path: Path, write: Write) -> None:
    task = write(tmp_path, 'workdir = "/work"')
    (task / "environment" / "data").write_text("x")
    (task / "environment" / "skills").mkdir()
    config = await asked(task, external=tmp_path)
    assert (config.image, config.context) == ("img:1", str(task / "environment"))
    assert (config.files_target, config.exclude) == ("/work", ("skills",))
    (task / "environment" / "skills" / "SKILL.md").write_text("x")
    assert (await asked(task)).digest == config.digest
    (task / "environment" / "data").write_text("y")
    assert (await asked(task)).digest != config.digest


@pytest.mark.parametrize(("write", "place"), [(split, "/"), (native, "/app")], ids=["split", "native"])
async def test_without_a_workdir_they_go_where_the_layout_has_its_workspace(
    tmp_path: Path, write: Write, place: str
) -> None:
    task = write(tmp_path)
    (task / "environment" / ".hidden").write_text("x")
    config = await asked(task)
    assert config.context is not None and (config.files_target, config.files_fallback) == (None, place)


@LAYOUTS
@pytest.mark.parametrize("files", [[], ["skills/SKILL.md"], [".gitkeep"], ["data", "Dockerfile"]])
async def test_where_there_are_none_or_a_dockerfile_uses_them_the_image_is_ready(
    tmp_path: Path, write: Write, files: list[str]
) -> None:
    task = write(tmp_path)
    for name in files:
        (task / "environment" / name).parent.mkdir(exist_ok=True)
        (task / "environment" / name).write_text("FROM x\n")
    config = await asked(task)
    assert (config.image, config.context) == ("img:1", None)


@pytest.mark.parametrize("table", ["", 'workdir = "/elsewhere"'])
async def test_a_clean_room_has_the_same_files_in_the_same_place(tmp_path: Path, table: str) -> None:
    verifier = f'[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\n{table}\n'
    task = split(tmp_path, 'workdir = "/work"', verifier)
    (task / "environment" / "data").write_text("x")
    assert await asked(task, room=True) == await asked(task)


async def test_a_clean_room_of_another_image_has_none_of_them(tmp_path: Path) -> None:
    verifier = '[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\ndocker_image = "other:1"\n'
    task = split(tmp_path, "", verifier)
    (task / "environment" / "data").write_text("x")
    config = await asked(task, room=True)
    assert (config.image, config.context) == ("other:1", None)
