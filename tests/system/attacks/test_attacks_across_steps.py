"""What a verifier brought for one step is not there for the next step's agent to read."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.attack_package import ALL, in_steps, run

pytestmark = pytest.mark.docker


def test_the_next_steps_agent_finds_neither_the_verifiers_files_nor_its_logs(module_jobs: Path, tmp_path: Path) -> None:
    task = in_steps(ALL["searched-key"], tmp_path, "first", "second")
    [result] = run([task], module_jobs).values()
    assert result.error is None
    assert [step.verify.reward for step in result.steps if step.verify] == [0.0, 0.0]
