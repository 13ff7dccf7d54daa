"""Store the baseline of a sandbox before an agent acts in a step, and notice if the stored one is gone."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from benchflow.errors import MissingArtifactError, VerifierError
from benchflow.host_files import raise_storage_errors
from benchflow.hosting.hosted import Hosted
from benchflow.planes.reward.hardening import HardeningBaseline, read_baseline, store_baseline

_MARK = "baseline-kept"
"""Mark that a baseline was stored; the step's name follows. It lies outside of the results, which may be removed."""

_REMEDY = "leave the files of a rollout where they are until it has ended, and run it again"


def read_agent_baseline(rollout: Hosted, step: str | None) -> HardeningBaseline | None:
    """Return the stored baseline of the sandbox before the agent acted in a step; None if no agent has acted.

    Args:
        rollout: The rollout.
        step: Name of the step; None for the only one.

    Raises:
        VerifierError: A baseline was stored and is gone, so that the agent's changes can't be determined any more.
    """
    evidence = rollout.paths.evidence(step)
    baseline = read_baseline(evidence)
    if baseline is None and rollout.has_mark(_format_mark(rollout, step)):
        raise VerifierError(
            "what the sandbox was before its agent acted is gone: it can't be told what the agent has changed",
            file=str(evidence),
            remedy=_REMEDY,
        )
    return baseline


def store_agent_baseline(rollout: Hosted, step: str | None, baseline: HardeningBaseline) -> None:
    """Store the baseline of a sandbox before the agent acts in a step, and mark that there is one.

    Args:
        rollout: The rollout.
        step: Name of the step; None for the only one.
        baseline: The baseline.

    Raises:
        StoreError: It can't be written.
    """
    # Marked first: a crash in between is followed by another attempt, before which no agent acts.
    rollout.mark(_format_mark(rollout, step))
    store_baseline(baseline, rollout.paths.evidence(step))


async def inherit_baseline(rollout: Hosted, step: str | None) -> None:
    """Copy the parent's baseline for a step of a child that resumes the parent's session, unless it was copied.

    Args:
        rollout: The child.
        step: Name of the child's step; None for the only one.

    Raises:
        MissingArtifactError: The parent's baseline is gone. With a new one, files that its agent left would be taken
            for the image's.
    """
    source, target = rollout.parent_paths.evidence(), rollout.paths.evidence(step)
    await asyncio.to_thread(_copy_evidence, source, target)
    if read_baseline(target) is None:
        raise MissingArtifactError(
            "what the sandbox was before the parent's agent acted is gone", file=str(source), remedy=_REMEDY
        )
    rollout.mark(_format_mark(rollout, step))


def _copy_evidence(source: Path, target: Path) -> None:
    if source.is_dir() and not target.exists():
        part = target.with_name(".evidence.part")
        with raise_storage_errors(part):
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(source, part, symlinks=True)
            part.rename(target)


def _format_mark(rollout: Hosted, step: str | None) -> str:
    return f"{rollout.ref.episode}{_MARK}{f'-{step}' if step else ''}"
