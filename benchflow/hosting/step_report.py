"""Read, write and extend the stored report of a step's hardening, without secrets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchflow.contracts.reward import HardeningFinding, HardeningReport
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.hosting.hosted import Hosted
from benchflow.planes.reward.hardening.hardening_record import extend_report
from benchflow.trajectories.nodes import read_hardening


@dataclass(frozen=True)
class StepReport:
    """The stored report of a step's hardening."""

    rollout: Hosted
    """The rollout."""

    step: str | None
    """Name of the step; None for the only one."""

    is_trusted: bool
    """Whether the oracle acted: its findings are notes and never tampering."""

    def read(self) -> HardeningReport | None:
        """Return the stored report; None if nothing was hardened. Raises `ResultFileError` if it can't be parsed."""
        return read_hardening(self.rollout.paths, self.step)

    def write(self, report: HardeningReport) -> None:
        """Store a redacted report. Findings of an earlier attempt are retained, because they are not found again."""
        earlier = self.read()
        whole = redact_report(report, self.rollout, is_trusted=self.is_trusted)
        if earlier is not None:
            whole = extend_report(whole.model_copy(update={"findings": earlier.findings}), whole.findings)
        file = self.rollout.paths.hardening(self.step)
        with raise_storage_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(whole.model_dump(mode="json"), indent=2).encode() + b"\n", durable=False)

    def add(self, found: Sequence[HardeningFinding]) -> None:
        """Add findings that were made after the hardening to the stored report."""
        if found:
            self.write((self.read() or HardeningReport()).model_copy(update={"findings": list(found)}))


def redact_report(report: HardeningReport, rollout: Hosted, *, is_trusted: bool) -> HardeningReport:
    """Return a report with secrets redacted, and for an oracle with all findings weighted as notes.

    Args:
        report: The report.
        rollout: The rollout, for its secrets.
        is_trusted: Whether the oracle acted.
    """
    findings = report.findings
    if is_trusted:
        findings = [finding.model_copy(update={"weight": "note"}) for finding in findings]
    content = report.model_copy(update={"findings": findings}).model_dump(mode="json")
    return HardeningReport.model_validate(rollout.redact.within(content))
