"""Files of a stranger's task that are larger than they look, or no files at all: refused at once, by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.confined import MAX_TEXT
from benchflow.contracts.images import ImageConfig
from benchflow.errors import ImageBuildError, ManifestError, TaskError
from benchflow.planes.environment.environment_manifest import read_manifest
from benchflow.planes.sandbox.build_context import read_context
from benchflow.tasks import check, digest_tree
from benchflow.tasks.pack import MAX_BYTES
from benchflow.user_files.user_document import read_text

Builder = Callable[..., Path]

SMALL = 8 << 30
"""More than this process has memory, and less than a task may hold."""

VERIFIER_MD = """\
---
document_version: "0.3"
verifier: {strategies: {judged: {type: llm-judge, rubric: rubric.toml, context_file: notes.md}}}
---
"""
JUDGED = {
    "verifier/verifier.md": VERIFIER_MD,
    "verifier/rubric.toml": "[[criterion]]\ndescription = 'It is clear.'\n",
    "verifier/notes.md": "",
}


def grow(file: Path, size: int) -> None:
    """Make a file of this size that takes no space."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as opened:
        opened.truncate(size)


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("native", "task.md"),
        ("native", "prompts/role.coder.md"),
        ("native", "verifier/verifier.md"),
        ("native", "verifier/rubric.toml"),
        ("native", "verifier/notes.md"),
        ("native", "environment/Dockerfile"),
        ("native", "environment/docker-compose.yaml"),
        ("split", "task.toml"),
        ("split", "instruction.md"),
    ],
)
def test_a_file_that_is_too_large_to_be_read_is_a_problem_that_names_it(
    layout: str, name: str, native: Builder, split: Builder
) -> None:
    root = {"native": native, "split": split}[layout](files=JUDGED if layout == "native" else {})
    grow(root / name, SMALL)
    errors = [problem for problem in check(root) if problem.severity == "error"]
    assert [problem.file for problem in errors] == [str(root / name)]
    assert f"is larger than {MAX_TEXT} bytes" in errors[0].message


@pytest.mark.parametrize("name", ["verifier/test.sh", "oracle/solve.sh"])
def test_of_a_script_only_the_first_line_is_read(name: str, native: Builder) -> None:
    root = native(files={"oracle/solve.sh": "#!/bin/sh\n"})
    grow(root / name, SMALL)
    assert [problem for problem in check(root) if problem.severity == "error"] == []


def test_a_directory_of_more_than_a_task_may_hold_is_refused_before_it_is_read(native: Builder) -> None:
    root = native()
    grow(root / "environment" / "data", MAX_BYTES)
    (problem,) = check(root)
    assert (problem.file, "64 GiB" in problem.message) == (str(root / "environment" / "data"), True)
    with pytest.raises(TaskError, match="64 GiB"):
        digest_tree(root)


def test_a_pipe_is_not_waited_for(tmp_path: Path, native: Builder) -> None:
    root = native()
    os.mkfifo(root / "environment" / "pipe")
    (problem,) = check(root)
    assert problem.file == str(root / "environment" / "pipe")
    os.mkfifo(tmp_path / "Dockerfile")
    with pytest.raises(ImageBuildError, match="is a pipe"):
        read_context(ImageConfig(context=str(tmp_path)))
    os.mkfifo(tmp_path / "environment.toml")
    with pytest.raises(ManifestError, match="is a pipe"):
        read_manifest(tmp_path / "environment.toml")
    with pytest.raises(Exception, match="is a pipe"):
        read_text(tmp_path / "environment.toml")


@pytest.mark.parametrize("name", ["Dockerfile", ".dockerignore"])
def test_what_an_image_is_built_by_is_not_larger_than_a_text(name: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM alpine\n")
    grow(tmp_path / name, SMALL)
    with pytest.raises(ImageBuildError, match="is larger than") as caught:
        read_context(ImageConfig(context=str(tmp_path)))
    assert caught.value.file == str(tmp_path / name)
