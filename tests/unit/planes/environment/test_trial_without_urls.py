"""Findings of `bench env check` about the copy of a world in which there is no URL to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.stored_jobs import write_task

from benchflow.contracts.job import Origin
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.hosted_trial import HostedTrial
from benchflow.hosting.worker_host import Host
from benchflow.jobs.trial_job import freeze_trial, plan_trial
from benchflow.paths import StatePaths
from benchflow.planes.environment.environment_trial import TrialFinding, _Trial
from benchflow.store import Store

pytestmark = pytest.mark.usefixtures("state")

MANIFEST = """
[environment]
name = "desk"
image = "desk:1"
ports = [9001]
[environment.readiness]
http = ["http://localhost:9001/health"]
"""


async def copy_finding(tmp_path: Path, task: Path | None) -> TrialFinding:
    """Return what a trial finds of the copy."""
    manifest = tmp_path / "environment.toml"
    manifest.write_text(MANIFEST)
    store, nothing = Store.open(), None
    spec = await freeze_trial(plan_trial(manifest, task, "noop", []), "trial", store)
    host: Any = Host(
        paths=StatePaths.default(), store=store, host_id="h", queue="q", stack="s", slots=nothing, options=nothing
    )  # type: ignore[arg-type]
    rollout = await Hosted.load(host, spec.rollout("job/trial", Origin(host_id="h", job_dir=str(tmp_path)), 0))
    trial = _Trial(HostedTrial(rollout, "run").make_setting(), lambda what: None, tmp_path / "trial")
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
