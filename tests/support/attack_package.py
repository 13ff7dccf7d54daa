"""The package of attacks, as its metadata tells of it, and jobs of it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from support.paths import ROOT
from support.running import run_tasks

from benchflow.contracts.rollout_records import RolloutResult
from benchflow.contracts.task import Task
from benchflow.tasks import load_task

PACKAGE = ROOT / "benchmarks" / "attacks"
AGENTS = PACKAGE / "agents"

ELSEWHERE = ("clean-room", "engine")
"""What stops attacks and is no item of hardening."""


@dataclass(frozen=True)
class Attack:
    """A task of the package. stopped_by: any one of these does, nothing does where it is empty."""

    directory: Path
    task: Task

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def is_honest(self) -> bool:
        return self.family == "honest"

    @property
    def is_slow(self) -> bool:
        return bool(self.task.metadata.get("slow"))

    @property
    def is_withheld(self) -> bool:
        """Whether what stops it is that nothing is scored where the agent worked."""
        return bool(self.task.metadata.get("withheld"))

    @property
    def stopped_by(self) -> list[str]:
        return list(self.task.metadata.get("stopped_by", []))

    @property
    def family(self) -> str:
        return str(self.task.metadata["family"])

    @property
    def items(self) -> list[str]:
        """The items of hardening that stop it."""
        return [item for item in self.stopped_by if item not in ELSEWHERE]

    @property
    def needs_clean_room(self) -> bool:
        """Whether nothing else stops it."""
        return self.stopped_by == ["clean-room"]

    def is_stopped(self, verify_in: str | None) -> bool:
        """Whether it is, where verifiers run as a job says."""
        return bool(self.stopped_by) and (verify_in == "separate" or not self.needs_clean_room)


ALL = {path.name: Attack(path, load_task(path)) for path in sorted((PACKAGE / "tasks").iterdir())}
HONEST = [name for name, one in ALL.items() if one.is_honest]
ATTACKS = [name for name, one in ALL.items() if not one.is_honest]
QUICK = [name for name in ATTACKS if not ALL[name].is_slow]


def run(paths: list[Path], jobs_dir: Path, **options: Any) -> dict[str, RolloutResult]:
    """Return the results of a job of the package's own agent, by task."""
    return run_tasks(paths, jobs_dir, **{"agents": ["attacker"], "sandbox": "docker", **options})


def copy_for_local(name: str, copy: Path) -> Path:
    """Copy a task of the package for local sandboxes. Its image installs nothing: they have this machine's programs."""
    shutil.copytree(ALL[name].directory, copy)
    dockerfile = copy / "environment" / "Dockerfile"
    head, _, rest = dockerfile.read_text().partition("RUN apt-get")
    dockerfile.write_text(head + rest[rest.index("WORKDIR") :])
    return copy


def with_hardening(attack: Attack, root: Path, name: str, **items: bool) -> Path:
    """A copy of the task, under a name, with these items of hardening switched on or off."""
    copy = root / name
    shutil.copytree(attack.directory, copy)
    file = copy / "task.toml"
    document = tomlkit.parse(file.read_text())
    document["verifier"]["hardening"] = items
    file.write_text(tomlkit.dumps(document))
    return copy


def undefended(name: str, root: Path) -> Path:
    """Make a copy of the task that is opted out of what stops the attack."""
    return with_hardening(ALL[name], root, f"{name}-undefended", **dict.fromkeys(ALL[name].items, False))


def in_steps(attack: Attack, root: Path, *names: str) -> Path:
    """A copy of the task in which the same is asked for again and again, and scored by the same verifier."""
    copy = root / f"{attack.name}-in-steps"
    shutil.copytree(attack.directory, copy, ignore=shutil.ignore_patterns("solution", "instruction.md"))
    for name in names:
        (copy / "steps" / name).mkdir(parents=True)
        shutil.copy(attack.directory / "instruction.md", copy / "steps" / name)
    steps = "".join(f'\n[[steps]]\nname = "{name}"\n' for name in names)
    file = copy / "task.toml"
    file.write_text(file.read_text() + steps)
    return copy
