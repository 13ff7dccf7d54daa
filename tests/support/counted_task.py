"""A task whose every step leaves a count, so that whatever ran twice, or not at all, shows in the results.

Setup, solution and verifier append a line each to a file of the sandbox and then take their time. The verifier
copies the counts to the artifacts and gives 1 only if each of the earlier steps ran exactly once.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

BASE_IMAGE = os.environ.get("BENCHFLOW_TEST_IMAGE", "debian:bookworm-slim")
SETUP, SOLVED, VERIFIED = "/root/set-up", "/root/solved", "/root/verified"
ENOUGH = "/root/enough"
SOLVE_SEC = "BENCHFLOW_TEST_SOLVE_SEC"
"""Set where a job is submitted, this variable says how long its solutions take: another run, but the same task."""

IN_THE_MIDDLE = 8.0
"""Seconds of a step in whose middle something is to happen: the tests must find it there, on however busy a machine."""

_TEST = f"""#!/bin/sh
echo verified >> {VERIFIED}
sleep {{seconds}}
mkdir -p /logs/artifacts
cp {SETUP} {SOLVED} {VERIFIED} /logs/artifacts/
if [ "$(cat {SETUP} {SOLVED} {VERIFIED} | tr '\\n' ' ')" = "set-up solved verified " ]; then echo 1; else echo 0; fi \\
  > /logs/verifier/reward.txt
"""


def write_counted_task(
    root: Path,
    name: str,
    sandbox: str,
    *,
    setup_sec: float = 0,
    solve_sec: float = 3,
    verify_sec: float = 0.5,
    build_sec: float | None = None,
    in_clean_room: bool = False,
    held: bool = False,
) -> Path:
    """Write the task. The times are how long each step takes after it left its line; build_sec: that of an image.
    in_clean_room: its verifier runs there. held: its solution takes until the file `ENOUGH` is there instead.

    sandbox: the provider to be. For the local one the host stands for the base image, which it takes from a Dockerfile.
    """
    task = root / name
    for directory in ("environment", "tests", "solution"):
        (task / directory).mkdir(parents=True)
    image = f'docker_image = "{BASE_IMAGE}"'
    if build_sec is not None or sandbox == "local":
        image = ""
        # A build that was never done before, so that none is answered from a cache.
        mark = f"{name}-{secrets.token_hex(4)}"
        run = "" if build_sec is None else f"RUN echo {mark} > /mark && sleep {build_sec:g}\n"
        (task / "environment" / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\n{run}")
    (task / "task.toml").write_text(
        f"[environment]\n{image}\n\n[[environment.setup_commands]]\n"
        f'command = "echo set-up >> {SETUP}; sleep {setup_sec:g}"\n\n'
        f'[verifier]\nenvironment_mode = "{"separate" if in_clean_room else "shared"}"\n\n'
        f'[solution]\nenv = {{ SOLVE_SEC = "${{{SOLVE_SEC}:-{solve_sec:g}}}" }}\n'
    )
    (task / "instruction.md").write_text("Leave one line.\n")
    takes = f"until [ -e {ENOUGH} ]; do sleep 0.1; done" if held else "sleep $SOLVE_SEC"
    _script(task / "solution" / "solve.sh", f"#!/bin/sh\necho solved >> {SOLVED}\n{takes}\n")
    _script(task / "tests" / "test.sh", _TEST.format(seconds=f"{verify_sec:g}"))
    return task


def write_counted_tasks(
    root: Path, count: int, sandbox: str, *, in_clean_room: bool = False, held: bool = False, **times: float
) -> Sequence[Path]:
    names = [f"count-{number}" for number in range(count)]
    how = {"in_clean_room": in_clean_room, "held": held}
    return [write_counted_task(root, name, sandbox, **how, **times) for name in names]


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
