"""Findings of the hardening as results carry them: a number of each step that a workflow can carry, tampering first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from benchflow.contracts.reward import HardeningReport, StepFinding
from benchflow.contracts.rollout import StepOutcome

MAX_FINDINGS = 50
"""Findings of a step that a result lists itself; all that were recorded are in `evidence/hardening.json`."""

_KEY = "hardening"


def limited(report: HardeningReport) -> HardeningReport:
    """Return a report with as many findings as a result lists. Notes make room for tampering."""
    ordered = sorted(report.findings, key=lambda finding: not finding.is_tampering)
    left_out = report.left_out + max(0, len(ordered) - MAX_FINDINGS)
    return report.model_copy(update={"findings": ordered[:MAX_FINDINGS], "left_out": left_out})


def hardening_metadata(report: HardeningReport | None) -> dict[str, Any]:
    """Return the part of a result's metadata that is about the hardening; empty where nothing was hardened."""
    return {_KEY: limited(report).model_dump(mode="json")} if report is not None else {}


def step_findings(
    steps: Sequence[StepOutcome], stored: Callable[[str | None], HardeningReport | None]
) -> dict[str, Any]:
    """Return the fields of a rollout's result that are about the findings.

    Args:
        steps: The rollout's steps.
        stored: Reads the report of a step by its name. Asked for a step without a verifier's result, which carries it
            otherwise.
    """
    findings: list[StepFinding] = []
    left_out = 0
    for outcome in steps:
        report = _report(outcome, stored)
        if report is not None:
            findings += [StepFinding(step=outcome.step.name, **found.model_dump()) for found in report.findings]
            left_out += report.left_out
    n_tampering = sum(finding.is_tampering for finding in findings)
    return {"findings": findings, "findings_left_out": left_out, "n_tampering": n_tampering}


def _report(outcome: StepOutcome, stored: Callable[[str | None], HardeningReport | None]) -> HardeningReport | None:
    if outcome.verify is None:
        report = stored(outcome.step.name) if outcome.verifier_error is not None else None
        return limited(report) if report is not None else None
    try:
        return HardeningReport.model_validate(outcome.verify.metadata.get(_KEY))
    except ValidationError:
        # Nothing was hardened. A verifier may write metadata of this name.
        return None
