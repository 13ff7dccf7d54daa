"""Harbor as a peer: tasks drawn from its models, its own reading of them, and how ours may differ from it, and why."""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.paths import ROOT

from benchflow.contracts.rollout_records import RolloutResult
from benchflow.errors import TaskError, UnsupportedFeatureError

PROGRAMS = ROOT / "tests" / "peers" / "in_harbor"
"""Programs that run in Harbor's environment."""

VARIABLES = {"PEER_SET": "given by the host", "PEER_EMPTY": ""}
"""What the tasks' templates refer to; both engines are run with it."""

CONCURRENCY = 10
"""Harbor's trials at a time: each waits some ten seconds until its container is gone."""


def peer(name: str) -> str:
    """Return what `tools/peers` prints for a name, once it has made what is missing."""
    command = [sys.executable, ROOT / "tools" / "peers", name]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


Ours = RolloutResult | TaskError
"""What became of a task with us: the result of its rollout, or why it was not loaded."""


@dataclass(frozen=True)
class Drawn:
    """The tasks of one seed. root: where they are. tasks: by name, what each is made of. fields: of Harbor's models."""

    root: Path
    tasks: Mapping[str, Mapping[str, Any]]
    fields: Mapping[str, list[str]]

    @property
    def paths(self) -> list[Path]:
        return [self.root / name for name in self.tasks]

    @property
    def runnable(self) -> list[str]:
        """Names of those that one machine can carry out."""
        return [name for name, task in self.tasks.items() if "beyond" not in task]


def draw_tasks(root: Path, seed: str, count: int) -> Drawn:
    """Write `count` random tasks, and one for each field that one machine cannot carry out."""
    root.mkdir(parents=True)
    subprocess.run([peer("harbor"), PROGRAMS / "generate.py", root, seed, str(count)], check=True)
    manifest = json.loads((root / "manifest.json").read_text())
    return Drawn(root, manifest["tasks"], manifest["fields"])


def start_harbor(drawn: Drawn, out: Path) -> subprocess.Popen[bytes]:
    """Start to run the tasks with Harbor; `read_harbor` waits for it."""
    out.mkdir(parents=True)
    command = [peer("harbor"), PROGRAMS / "read.py", drawn.root, out, str(CONCURRENCY), *drawn.runnable]
    # The builder of the images that a daemon has, and not of those of a registry, with or without buildx.
    environment = os.environ | VARIABLES | {"DOCKER_CONFIG": peer("compose"), "DOCKER_BUILDKIT": "0"}
    environment.pop("PEER_UNSET", None)
    with (out / "log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def read_harbor(process: subprocess.Popen[bytes], out: Path) -> dict[str, Any]:
    """Return Harbor's readings by task, once all are there."""
    assert process.wait() == 0, (out / "log").read_text()[-4000:]
    readings: dict[str, Any] = json.loads((out / "readings.json").read_text())
    return readings


# --- where we differ, and why --------------------------------------------------------------------------

REFUSED_FILES = {
    "both-differ": "reward.json and reward.txt must agree: which of them was meant nobody can say",
    "boolean": "a boolean is no measurement",
    "out-of-range": "a reward lies in the verifier's range, [0, 1] unless verifier.reward_range widens it",
}
"""Shapes of reward files in which Harbor finds a reward, and we an error."""

STRUCTURED = "structured"
"""The shape whose structured keys we keep as metadata, where Harbor refuses the whole file."""

_INTERPOLATED = (r"environment\.env\..+", "beside a compose file, Compose interpolates values that are texts elsewhere")

_ROOM = (r"services\.main\.environment", "the clean room of a separate verifier is not made by the compose file")

REFUSED_TASKS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "docker": (_INTERPOLATED, _ROOM),
    "local": (_INTERPOLATED, _ROOM, (r"docker_image", "the machine itself stands for the image, so none can be named")),
}
"""What a sandbox may refuse of the tasks that Harbor runs: by sandbox, the key, and the reason."""


def difference(task: Mapping[str, Any], reading: Mapping[str, Any], result: Ours, sandbox: str) -> str | None:
    """Return how our result differs from Harbor's reading of a task; None where it says the same, or has to differ."""
    if is_refused(result):
        error = result if isinstance(result, TaskError) else result.error
        assert error is not None
        if any(re.fullmatch(pattern, error.key or "") for pattern, _ in REFUSED_TASKS[sandbox]):
            return None
        return f"refused: {error.key}: {error.message}"
    if isinstance(result, TaskError):
        return f"not loaded: {result}"
    if result.status in ("passed", "failed") and not result.rewards:
        return f"status {result.status} without rewards"
    if reading["steps"]:
        return _difference_of_steps(reading, result)
    shape, expected = task["shapes"][""], reading["rewards"] or None
    widened = shape == "out-of-range" and "reward_range" in task["config"]
    if expected and shape in REFUSED_FILES and not widened:
        failure = result.verifier_error
        return None if failure and failure.type == "RewardFileError" else f"{shape} is read: {result.rewards}"
    file = Path(reading["place"]) / "verifier/reward.json"
    # Of an agent that ran out of time Harbor tells that alone, whatever else went wrong.
    if shape == STRUCTURED and expected is None and file.exists():
        expected = {"reward": json.loads(file.read_text())["reward"]}
    if expected is None:
        if result.rewards is not None:
            return f"Harbor reads no reward ({reading['error']}), and we {result.rewards}"
        return None if result.verifier_error or result.error else "neither a reward nor an error"
    return _difference_of(expected, result.rewards, _errors_of(result))


def _errors_of(result: RolloutResult) -> str:
    return "; ".join(f"{error.type}: {error.message}" for error in (result.error, result.verifier_error) if error)


def _difference_of_steps(reading: Mapping[str, Any], result: RolloutResult) -> str | None:
    theirs, ours = list(reading["steps"].values()), result.steps
    if len(theirs) != len(ours):
        names = list(reading["steps"]), [step.step.name for step in ours]
        return f"Harbor ran the steps {names[0]}, we {names[1]}: {_errors_of(result)}"
    for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        measured = None if our.verify is None else our.verify.rewards
        if their["rewards"] is None and not measured:
            continue
        if "reward" not in (their["rewards"] or {"reward": None}) and isinstance(our.step.min_reward, int | float):
            # Harbor takes it for a threshold that is not reached, and goes on with the keys. For us a threshold of one
            # number needs one number (docs/rewards.md).
            failure = our.verifier_error or result.verifier_error
            return None if failure and failure.type == "RewardScalarError" else f"step {number}: {_errors_of(result)}"
        if found := _difference_of(their["rewards"], measured, str(our.verifier_error)):
            return f"step {number}: {found}"
    if any(their["rewards"] is None for their in theirs):
        # Harbor leaves such a step out of the mean. The mean of the others is no measurement of what was asked.
        return None if result.rewards is None else f"a step was not measured, and the rewards are {result.rewards}"
    return _difference_of(reading["rewards"], result.rewards, _errors_of(result))


def _difference_of(expected: Mapping[str, float] | None, found: Mapping[str, float] | None, why: str) -> str | None:
    if expected is None or found is None:
        return None if expected == found else f"Harbor reads {expected}, we {found} ({why})"
    scalar = {"reward": next(iter(expected.values()))} if len(expected) == 1 else {}
    if found.keys() not in (expected.keys(), expected.keys() | scalar.keys()):
        return f"Harbor reads the keys {sorted(expected)}, we {sorted(found)}"
    wanted = scalar | dict(expected)
    wrong = {key: (wanted[key], value) for key, value in found.items() if abs(wanted[key] - value) > 1e-9}
    return f"Harbor's and our numbers differ: {wrong}" if wrong else None


def is_refused(result: Ours) -> bool:
    """Return whether the task asks for what is not supported: it has a typed error then, and nothing was run."""
    if isinstance(result, TaskError):
        return isinstance(result, UnsupportedFeatureError)
    return result.error is not None and result.error.type == "UnsupportedFeatureError"


def explain(name: str, drawn: Drawn, reading: Mapping[str, Any], result: Ours, difference: str) -> str:
    """Return what somebody needs to know to find out why a task is read otherwise."""
    outputs: list[str] = []
    was_run = isinstance(result, RolloutResult) and result.directory is not None
    for theirs in sorted(Path(reading["place"]).rglob("verifier/test-stdout.txt")) if was_run else []:
        ours = Path(result.directory or "") / theirs.relative_to(reading["place"])
        text = [path.read_text().splitlines() if path.exists() else [f"no {path}"] for path in (theirs, ours)]
        outputs += difflib.unified_diff(*text, "Harbor's verifier saw", "ours saw", lineterm="", n=0)
    task = drawn.root / name
    files = sorted(str(path.relative_to(task)) for path in task.rglob("*") if path.is_file())
    config = (task / "task.toml").read_text()
    made_of = {key: value for key, value in drawn.tasks[name].items() if key != "config"}
    parts = (f"{name}: {difference}", *outputs, f"{made_of}", config, " ".join(files))
    return "\n".join(parts)
