"""Keep among the results what a sandbox was before an agent acted in a step, and tell where that has gone."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from benchflow.errors import MissingArtifactError, VerifierError
from benchflow.hosting.hosted import Hosted
from benchflow.planes.reward.hardening import HardeningBaseline, keep_baseline, read_baseline
from benchflow.store import storage_errors

_MARK = "baseline-kept"
"""Mark of a sandbox, before the name of the step. It lies outside of the results, which somebody may remove."""

_REMEDY = "leave the files of a rollout where they are until it has ended, and run it again"


def agent_baseline(rollout: Hosted, step: str | None) -> HardeningBaseline | None:
    """Return what was kept before the agent acted; None where nobody has acted.

    Raises:
        VerifierError: It was kept, and is gone: nobody can tell any more what the agent has changed.
    """
    evidence = rollout.paths.evidence(step)
    baseline = read_baseline(evidence)
    if baseline is None and rollout.has_mark(_mark(rollout, step)):
        raise VerifierError(
            "what the sandbox was before its agent acted is gone: it can't be told what the agent has changed",
            file=str(evidence),
            remedy=_REMEDY,
        )
    return baseline


def keep_agent_baseline(rollout: Hosted, step: str | None, baseline: HardeningBaseline) -> None:
    """Keep what a sandbox is before an agent acts in a step."""
    # A crash in between is followed by another attempt, before which nobody acts.
    rollout.mark(_mark(rollout, step))
    keep_baseline(baseline, rollout.paths.evidence(step))


async def inherit_baseline(rollout: Hosted, step: str | None) -> None:
    """Copy what was kept before the first turn of a session that began in the parent.

    Raises:
        MissingArtifactError: The parent's is gone. What its agent has left would be taken for the image's.
    """
    source, target = rollout.parent_paths.evidence(), rollout.paths.evidence(step)
    await asyncio.to_thread(_copy, source, target)
    if read_baseline(target) is None:
        raise MissingArtifactError(
            "what the sandbox was before the parent's agent acted is gone", file=str(source), remedy=_REMEDY
        )
    rollout.mark(_mark(rollout, step))


def _copy(source: Path, target: Path) -> None:
    if source.is_dir() and not target.exists():
        part = target.with_name(".evidence.part")
        with storage_errors(part):
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(source, part, symlinks=True)
            part.rename(target)


def _mark(rollout: Hosted, step: str | None) -> str:
    return f"{rollout.ref.episode}{_MARK}{f'-{step}' if step else ''}"
