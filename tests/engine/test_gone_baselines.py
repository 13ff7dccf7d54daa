"""Results that somebody removes while a rollout runs: nothing is scored of which nobody knows what was changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.attack_package import AGENTS, copy_for_local
from support.in_process_worker import InProcessWorker

from benchflow.hosting.scored_step import ScoredStep

pytestmark = pytest.mark.local

SOLVES = "#!/bin/sh\necho 100 >/app/answer.txt\n"


async def test_a_step_whose_baseline_has_gone_is_not_scored(worker: InProcessWorker, tmp_path: Path) -> None:
    task = copy_for_local("replaced-diff", tmp_path / "package" / "task")
    (task / "environment" / "attack.sh").write_text(SOLVES)
    worker.patch.setenv("BENCHFLOW_AGENTS_DIR", str(AGENTS))
    settle = ScoredStep.settle

    async def after_a_removal(step: ScoredStep, work: Any) -> Any:
        (step.evidence / "baseline.json").unlink(missing_ok=True)
        return await settle(step, work)

    worker.patch.setattr(ScoredStep, "settle", after_a_removal)
    job = await worker.submit(task, sandbox="local", agents=["attacker"], job_name="gone")
    [result] = await worker.results(job)
    assert (result.rewards, result.attempt) == (None, 1)
    assert result.verifier_error is not None
    assert result.verifier_error.type == "VerifierError"
    assert "what the sandbox was before its agent acted is gone" in result.verifier_error.message
    assert result.verifier_error.file == str(Path(str(result.directory)) / "evidence")
