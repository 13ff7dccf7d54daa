"""Where a step's verifier runs, and why: where the agent worked, or in a clean room.

A clean room keeps an agent's doings from the verifier best, and scores honest work 0 if the verifier reads what does
not travel. Where nobody has decided, it is taken only if both are known: the oracle's work is worth the same there, and
this rollout has left nothing behind.
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
from benchflow.planes.reward.hardening import HardeningBaseline, skipped
from benchflow.planes.reward.hardening.foundation import ITEM as VERIFY_TOOLS
from benchflow.planes.reward.hardening.record import note_paths
from benchflow.planes.reward.hardening.survey import is_below

_NOT_WORK = ("/root", "/home", "/var/cache", "/tmp", "/var/tmp", "/run", "/var/run", "/logs", "/var/lib/benchflow")
"""Places of caches, settings and what is made anew: nothing that is there alone is a result of work."""


class VerifierPlace(Model):
    """Where a verifier runs."""

    is_separate: bool = False
    """True for a clean room."""

    is_weaker: bool = False
    """True if a clean room would keep more from the verifier, and was not taken because it might cost honest work."""

    why: str = ""
    """The reason, for people."""

    @property
    def metadata(self) -> dict[str, str | bool]:
        """Return what a result says of it."""
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
    """Return where the verifier of a step is to run, after the sandbox was hardened for it.

    Beside it are the paths that a clean room would not have; None where they were not looked for.

    Args:
        sandbox: Where the agent worked.
        config: The verifier's table, as the task and the job have it.
        fidelity: What is known of clean rooms for this step.
        baseline: What the sandbox was before the agent acted.
        travelling: Paths that go into the room besides the workspace.
        has_rooms: Whether the provider has clean rooms.
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
    # Code that was put into a process of the world can't be what is scored.
    if running := [process for process in await sandbox.strangers() if not process.is_altered]:
        return shared(f"a process of the agent's runs: {running[0].command}")
    try:
        after = await sandbox.changes(baseline.changes, skip=_skipped(sandbox, baseline))
    except UnsafePathError as error:
        return shared(error.message)
    if left := left_behind(baseline.changes, after, [sandbox.ref.workdir, baseline.home, *travelling]):
        return shared(f"{left[0]} was changed, which a clean room would not have", left)
    return VerifierPlace(is_separate=True, why="the oracle scored the same there, and nothing else was changed"), []


async def note_outside(
    sandbox: Sandbox,
    baseline: HardeningBaseline | None,
    travelling: Sequence[str],
    known: list[str] | None,
    listing: FileChanges | None,
) -> list[HardeningFinding]:
    """Return a note about what was changed outside of the workspace: a verifier that runs there may meet it.

    Args:
        sandbox: Where the agent worked.
        baseline: What the sandbox was before the agent acted.
        travelling: Paths that are not counted, as in `choose_place`.
        known: The paths, where they were looked for.
        listing: The files that differ from the image, where they were listed.
    """
    if known is None and baseline is not None and baseline.changes is not None:
        try:
            after = listing or await sandbox.changes(baseline.changes, skip=_skipped(sandbox, baseline))
        except SandboxError as error:
            if error.retryable:
                raise
            # A note is not worth a reward.
            return []
        known = left_behind(baseline.changes, after, [sandbox.ref.workdir, baseline.home, *travelling])
    top: list[str] = []
    for path in sorted(known or (), key=lambda path: path.split("/")):
        # Of a new directory, what is in it says no more.
        if not top or not path.startswith(f"{top[-1]}/"):
            top.append(path)
    return [note_paths(VERIFY_TOOLS, top, "was changed outside of the workspace")] if top else []


def left_behind(before: FileChanges, after: FileChanges, travelling: Sequence[str]) -> list[str]:
    """Return the paths that have changed and that a clean room would not have."""
    places = [place.rstrip("/") for place in (*travelling, *_NOT_WORK) if place.rstrip("/")]
    return [path for path in before.differences(after) if "/__pycache__" not in path and not is_below(path, places)]


def _skipped(sandbox: Sandbox, baseline: HardeningBaseline) -> list[str]:
    """Return the places of which no list is needed: a home may have very many files."""
    return [*skipped(sandbox, baseline.tools), baseline.home, *_NOT_WORK]
