"""Choose where a step's verifier runs: in the agent's sandbox, or in a clean room.

A clean room protects the verifier best from an agent's changes, but scores honest work 0 if the verifier reads files
that do not travel. If neither task nor job decides, it is used only if the oracle's work gets the same rewards there,
and this rollout has changed no files outside of those that travel.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchflow.contracts.base import Model
from benchflow.contracts.file_changes import FileChanges
from benchflow.contracts.reward import HardeningFinding
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.verifier import VerifierConfig
from benchflow.errors import SandboxError, UnsafePathError
from benchflow.hosting.fidelity import Fidelity
from benchflow.planes.reward.hardening import HardeningBaseline, list_skipped
from benchflow.planes.reward.hardening.foundation import ITEM as VERIFY_TOOLS
from benchflow.planes.reward.hardening.hardening_record import note_paths
from benchflow.planes.reward.hardening.strangers import list_unaltered_strangers
from benchflow.planes.reward.hardening.survey import is_below

_NOT_WORK = ("/root", "/home", "/var/cache", "/tmp", "/var/tmp", "/run", "/var/run", "/logs", "/var/lib/benchflow")
"""Directories of caches, settings and temporary files, whose changes are no result of work."""


class VerifierPlace(Model):
    """Place where a verifier runs."""

    is_separate: bool = False
    """Whether it is a clean room; otherwise it is the agent's sandbox."""

    is_weaker: bool = False
    """Whether a clean room was not used, although it protects better, because honest work might get no reward there."""

    why: str = ""
    """Reason of the choice, for people."""

    @property
    def metadata(self) -> dict[str, str | bool]:
        """Return the metadata about the place for the verifier's result."""
        said: dict[str, str | bool] = {"verified_in": "separate" if self.is_separate else "shared"}
        return said | {"verified_in_why": self.why, "weaker": self.is_weaker}


async def choose_place(
    sandbox: Sandbox,
    config: VerifierConfig,
    fidelity: Fidelity | None,
    baseline: HardeningBaseline | None,
    travelling: Sequence[str],
    *,
    has_rooms: bool,
) -> tuple[VerifierPlace, list[str] | None]:
    """Choose where the verifier of a step runs. Call it after the sandbox was hardened for the verifier.

    Args:
        sandbox: The agent's sandbox.
        config: Configuration of the verifier, with the job's settings applied.
        fidelity: Rewards of an oracle's work in this step; None if no oracle was run.
        baseline: Baseline of the sandbox before the agent acted; None if there is none.
        travelling: Paths that go into a clean room beside the workspace.
        has_rooms: Whether the provider has clean rooms.

    Returns:
        The place, and the changed paths that a clean room would lack; None instead of these if they were not searched.
    """
    if config.sandbox_mode != "auto":
        asked = "the task or the job asks for it"
        return VerifierPlace(is_separate=config.sandbox_mode == "separate", why=asked), None

    def shared(why: str, left: list[str] | None = None) -> tuple[VerifierPlace, list[str] | None]:
        return VerifierPlace(is_weaker=True, why=why), left

    if not has_rooms:
        return shared("these sandboxes have no clean room")
    if fidelity is None or not fidelity.is_known:
        return shared("no oracle has shown that a clean room scores the same (bench tasks check --run)")
    if not fidelity.is_faithful:
        return shared(fidelity.difference)
    if baseline is None or baseline.changes is None:
        return shared("the files were not listed before the agent acted")
    # Processes of the world into which the agent injected code are left out: they can't be the work that is scored.
    if running := await list_unaltered_strangers(sandbox):
        return shared(f"a process of the agent's runs: {running[0].command}")
    try:
        after = await sandbox.changes(baseline.changes, skip=_list_skipped(sandbox, baseline))
    except UnsafePathError as error:
        return shared(error.message)
    if left := find_left_behind(baseline.changes, after, [sandbox.ref.workdir, baseline.home, *travelling]):
        return shared(f"{left[0]} was changed, which a clean room would not have", left)
    return VerifierPlace(is_separate=True, why="the oracle scored the same there, and nothing else was changed"), []


async def note_outside(
    sandbox: Sandbox,
    baseline: HardeningBaseline | None,
    travelling: Sequence[str],
    known: list[str] | None,
    listing: FileChanges | None,
) -> list[HardeningFinding]:
    """Return at most one note about files that the agent changed outside of the workspace, which a verifier may read.

    Args:
        sandbox: The agent's sandbox.
        baseline: Baseline of the sandbox before the agent acted; None if there is none.
        travelling: Paths that do not count, as in `choose_place`.
        known: Changed paths from `choose_place`; None to search for them.
        listing: List of the files that differ from the image; None to make one.

    Raises:
        SandboxError: It is retryable; after any other, no note is returned.
    """
    if known is None and baseline is not None and baseline.changes is not None:
        try:
            after = listing or await sandbox.changes(baseline.changes, skip=_list_skipped(sandbox, baseline))
        except SandboxError as error:
            if error.retryable:
                raise
            # The reward must not be lost for a note.
            return []
        known = find_left_behind(baseline.changes, after, [sandbox.ref.workdir, baseline.home, *travelling])
    top: list[str] = []
    for path in sorted(known or (), key=lambda path: path.split("/")):
        # Of a new directory, only its own path is named.
        if not top or not path.startswith(f"{top[-1]}/"):
            top.append(path)
    return [note_paths(VERIFY_TOOLS, top, "was changed outside of the workspace")] if top else []


def find_left_behind(before: FileChanges, after: FileChanges, travelling: Sequence[str]) -> list[str]:
    """Return the changed paths that a clean room would lack, without caches and settings.

    Args:
        before: Files that differed from the image before the agent acted.
        after: Files that differ now.
        travelling: Paths that go into a clean room, the workspace included.
    """
    places = [place.rstrip("/") for place in (*travelling, *_NOT_WORK) if place.rstrip("/")]
    return [path for path in before.differences(after) if "/__pycache__" not in path and not is_below(path, places)]


def _list_skipped(sandbox: Sandbox, baseline: HardeningBaseline) -> list[str]:
    """Return the directories that are not listed, since their changes do not count: a home may have very many files."""
    return [*list_skipped(sandbox, baseline.tools), baseline.home, *_NOT_WORK]
