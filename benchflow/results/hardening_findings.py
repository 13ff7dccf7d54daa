"""Hardening findings as results carry them: a bounded number per step, small enough for a workflow, tampering first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from benchflow.contracts.reward import HardeningReport, StepFinding
from benchflow.contracts.rollout_records import StepOutcome

MAX_FINDINGS = 50
"""Maximum number of findings per step that a result lists; `evidence/hardening.json` has all that were recorded."""

_KEY = "hardening"


def limit_findings(report: HardeningReport) -> HardeningReport:
    """Return a report with at most `MAX_FINDINGS` findings, tampering first, and the rest counted in `left_out`."""
    ordered = sorted(report.findings, key=lambda finding: not finding.is_tampering)
    left_out = report.left_out + max(0, len(ordered) - MAX_FINDINGS)
    return report.model_copy(update={"findings": ordered[:MAX_FINDINGS], "left_out": left_out})


def make_hardening_metadata(report: HardeningReport | None) -> dict[str, Any]:
    """Return a result's metadata entry for a hardening report, with limited findings; empty if there is no report."""
    return {_KEY: limit_findings(report).model_dump(mode="json")} if report is not None else {}


def collect_findings(
    steps: Sequence[StepOutcome], stored: Callable[[str | None], HardeningReport | None]
) -> dict[str, Any]:
    """Return the fields of a rollout's result about findings: `findings`, `findings_left_out` and `n_tampering`.

    Args:
        steps: Steps of the rollout.
        stored: Reads the stored report of a step by the step's name. Called only for a step whose verifier failed:
            otherwise the verifier's result carries the report.
    """
    findings: list[StepFinding] = []
    left_out = 0
    for outcome in steps:
        report = _find_report(outcome, stored)
        if report is not None:
            findings += [StepFinding(step=outcome.step.name, **found.model_dump()) for found in report.findings]
            left_out += report.left_out
    n_tampering = sum(finding.is_tampering for finding in findings)
    return {"findings": findings, "findings_left_out": left_out, "n_tampering": n_tampering}


def _find_report(
    outcome: StepOutcome, stored: Callable[[str | None], HardeningReport | None]
) -> HardeningReport | None:
    if outcome.verify is None:
        report = stored(outcome.step.name) if outcome.verifier_error is not None else None
        return limit_findings(report) if report is not None else None
    try:
        return HardeningReport.model_validate(outcome.verify.metadata.get(_KEY))
    except ValidationError:
        # The step was not hardened, or a verifier wrote metadata of its own under this key.
        return None
