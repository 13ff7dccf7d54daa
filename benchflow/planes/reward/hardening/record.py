"""What a hardening finds, collected as it goes on: one that fails has a report, too, and what comes later is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchflow.contracts.file_changes import FileChanges
from benchflow.contracts.reward import HardeningFinding, HardeningReport
from benchflow.planes.reward.hardening.survey import encode

MOST = 200
"""Findings that a report lists."""

MOST_NAMED = 5
"""Other paths that one note names."""


@dataclass
class HardeningRecord:
    """Collects what a hardening finds."""

    findings: list[HardeningFinding] = field(default_factory=list)
    """Findings so far."""

    listing: FileChanges | None = None
    """Files that differ from the image, once the tools were as they were. None if they were not listed."""

    unsafe: str = ""
    """Why no verifier may run in the sandbox; empty if one may."""


def extend_report(report: HardeningReport, found: Sequence[HardeningFinding]) -> HardeningReport:
    """Return a report with more findings, but for those that it has. Of very many, tampering is listed first."""
    more = [finding for finding in found if finding not in report.findings]
    findings = sorted([*report.findings, *more], key=lambda finding: not finding.is_tampering)
    left_out = report.left_out + max(0, len(findings) - MOST)
    return report.model_copy(update={"findings": findings[:MOST], "left_out": left_out})


def note_paths(item: str, paths: Sequence[str], detail: str) -> HardeningFinding:
    """Return one note about several paths, of which the first are named.

    Args:
        item: Of `verifier.hardening`.
        paths: All of them.
        detail: What there is to say of the first, and of the others as well.
    """
    first, *others = [encode(path).decode(errors="backslashreplace") for path in paths]
    if others:
        named = ", ".join(others[:MOST_NAMED]) + (", …" if len(others) > MOST_NAMED else "")
        detail += f"; {len(others)} more: {named}"
    return HardeningFinding(item=item, action="found", path=first, detail=detail)
