"""A task whose every step leaves a count, so that whatever ran twice, or not at all, shows in the results.

Setup, solution and verifier append a line each to a file of the sandbox and then take their time: so many seconds, or,
held, until the test lets them go by making a file. The verifier copies the counts to the artifacts and gives 1 only if
each of the earlier steps ran exactly once.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection
from pathlib import Path

BASE_IMAGE = os.environ.get("BENCHFLOW_TEST_IMAGE", "debian:bookworm-slim")
SETUP, SOLVED, VERIFIED = "/root/set-up", "/root/solved", "/root/verified"
BUILT = "/mark"

_TEST = f"""#!/bin/sh
echo verified >> {VERIFIED}
{{takes}}
mkdir -p /logs/artifacts
cp {SETUP} {SOLVED} {VERIFIED} /logs/artifacts/
if [ "$(cat {SETUP} {SOLVED} {VERIFIED} | tr '\\n' ' ')" = "set-up solved verified " ]; then echo 1; else echo 0; fi \\
  > /logs/verifier/reward.txt
"""


def enough(step: str) -> str:
    """Return the file that a held step waits for in its sandbox."""
    return f"{step}.enough"


def write_counted_task(
    root: Path,
    name: str,
    sandbox: str,
    *,
    setup_sec: float = 0.0,
    solve_sec: float = 0.2,
    verify_sec: float = 0.2,
    build: bool = False,
    held: Collection[str] = (),
    in_clean_room: bool = False,
) -> Path:
    """Write the task.

    Args:
        sandbox: Provider to be. For the local one the host stands for the base image, which a Dockerfile names.
        setup_sec: Seconds that the setup takes after it left its line; likewise `solve_sec`, `verify_sec`.
        build: Whether an image is built that has a step of its own.
        held: Steps (`SETUP`, `SOLVED`, `VERIFIED`, `BUILT`) that take until there is the file `enough(step)` instead.
        in_clean_room: Whether its verifier has a sandbox of its own.
    """

    def takes(step: str, seconds: float) -> str:
        return f"until [ -e {enough(step)} ]; do sleep 0.1; done" if step in held else f"sleep {seconds:g}"

    task = root / name
    for directory in ("environment", "tests", "solution"):
        (task / directory).mkdir(parents=True)
    image = f'docker_image = "{BASE_IMAGE}"'
    if build or sandbox == "local":
        image = ""
        # A build that was never done before, so that none is answered from a cache.
        mark = f"{name}-{secrets.token_hex(4)}"
        run = f"RUN echo {mark} > {BUILT} && {takes(BUILT, 0)}\n" if build else ""
        (task / "environment" / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\n{run}")
    (task / "task.toml").write_text(
        f"[environment]\n{image}\n\n[[environment.setup_commands]]\n"
        f'command = "echo set-up >> {SETUP}; {takes(SETUP, setup_sec)}"\n\n'
        f'[verifier]\nenvironment_mode = "{"separate" if in_clean_room else "shared"}"\n'
    )
    (task / "instruction.md").write_text("Leave one line.\n")
    for script, text in (
        ("solution/solve.sh", f"#!/bin/sh\necho solved >> {SOLVED}\n{takes(SOLVED, solve_sec)}\n"),
        ("tests/test.sh", _TEST.format(takes=takes(VERIFIED, verify_sec))),
    ):
        (task / script).write_text(text)
        (task / script).chmod(0o755)
    return task


def write_counted_tasks(
    root: Path, count: int, sandbox: str, *, held: Collection[str] = (), in_clean_room: bool = False, **times: float
) -> list[Path]:
    """Write so many tasks; arguments as in `write_counted_task`."""
    names = [f"count-{number}" for number in range(count)]
    return [write_counted_task(root, name, sandbox, held=held, in_clean_room=in_clean_room, **times) for name in names]
