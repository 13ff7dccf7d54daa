"""A benchmark of one service that keeps its actions in memory, and in SQLite, and tasks of two steps in it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from support.paths import SUPPORT
from support.task_writer import BASE_IMAGE, write_step, write_task

PORT = 9200
ADDRESS = f"http://localhost:{PORT}"

DOCKERFILE = f"""\
FROM {BASE_IMAGE}
COPY recall /usr/local/bin/recall
RUN chmod 755 /usr/local/bin/recall && mkdir -p /data
WORKDIR /root
"""

MANIFEST = f"""\
[environment]
name = "recall"
base_image = "{BASE_IMAGE}"
owns_lifecycle = false

[environment.task_selection]
mechanism = "image"

[[environment.services]]
name = "recall"
command = "recall /data/recall.db {PORT}"
port = {PORT}
"""
STATE = '\n[environment.state]\npaths = ["/data/recall.db"]\n'

_ASK = "import sys, urllib.request as u; print(u.urlopen(u.Request(sys.argv[2], method=sys.argv[1])).read().decode())"
_COUNT = "import json, sys; d = json.load(sys.stdin); print(float(len(d['actions'] if 'actions' in d else d) == {}))"


def observing(*paths: str) -> str:
    """Return the manifest of a world that declares these paths of its service."""
    return f"{MANIFEST}{STATE}{_observed(paths)}"


def write_recall(root: Path, reads: str, text: str = MANIFEST + STATE) -> Path:
    """Write a package with the task `acts`; return its task.

    Each of its two steps does one thing. What the service has at a path must be all that was done until then.

    Args:
        root: Directory of the package.
        reads: The path that its verifiers read.
        text: The manifest.
    """
    steps = "".join(f'[[steps]]\nname = "s{number}"\n' for number in (1, 2))
    task = write_task(
        root / "tasks", "acts", dockerfile=DOCKERFILE, config=f'multi_step_reward_strategy = "final"\n{steps}'
    )
    (task / "environment" / "recall").write_bytes((SUPPORT / "recall_service.py").read_bytes())
    for number in (1, 2):
        solve = f"python3 -c '{_ASK}' POST {ADDRESS}/act/{number}\n"
        counted = _COUNT.format(number)
        test = f"python3 -c '{_ASK}' GET {ADDRESS}{reads} | python3 -c \"{counted}\" >/logs/verifier/reward.txt\n"
        write_step(task, f"s{number}", solve=solve, test=test)
    _write_manifest(root, text)
    return task


def write_entrypoint_recall(root: Path, *paths: str) -> Path:
    """Write a manifest, with its image, whose entrypoint is the service; return it. paths: that it declares."""
    (root / "image").mkdir(parents=True)
    (root / "image" / "Dockerfile").write_text(f'{DOCKERFILE}CMD ["recall", "/data/recall.db", "{PORT}"]\n')
    (root / "image" / "recall").write_bytes((SUPPORT / "recall_service.py").read_bytes())
    ready = f'\n[environment.readiness]\nhttp = ["{ADDRESS}/health"]\n'
    head = f'[environment]\nname = "recall"\nimage = "test/recall"\nports = [{PORT}]\n{ready}{STATE}'
    return _write_manifest(root, f"{head}{_observed(paths)}")


def _write_manifest(root: Path, text: str) -> Path:
    """Write the manifest of a world of its own: what is proven of one is kept for all that are alike."""
    file = root / "environment.toml"
    file.write_text(text.replace('"recall"', f'"recall-{uuid.uuid4().hex[:8]}"', 1))
    return file


def _observed(paths: Sequence[str]) -> str:
    urls = ", ".join(f'"{ADDRESS}{path}"' for path in paths)
    return f"observe = [{urls}]\n"
