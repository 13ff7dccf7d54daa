"""Collect the findings of a hardening while it runs, so that a failed one has a report, and later ones can be added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchflow.contracts.file_changes import FileChanges
from benchflow.contracts.reward import HardeningFinding, HardeningReport
from benchflow.planes.reward.hardening.survey import format_name

MAX_FINDINGS = 200
"""Maximum number of findings in a report."""

MAX_NAMED = 5
"""Maximum number of further paths that one note names."""


@dataclass
class HardeningRecord:
    """The findings of a hardening that is running, or has failed."""

    findings: list[HardeningFinding] = field(default_factory=list)
    """Findings so far."""

    listing: FileChanges | None = None
    """Files that differ from the image, once the tools are restored. None if they were not listed."""

    unsafe: str = ""
    """Reason that no verifier may run in the sandbox; empty if one may."""


def extend_report(report: HardeningReport, found: Sequence[HardeningFinding]) -> HardeningReport:
    """Return a report with further findings, duplicates left out; tampering first, and no more than `MAX_FINDINGS`."""
    more = [finding for finding in found if finding not in report.findings]
    findings = sorted([*report.findings, *more], key=lambda finding: not finding.is_tampering)
    left_out = report.left_out + max(0, len(findings) - MAX_FINDINGS)
    return report.model_copy(update={"findings": findings[:MAX_FINDINGS], "left_out": left_out})


def note_paths(item: str, paths: Sequence[str], detail: str) -> HardeningFinding:
    """Return one note about several paths.

    Args:
        item: Item of `verifier.hardening`.
        paths: At least one path; the first is the note's, and up to `MAX_NAMED` others are named in its detail.
        detail: Text that holds for all of them.
    """
    first, *others = map(format_name, paths)
    if others:
        named = ", ".join(others[:MAX_NAMED]) + (", …" if len(others) > MAX_NAMED else "")
        detail += f"; {len(others)} more: {named}"
    return HardeningFinding(item=item, action="found", path=first, detail=detail)
