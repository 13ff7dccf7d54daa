"""Code of this host that the config of a stored job names: imported listed before it is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow.cli.resume import plan_again
from benchflow.contracts.branch import BranchConfig, CustomPolicy
from benchflow.contracts.job import AgentSpec, JobSpec, RunConfig
from benchflow.errors import UntrustedJobError
from benchflow.paths import JobPaths

NAMING: dict[str, JobSpec] = {
    "run.allow_code": JobSpec(name="j", tasks=[], agents=[], run=RunConfig(allow_code=["theirs"])),
    "agents.name": JobSpec(name="j", tasks=[], agents=[AgentSpec(name="acpx/theirs:Agent")]),
    "run.branch.policy.policy": JobSpec(
        name="j",
        tasks=[],
        agents=[],
        run=RunConfig(branch=BranchConfig(policy=CustomPolicy(policy="theirs.deep:Policy"))),
    ),
    "run.branch.aggregate": JobSpec(
        name="j",
        tasks=[],
        agents=[],
        run=RunConfig(branch=BranchConfig(policy=CustomPolicy(policy="installed"), aggregate="theirs:least")),
    ),
}


@pytest.mark.parametrize("key", NAMING)
def test_a_stored_job_that_names_code_is_resumed_only_if_the_user_trusts_it(key: str, tmp_path: Path) -> None:
    paths = JobPaths(tmp_path / "j")
    paths.root.mkdir()
    paths.config.write_text(NAMING[key].model_dump_json())
    with pytest.raises(UntrustedJobError, match=r"(?m)^  code: .*theirs") as caught:
        plan_again("j", tmp_path, concurrency=1, context_root=None)
    assert "--trust" in (caught.value.remedy or "")
    # What is wrong with it next: it has no tasks.
    with pytest.raises(Exception, match="paths"):
        plan_again("j", tmp_path, concurrency=1, context_root=None, trust=True)
