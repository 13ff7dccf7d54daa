"""Record what oracles have scored in shared sandboxes and in clean rooms, by task, provider and step.

Only oracles that somebody has run are recorded. Equal scores say that a clean room is faithful to the task.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import ValidationError

from benchflow.contracts.base import Model
from benchflow.paths import state_dir
from benchflow.store import storage_errors, write_atomic


class Fidelity(Model):
    """Rewards of an oracle's work in one step, as far as they are known."""

    shared: dict[str, float] | None = None
    """Rewards where the oracle worked."""

    separate: dict[str, float] | None = None
    """Rewards in a clean room."""

    error: str = ""
    """Reason why nothing could be measured in a clean room."""

    @property
    def is_known(self) -> bool:
        """True if both are."""
        return self.shared is not None and (self.separate is not None or bool(self.error))

    @property
    def is_faithful(self) -> bool:
        """True if the clean room tells the same of work that is worth something."""
        return self.shared is not None and self.separate == self.shared and any(self.shared.values())

    @property
    def difference(self) -> str:
        """Return what the two are, for people."""
        there = self.error or _shown(self.separate)
        return f"the oracle's work is worth {_shown(self.shared)}, and in a clean room {there}"


def read_fidelity(digest: str, provider: str, step: str | None) -> Fidelity | None:
    """Return what is known of a step of a task. digest: of the task's files."""
    try:
        return Fidelity.model_validate_json(_file(digest, provider, step).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def keep_fidelity(digest: str, provider: str, step: str | None, found: Fidelity) -> None:
    """Keep what an oracle has shown, beside what is known from another one."""
    file, known = _file(digest, provider, step), read_fidelity(digest, provider, step)
    if known is not None:
        is_tried = found.separate is not None or bool(found.error)
        found = Fidelity(
            shared=known.shared if found.shared is None else found.shared,
            separate=found.separate if is_tried else known.separate,
            error=found.error if is_tried else known.error,
        )
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, found.model_dump_json().encode(), durable=False)


def forget_fidelity(digest: str) -> None:
    """Forget what is known of a task, so that the next oracle finds it out anew."""
    shutil.rmtree(_directory(digest), ignore_errors=True)


def _directory(digest: str) -> Path:
    return state_dir() / "fidelity" / digest.removeprefix("sha256:")


def _file(digest: str, provider: str, step: str | None) -> Path:
    directory = _directory(digest)
    return directory / f"{provider}.json" if step is None else directory / provider / f"{step}.json"


def _shown(rewards: dict[str, float] | None) -> str:
    if rewards is None:
        return "something unknown"
    if list(rewards) == ["reward"]:
        return f"{rewards['reward']:g}"
    return ", ".join(f"{name} {value:g}" for name, value in rewards.items()) or "nothing"
