"""Findings of `bench env check` about the copy of a world in which there is no URL to compare."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stored_jobs import write_task

from benchflow.cli.world import setting_of
from benchflow.planes.environment.trial import Finding, _Trial

pytestmark = pytest.mark.usefixtures("state")

MANIFEST = """
[environment]
name = "desk"
image = "desk:1"
ports = [9001]
[environment.readiness]
http = ["http://localhost:9001/health"]
"""


async def copy_finding(tmp_path: Path, task: Path | None) -> Finding:
    """Return what a trial finds of the copy."""
    manifest = tmp_path / "environment.toml"
    manifest.write_text(MANIFEST)
    trial = _Trial(setting_of(manifest, task, "noop", []), lambda what: None)
    await trial.compare_copy()
    return next(finding for finding in trial.result().findings if finding.what == "copy")


async def test_without_a_task_one_is_asked_for(tmp_path: Path) -> None:
    found = await copy_finding(tmp_path, None)
    assert found.outcome == "not declared"
    assert "there is no environment.state.observe" in found.detail
    assert found.detail.endswith("give --task")


async def test_a_task_whose_verifier_names_no_url_is_told_so(tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks", "one")
    (task / "environment" / "Dockerfile").unlink()
    found = await copy_finding(tmp_path, task)
    assert found.outcome == "not declared"
    assert "the verifier of one names no URL of the world" in found.detail
    assert "--task" not in found.detail
