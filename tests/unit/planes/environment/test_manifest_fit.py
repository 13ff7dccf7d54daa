"""A `base_image` must be what the task's own Dockerfile builds FROM."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow.contracts.environment import Manifest
from benchflow.contracts.sandbox_config import SandboxConfig
from benchflow.contracts.task import Task
from benchflow.errors import ManifestError
from benchflow.planes.environment.task_fit import check_task_fits, find_base_image
from benchflow.planes.sandbox.bases import add_tag

BASED = Manifest(name="world", base_image="org/base")


def fits(directory: Path, dockerfile: str | None, manifest: Manifest = BASED, image: str | None = None) -> str | None:
    if dockerfile is not None:
        (directory / "Dockerfile").write_text(dockerfile)
    task = Task(
        name="one",
        layout="native",
        config_file="task.md",
        instruction="Go.",
        sandbox=SandboxConfig(docker_image=image),
        dockerfile="Dockerfile" if dockerfile is not None else None,
    )
    return check_task_fits(manifest, task, source=Path("environment.toml"), directory=directory)


def test_a_task_that_builds_from_the_base_fits(tmp_path: Path) -> None:
    assert fits(tmp_path, "FROM org/base:latest\nRUN true\n") == "org/base:latest"
    assert fits(tmp_path, "FROM org/base\n") == "org/base"


def test_a_manifest_with_an_image_asks_nothing_of_the_tasks_dockerfile(tmp_path: Path) -> None:
    ready = Manifest(name="world", image="org/world")
    assert fits(tmp_path, None, ready) is None
    assert fits(tmp_path, "FROM other\n", ready) is None
    assert fits(tmp_path, None, ready, image="other") is None


@pytest.mark.parametrize(
    ("dockerfile", "image", "said"),
    [
        ("FROM org/base:2\n", None, "builds FROM org/base:2, not FROM org/base"),
        ("FROM other\n", None, "builds FROM other"),
        ("FROM org/base@sha256:00\n", None, "builds FROM org/base@sha256:00"),
        ("FROM org/base AS one\nFROM other\n", None, "builds FROM other"),
        ("RUN true\n", None, "it has no FROM"),
        ("ARG BASE\nFROM $BASE\n", None, "$BASE has no default"),
        (None, None, "has no environment/Dockerfile"),
        ("FROM org/base\n", "x:1", "docker_image"),
    ],
)
def test_a_task_from_elsewhere_is_refused_and_both_files_are_named(
    tmp_path: Path, dockerfile: str | None, image: str | None, said: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        fits(tmp_path, dockerfile, image=image)
    assert said in caught.value.message
    assert str(tmp_path) in caught.value.message
    assert (caught.value.file, caught.value.key) == ("environment.toml", "environment.base_image")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("dockerfile", "base"),
    [
        ("FROM a", "a"),
        ("# FROM z\nfrom a:1\n", "a:1"),
        ("FROM --platform=linux/amd64 a AS x\n", "a"),
        ("FROM a AS one\nFROM one AS Two\nCOPY --from=b /x /x\nFROM two\n", "a"),
        ("FROM a AS one\nFROM b\nCOPY --from=one /x /x\n", "b"),
        ("ARG TAG=7\nARG BASE=a:${TAG}\nFROM ${BASE}\n", "a:7"),
        ("ARG V=1\nFROM a:$V\nARG V=2\n", "a:1"),
        ("FROM \\\n  a \\\n  AS x\n", "a"),
    ],
)
def test_the_base_is_what_the_last_stage_comes_from(dockerfile: str, base: str) -> None:
    assert find_base_image(dockerfile) == base


def test_a_name_without_a_tag_means_latest() -> None:
    assert add_tag("a") == "a:latest"
    assert add_tag("host:5000/a") == "host:5000/a:latest"
    assert add_tag("host:5000/a:1") == "host:5000/a:1"
    assert add_tag("a@sha256:00") == "a@sha256:00"
