"""The findings of real attacks in the results of a job on Docker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.attack_package import ALL
from support.system_job import Results, SystemTasks

pytestmark = pytest.mark.docker

ATTACK = "conftest-in-the-root"


def system_tasks(root: Path) -> SystemTasks:
    return {"attacks": [ALL[ATTACK].directory]}


def test_a_result_lists_what_the_hardening_found_as_its_evidence_has_it(attacks_results: Results) -> None:
    result = attacks_results[ATTACK]
    directory = Path(str(result.directory))
    stored = json.loads((directory / "result.json").read_text())
    evidence = json.loads((directory / "evidence" / "hardening.json").read_text())
    # A result has tampering first.
    found = sorted(evidence["findings"], key=lambda finding: finding["weight"] != "tampering")
    assert found
    assert stored["findings"] == [finding | {"step": None} for finding in found]
    assert stored["steps"][0]["verify"]["metadata"]["hardening"] == evidence | {"findings": found}
    assert stored["n_tampering"] == sum(finding["weight"] == "tampering" for finding in found)
