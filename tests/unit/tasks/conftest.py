"""Builders of task directories: a small valid task of each layout, changed as a test needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

TaskBuilder = Callable[..., Path]

TEST_SH = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"
SOLVE_SH = "#!/bin/sh\ntrue\n"


def write(root: Path, files: dict[str, str | bytes | None]) -> Path:
    """Write files below `root`; None leaves one out, a name ending in / is an empty directory."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = root / name
        if content is None:
            continue
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


@pytest.fixture
def split(tmp_path: Path) -> TaskBuilder:
    """`split(toml, **files)`: a task in the split layout."""

    def build(
        toml: str | bytes = "", files: dict[str, str | bytes | None] | None = None, *, name: str = "split-task"
    ) -> Path:
        content: dict[str, str | bytes | None] = {
            "task.toml": toml,
            "instruction.md": "Do it.\n",
            "environment/Dockerfile": "FROM scratch\n",
            "tests/test.sh": TEST_SH,
            "solution/solve.sh": SOLVE_SH,
        }
        return write(tmp_path / name, content | (files or {}))

    return build


@pytest.fixture
def native(tmp_path: Path) -> TaskBuilder:
    """`native(frontmatter, body, **files)`: a task in the native layout."""

    def build(
        frontmatter: str = "",
        body: str = "Do it.\n",
        files: dict[str, str | bytes | None] | None = None,
        *,
        name: str = "native-task",
    ) -> Path:
        content: dict[str, str | bytes | None] = {
            "task.md": f"---\n{frontmatter}---\n{body}",
            "environment/Dockerfile": "FROM scratch\n",
            "verifier/test.sh": TEST_SH,
            "oracle/solve.sh": SOLVE_SH,
        }
        return write(tmp_path / name, content | (files or {}))

    return build
