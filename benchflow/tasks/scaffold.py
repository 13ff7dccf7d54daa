"""Create a new task on disk: small, complete, and solved by its own oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from benchflow.errors import StoreError, TaskError
from benchflow.tasks.layout import PLAIN_NAME

Layout = Literal["native", "split"]

_INSTRUCTION = """\
Write the text `Hello, world!` into the file `greeting.txt` in the current directory.
"""

_DOCKERFILE = """\
FROM debian:bookworm-slim
WORKDIR /app
"""

_TEST_SH = """\
#!/bin/bash
# Scores what the agent left behind. The reward is a number in /logs/verifier/reward.txt.
reward=0
if [ "$(cat /app/greeting.txt)" = "Hello, world!" ]; then
  reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
"""

_SOLVE_SH = """\
#!/bin/bash
# The reference solution: what the oracle agent runs.
set -euo pipefail
echo "Hello, world!" > /app/greeting.txt
"""

_TASK_MD = """\
---
schema_version: "1.4"
task:
  name: {full_name}
  description: Write a greeting into a file.
agent:
  timeout_sec: 600
verifier:
  timeout_sec: 60
sandbox:
  cpus: 1
  # A limit in MiB, of which a real agent's own programs need half a gigabyte and more before they start anything.
  memory_mb: 4096
---

{instruction}"""

_TASK_TOML = """\
schema_version = "1.4"

[task]
name = "{full_name}"
description = "Write a greeting into a file."

[agent]
timeout_sec = 600

[verifier]
timeout_sec = 60

[environment]
cpus = 1
# A limit in MiB, of which a real agent's own programs need half a gigabyte and more before they start anything.
memory_mb = 4096
"""


def init_task(parent: Path, name: str, *, layout: Layout = "native") -> Path:
    """Create a task in `parent`, and return its directory.

    Args:
        parent: Directory in which the task's own is made.
        name: Name of the task, or `org/name`; the organisation defaults to `benchflow`.
        layout: `native` for a task.md, `split` for a task.toml and an instruction.md.

    Raises:
        TaskError: The name can't be a directory's, or is taken.
        StoreError: A file can't be written.
    """
    organisation, slash, short = name.rpartition("/")
    for part in (organisation if slash else "benchflow", short):
        if PLAIN_NAME.fullmatch(part) is None:
            raise TaskError(
                f"{name!r} can't be the name of a task",
                remedy="use letters, digits, '.', '_' and '-', beginning with a letter or digit",
            )
    root = parent / short
    if root.exists():
        raise TaskError("exists already", file=str(root), remedy="choose another name")
    full_name = f"{organisation or 'benchflow'}/{short}"
    try:
        for path, text in _make_files(layout, full_name).items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            target.chmod(0o755 if target.suffix == ".sh" else 0o644)
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror or error}", file=str(root)) from error
    return root


def _make_files(layout: Layout, full_name: str) -> dict[str, str]:
    common = {"environment/Dockerfile": _DOCKERFILE}
    if layout == "native":
        return common | {
            "task.md": _TASK_MD.format(full_name=full_name, instruction=_INSTRUCTION),
            "verifier/test.sh": _TEST_SH,
            "oracle/solve.sh": _SOLVE_SH,
        }
    return common | {
        "task.toml": _TASK_TOML.format(full_name=full_name),
        "instruction.md": _INSTRUCTION,
        "tests/test.sh": _TEST_SH,
        "solution/solve.sh": _SOLVE_SH,
    }
