"""Results that somebody removes while a rollout runs: nothing is scored of which nobody knows what was changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.attack_package import AGENTS, copy_for_local
from support.theatre import Theatre

from benchflow.hosting.scored_step import ScoredStep

pytestmark = pytest.mark.local

SOLVES = "#!/bin/sh\necho 100 >/app/answer.txt\n"


async def test_a_step_whose_baseline_has_gone_is_not_scored(theatre: Theatre, tmp_path: Path) -> None:
    task = copy_for_local("replaced-diff", tmp_path / "package" / "task")
    (task / "environment" / "attack.sh").write_text(SOLVES)
    theatre.patch.setenv("BENCHFLOW_AGENTS_DIR", str(AGENTS))
    settle = ScoredStep.settle

    async def after_a_removal(step: ScoredStep, work: Any) -> Any:
        (step.evidence / "baseline.json").unlink(missing_ok=True)
        return await settle(step, work)

    theatre.patch.setattr(ScoredStep, "settle", after_a_removal)
    job = await theatre.submit(task, sandbox="local", agents=["attacker"], job_name="gone")
    [result] = await theatre.results(job)
    assert (result.rewards, result.attempt) == (None, 1)
    assert result.verifier_error is not None
    assert result.verifier_error.type == "VerifierError"
    assert "what the sandbox was before its agent acted is gone" in result.verifier_error.message
    assert result.verifier_error.file == str(Path(str(result.directory)) / "evidence")
