"""Write random task directories that use the fields of Harbor's models. Runs in Harbor's environment.

    generate.py ROOT SEED COUNT

Each task is valid: Harbor's own classes load it. ROOT/manifest.json says what each is made of, and which fields of the
models were seen, drawn, and unknown.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fields import BEYOND_ONE_MACHINE, KNOWN, Drawing
from harbor.models.task.config import StepConfig, TaskConfig
from harbor.models.task.task import Task
from scripts import SHAPES, SHORT_SEC, STEP_SHAPES, TOO_LATE, solve_script, test_script

TROUBLES = {6: "slow oracle", 12: "slow verifier", 13: "never healthy"}
"""What goes wrong in some of each sixteen tasks."""

SETUP = 'echo "$(pwd) $(id -u)" >> /tmp/prepared 2>/dev/null\nchmod 666 /tmp/prepared 2>/dev/null\ntrue\n'

EXISTING = ("/", "/tmp", "/opt", "/srv")
"""Working directories that the base image has."""

BASE_IMAGE = "debian:bookworm-slim"
"""Has bash, coreutils and no working directory; `tools/base-image` makes it."""


def main(root: Path, seed: str, count: int) -> None:
    drawing = Drawing(random.Random(seed))
    shapes = list(SHAPES[5:])
    drawing.random.shuffle(shapes)
    # The usual ones first, then those that somebody has to have thought of.
    shapes = [*SHAPES[:5], *shapes]
    tasks = {}
    for number in range(count):
        drawing.random = random.Random(f"{seed}/{number}")
        name = f"task-{number:03}"
        tasks[name] = TaskWriter(root / name, drawing, number, shapes).write()
    for number, (key, table) in enumerate(BEYOND_ONE_MACHINE.items()):
        drawing.random = random.Random(f"{seed}/beyond/{number}")
        name = f"beyond-{number:03}"
        drawing.drawn.add(key)
        tasks[name] = TaskWriter(root / name, drawing, number, shapes).write_beyond(key, table)
    for name in tasks:
        # Raises if the generator has written what Harbor would not load: it has to be taught what is valid then.
        Task(root / name)
    fields = {"seen": drawing.seen, "drawn": drawing.drawn, "unknown": drawing.unknown, "gone": gone(drawing)}
    manifest = {"seed": seed, "tasks": tasks, "fields": {name: sorted(keys) for name, keys in fields.items()}}
    (root / "manifest.json").write_text(json.dumps(manifest, indent=1))


def gone(drawing: Drawing) -> set[str]:
    """Return the fields that are named here and no longer in the models that were met."""
    models = {key.partition(".")[0] for key in drawing.seen}
    return {key for key in {*KNOWN, *BEYOND_ONE_MACHINE} if key.partition(".")[0] in models} - drawing.seen


class TaskWriter:
    """One task directory on its way. number: among those of its seed, which decides what it is mostly about."""

    def __init__(self, directory: Path, drawing: Drawing, number: int, shapes: list[Any]) -> None:
        self.directory = directory
        self.drawing = drawing
        self.random = drawing.random
        self.number = number
        self.shapes = shapes
        self.written: dict[str, str] = {}
        self.dockerfile_lines: list[str] = []
        self.is_separate = False

    def write(self) -> dict[str, Any]:
        is_multi_step = self.number % 4 == 3
        table = self.drawing.model(TaskConfig)
        table.setdefault("environment", {})
        # Another one for the tasks of several steps each time round.
        image = IMAGES[(self.number + self.number // len(IMAGES)) % len(IMAGES)]
        image(self, table["environment"])
        self.complete(table)
        if is_multi_step:
            self.steps(table)
        else:
            trouble = TROUBLES.get(self.number % 16, "none")
            shape = self.shapes[(self.number - (self.number + 1) // 4) % len(self.shapes)]
            self.verifier(self.directory / "tests", TOO_LATE if trouble == "slow verifier" else shape)
            self.file("solution/solve.sh", solve_script(self.random, ends=trouble != "slow oracle"))
            if trouble == "slow oracle":
                table.setdefault("agent", {})["timeout_sec"] = SHORT_SEC
            elif trouble == "slow verifier":
                table.setdefault("verifier", {})["timeout_sec"] = SHORT_SEC
            elif trouble == "never healthy":
                table["environment"]["healthcheck"] = {"command": "false", "interval_sec": 0.1, "retries": 2}
        self.extras(table)
        self.finish(table)
        return {"image": image.__name__, "shapes": self.written, "config": toml(table)}

    def write_beyond(self, key: str, table: dict[str, Any]) -> dict[str, Any]:
        self.file("environment/Dockerfile", f"FROM {BASE_IMAGE}\n")
        self.verifier(self.directory / "tests", SHAPES[0])
        self.file("solution/solve.sh", solve_script(self.random))
        # Harbor looks for these in a task of another operating system.
        self.file("tests/test.bat", "exit 1\n")
        self.file("solution/solve.bat", "exit 1\n")
        self.finish(table)
        return {"beyond": key, "config": toml(table)}

    def finish(self, table: dict[str, Any]) -> None:
        self.file("task.toml", toml(table))
        if not table.get("steps") or self.random.random() < 0.5:
            self.file("instruction.md", "Do what is to be done.\n")

    def file(self, path: str | Path, text: str, mode: int = 0o644) -> None:
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def verifier(self, tests: Path, shape: Any, step: str = "") -> None:
        script = test_script(self.random, shape, in_workspace=not self.is_separate)
        self.file(tests / "test.sh", script, self.random.choice((0o644, 0o755)))
        self.file(tests / "helper.txt", f"of {tests.parent.name if step else 'the task'}\n")
        if self.random.random() < 0.08:
            self.file(tests / ".harborignore", "*.log\n")
            self.file(tests / "ignored.log", "of the author's own runs\n")
        self.written[step] = shape.name

    def complete(self, table: dict[str, Any]) -> None:
        """Add what the tables that were drawn need to be carried out: Harbor makes no working directory by itself."""
        verifier = table.get("verifier", {})
        if "environment" in verifier:
            # What the verifier looks at has to be sent there. With us the workspace goes there, too, as
            # docs/hardening.md says, so that its files are nothing to compare.
            self.is_separate = True
            table["artifacts"] = ["/tmp/solved", *table.get("artifacts", [])]
        if f"USER {IMAGE_USER}" in self.dockerfile_lines and table.get("agent", {}).get("user") == IMAGE_USER:
            # Of an image whose user the agent is, our verifier is root, as docs/rewards.md says; Harbor's is that user.
            table["agent"]["user"] = "daemon"
        for part in (table["environment"], verifier.get("environment", {})):
            if "docker_image" in table["environment"] and part.get("workdir", "/") not in EXISTING:
                part["workdir"] = self.random.choice(EXISTING)
            elif "workdir" in part:
                # Before a USER that could not.
                self.dockerfile_lines.insert(0, f"RUN mkdir -p '{part['workdir']}'")
        if self.dockerfile_lines:
            self.file("environment/Dockerfile", "\n".join((f"FROM {BASE_IMAGE}", *self.dockerfile_lines)) + "\n")

    def steps(self, table: dict[str, Any]) -> None:
        table["multi_step_reward_strategy"] = self.random.choice(("mean", "final"))
        if self.random.random() < 0.3:
            # The default.
            del table["multi_step_reward_strategy"]
        self.drawing.drawn |= {"TaskConfig.multi_step_reward_strategy", "TaskConfig.steps"}
        shares_tests = self.random.random() < 0.3
        if shares_tests:
            self.verifier(self.directory / "tests", self.random.choice(STEP_SHAPES))
        shares_oracle = self.random.random() < 0.3
        if shares_oracle:
            self.file("solution/solve.sh", solve_script(self.random))
        table["steps"] = []
        for number in range(1, self.random.randint(2, 3) + 1):
            self.drawing.step = number
            step = self.drawing.model(StepConfig)
            table["steps"].append(step)
            place = self.directory / "steps" / step["name"]
            self.file(place / "instruction.md", f"Do step {number}.\n")
            if not shares_oracle or self.random.random() < 0.5:
                self.file(place / "solution/solve.sh", solve_script(self.random))
            if not shares_tests or self.random.random() < 0.5:
                self.verifier(place / "tests", self.random.choice(STEP_SHAPES), step["name"])
            if self.random.random() < 0.5:
                self.file(place / "workdir/note.txt", f"note of step {number}\n")
            if self.random.random() < 0.5:
                self.file(place / "workdir/setup.sh", SETUP)
        self.drawing.step = None

    def extras(self, table: dict[str, Any]) -> None:
        """Add keys that Harbor's models do not have and read past, and older spellings that they do read."""
        if self.random.random() < 0.5:
            table["x_extra"] = {"key": [1, "two"]}
            table["environment"]["x_extra"] = "of somebody else"
        if "schema_version" in table and self.random.random() < 0.5:
            table["version"] = table.pop("schema_version")
        if "memory_mb" in table["environment"] and self.random.random() < 0.5:
            table["environment"]["memory"] = f"{table['environment'].pop('memory_mb')}M"
        if "storage_mb" in table["environment"] and self.random.random() < 0.5:
            table["environment"]["storage"] = f"{table['environment'].pop('storage_mb') // 1024}G"
        if "out-of-range" in self.written.values() and self.random.random() < 0.5:
            # Ours, which Harbor reads past.
            table.setdefault("verifier", {})["reward_range"] = [0.0, 2.0]


# --- what a sandbox is made of -------------------------------------------------------------------------


def bare(task: TaskWriter, table: dict[str, Any]) -> None:
    """Leave the working directory to the image, which has none."""
    table.pop("workdir", None)
    task.dockerfile_lines += task.random.choice((["RUN mkdir -p /app"], ["RUN true"]))


def with_workdir(task: TaskWriter, table: dict[str, Any]) -> None:
    task.file("environment/data.txt", "data of the image\n")
    task.dockerfile_lines += ["WORKDIR /image/work", "COPY data.txt ."]
    if task.random.random() < 0.6:
        table.pop("workdir", None)


def with_relative_workdir(task: TaskWriter, table: dict[str, Any]) -> None:
    table.pop("workdir", None)
    task.dockerfile_lines += ["WORKDIR /image", "WORKDIR deeper", "ENV IMAGE_A=of-the-image SHARED=of-the-image"]


IMAGE_USER = "nobody"


def with_user(task: TaskWriter, table: dict[str, Any]) -> None:
    task.dockerfile_lines += ["WORKDIR /image/open", "RUN chmod 777 .", 'ENV IMAGE_B="two words"', f"USER {IMAGE_USER}"]
    if task.random.random() < 0.6:
        table.pop("workdir", None)


def ready_image(task: TaskWriter, table: dict[str, Any]) -> None:
    """Name an image, with files beside it that Harbor puts into the working directory."""
    table["docker_image"] = BASE_IMAGE
    task.drawing.drawn.add("EnvironmentConfig.docker_image")
    task.file("environment/data.txt", "data beside the image\n")
    task.file("environment/deep/er.txt", "deep\n")


def ready_image_and_dockerfile(task: TaskWriter, table: dict[str, Any]) -> None:
    """Name an image that wins over the Dockerfile beside it."""
    table["docker_image"] = BASE_IMAGE
    task.file("environment/data.txt", "data beside a Dockerfile\n")
    task.dockerfile_lines += ["WORKDIR /unused", "ENV IMAGE_A=unused", "COPY data.txt ."]


def with_root_workdir(task: TaskWriter, table: dict[str, Any]) -> None:
    table.pop("workdir", None)
    task.file("environment/data.txt", "data of the root\n")
    task.dockerfile_lines += ["WORKDIR /", "COPY data.txt ."]


def compose_file_of_main(task: TaskWriter, table: dict[str, Any]) -> None:
    """Add to the one container by a compose file, which names no other."""
    table.pop("workdir", None)
    task.file("environment/docker-compose.yaml", "services:\n  main:\n    environment:\n      IMAGE_A: of-compose\n")
    task.dockerfile_lines += ["WORKDIR /image/composed"]


IMAGES: tuple[Callable[[TaskWriter, dict[str, Any]], None], ...] = (
    bare,
    with_workdir,
    with_relative_workdir,
    ready_image,
    with_user,
    with_root_workdir,
    ready_image_and_dockerfile,
    compose_file_of_main,
)


# --- TOML ----------------------------------------------------------------------------------------------


def toml(table: dict[str, Any]) -> str:
    """Return a mapping as TOML, with tables as people write them at the top, and inline ones below."""
    plain = [f"{key_of(key)} = {inline(value)}" for key, value in table.items() if not is_table(value)]
    tables = []
    for key, value in table.items():
        head = f"[[{key}]]" if isinstance(value, list) else f"[{key}]"
        for part in (value if isinstance(value, list) else [value]) if is_table(value) else []:
            tables += ["", head, *(f"{key_of(name)} = {inline(item)}" for name, item in part.items())]
    return "\n".join([*plain, *tables]) + "\n"


def is_table(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, dict) for item in value)
    return isinstance(value, dict)


def key_of(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name, ensure_ascii=False)


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key_of(key)} = {inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(inline(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
