"""Store the rewards of oracles' work in the agent's sandbox and in a clean room, by task, provider and step.

Equal rewards show that a clean room is faithful: its verifier scores honest work as the one in the agent's sandbox
does. Nothing is known of a step until an oracle has been run.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import ValidationError

from benchflow.contracts.base import Model
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.paths import find_state_dir


class Fidelity(Model):
    """Rewards of an oracle's work in one step, by the place of its verifier."""

    shared: dict[str, float] | None = None
    """Rewards by key in the oracle's own sandbox; None if they were not measured."""

    separate: dict[str, float] | None = None
    """Rewards by key in a clean room; None if they were not measured."""

    error: str = ""
    """Error that kept a clean room from measuring them; empty for none."""

    @property
    def is_known(self) -> bool:
        """Return whether both places were tried; an error counts as the clean room's result."""
        return self.shared is not None and (self.separate is not None or bool(self.error))

    @property
    def is_faithful(self) -> bool:
        """Return whether both places gave the same rewards, and not all of them 0."""
        return self.shared is not None and self.separate == self.shared and any(self.shared.values())

    @property
    def difference(self) -> str:
        """Return a sentence with the rewards of both places, for people."""
        there = self.error or _format_rewards(self.separate)
        return f"the oracle's work is worth {_format_rewards(self.shared)}, and in a clean room {there}"


def read_fidelity(digest: str, provider: str, step: str | None) -> Fidelity | None:
    """Return the stored rewards of an oracle's work in a step; None if there are none, or they can't be parsed.

    Args:
        digest: Digest of the task's files.
        provider: Name of the sandbox provider.
        step: Name of the step; None for the only one.
    """
    try:
        return Fidelity.model_validate_json(_locate_file(digest, provider, step).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def store_fidelity(digest: str, provider: str, step: str | None, found: Fidelity) -> None:
    """Store the rewards of an oracle's work in a step. A place that was not tried now retains its stored rewards.

    Args:
        digest: Digest of the task's files.
        provider: Name of the sandbox provider.
        step: Name of the step; None for the only one.
        found: New rewards.

    Raises:
        StoreError: The file can't be written.
    """
    file, known = _locate_file(digest, provider, step), read_fidelity(digest, provider, step)
    if known is not None:
        is_tried = found.separate is not None or bool(found.error)
        found = Fidelity(
            shared=known.shared if found.shared is None else found.shared,
            separate=found.separate if is_tried else known.separate,
            error=found.error if is_tried else known.error,
        )
    with raise_storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, found.model_dump_json().encode(), durable=False)


def remove_fidelity(digest: str) -> None:
    """Remove the stored rewards of all steps of a task, with all providers. Missing is success.

    Args:
        digest: Digest of the task's files.
    """
    shutil.rmtree(_locate_directory(digest), ignore_errors=True)


def _locate_directory(digest: str) -> Path:
    return find_state_dir() / "fidelity" / digest.removeprefix("sha256:")


def _locate_file(digest: str, provider: str, step: str | None) -> Path:
    directory = _locate_directory(digest)
    return directory / f"{provider}.json" if step is None else directory / provider / f"{step}.json"


def _format_rewards(rewards: dict[str, float] | None) -> str:
    if rewards is None:
        return "something unknown"
    if list(rewards) == ["reward"]:
        return f"{rewards['reward']:g}"
    return ", ".join(f"{name} {value:g}" for name, value in rewards.items()) or "nothing"
