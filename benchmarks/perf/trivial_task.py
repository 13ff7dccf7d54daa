"""The task that overhead is measured with: the solution writes a file, the verifier looks at it."""

from __future__ import annotations

import os
from pathlib import Path

IMAGE = os.environ.get("BENCHFLOW_PERF_IMAGE", "debian:bookworm-slim")
SOLVE = "#!/bin/bash\necho done > /root/answer.txt\n"
TEST = """#!/bin/bash
if [ "$(cat /root/answer.txt)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def write_trivial_task(root: Path, *, ready_image: bool = True) -> Path:
    """Write the task in the split layout, which other harnesses read too; returns its directory.

    ready_image: it names one; else it has a Dockerfile with nothing but that image, for sandboxes that only build.
    """
    task = root / "trivial"
    table, dockerfile = f'\n[environment]\ndocker_image = "{IMAGE}"\n', {}
    if not ready_image:
        table, dockerfile = "", {"environment/Dockerfile": f"FROM {IMAGE}\n"}
    files = {
        "task.toml": f'version = "1.0"\n{table}',
        **dockerfile,
        "instruction.md": "Write done into /root/answer.txt.\n",
        "solution/solve.sh": SOLVE,
        "tests/test.sh": TEST,
    }
    (task / "environment").mkdir(parents=True)
    for name, text in files.items():
        path = task / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    return task
