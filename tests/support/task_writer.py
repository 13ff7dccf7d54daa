"""Small tasks for engine tests, written into a directory of the test's own."""

from __future__ import annotations

from pathlib import Path

BASE_IMAGE = "debian:bookworm-slim"


def write_task(
    root: Path,
    name: str = "task",
    *,
    solve: str = "echo done > /root/answer\n",
    test: str = "[ -e /root/answer ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n",
    config: str = "",
    environment: str = "",
    dockerfile: str | None = None,
) -> Path:
    """A split-layout task. config: of `task.toml`; environment: lines of its `[environment]` table.

    Without a Dockerfile it starts from the base image.
    """
    task = root / name
    for directory in ("environment", "tests", "solution"):
        (task / directory).mkdir(parents=True, exist_ok=True)
    if dockerfile is None and "docker_image" not in config:
        environment = f'docker_image = "{BASE_IMAGE}"\n{environment}'
    if dockerfile is not None:
        (task / "environment" / "Dockerfile").write_text(dockerfile)
    if environment:
        config += f"\n[environment]\n{environment}\n"
    (task / "task.toml").write_text(config)
    (task / "instruction.md").write_text("Make the answer.\n")
    for file, body in (("tests/test.sh", test), ("solution/solve.sh", solve)):
        write_script(task / file, body)
    return task


def write_step(task: Path, name: str, *, solve: str, test: str) -> None:
    """The files of one of the task's `[[steps]]`."""
    step = task / "steps" / name
    step.mkdir(parents=True)
    (step / "instruction.md").write_text(f"Do {name}.\n")
    write_script(step / "tests" / "test.sh", test)
    write_script(step / "solution" / "solve.sh", solve)


def write_script(file: Path, body: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{body}")
    file.chmod(0o755)
